"""Blocks on Ray actors: the pool, one run of calls over it, and the actors themselves.

It offers :class:`~engine.worker.ray.pool.RayPool`, the same interface as the pool in process. Read ``pool.py``
first, then ``calls.py`` for deaths, deadlines and want of memory; ``actors.py`` has the actors and what replaces them.
"""
