"""Several clients trained in one pass (``training_loop.py``), and steps that are captured once and replayed
(``cuda_graph.py``).

An algorithm is written for one client and cannot tell. ``engine/client/steps/training_loop.py`` is the reference, to be
stepped through; what is here gives what that gives, up to rounding. Read ``training_loop.py`` first.
"""
