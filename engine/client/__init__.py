"""One client's round: from what it receives to what it sends, one client at a time or a block of them in one pass.

It offers the jobs that a worker can be given (``jobs.py``) and the sums that uploads are added up in; where they run
is not known here. Read ``trainer.py`` first, then ``steps/training_loop.py`` and ``vmap/training_loop.py``, the
same loop for several clients at once.
"""
