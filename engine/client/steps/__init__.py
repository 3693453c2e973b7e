"""What a client's steps are made of: its weights as one vector, its batches, the loop over them (``training_loop.py``).

Read ``training_loop.py`` first, then ``flat_net.py``. ``../vmap`` does the same for several clients at once.
"""
