"""How the clients of a block are trained: one after the other (``engine/client/sequential.py``), or several in one pass
(``block.py``); and either way in steps that are captured once and replayed (``graph.py``).

An algorithm is written for one client and cannot tell. ``loop`` is the reference, to be stepped through; the others
give what it gives up to rounding.
"""
