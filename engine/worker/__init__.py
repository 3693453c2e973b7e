"""The places where blocks of clients run: threads of this process, or Ray actors. Nothing here changes a result's bits.

It offers one interface, the pool: calls go in, results come out in the order of the calls, whatever happens to the
workers meanwhile; and, before a stage trains, a check that the workers' memory will do. Read ``pool.py`` first, then
``in_process.py``, ``scheduling.py`` (which call goes to which actor next) and ``ray/``.
"""
