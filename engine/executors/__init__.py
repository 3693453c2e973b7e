"""How the clients of a block are trained: one after the other (``loop.py``), or several in one pass (``block.py``).

An algorithm is written for one client and cannot tell. ``loop`` is the reference, to be stepped through; ``block``
gives what it gives up to rounding.
"""
