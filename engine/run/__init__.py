"""A run from its experiment to its folder: rounds in their order, checkpoints between them, what is shared with
other runs.

It offers :class:`~engine.run.run.Run`, with the driver in this process or as a Ray actor, and a round computed
again. Read ``run.py`` first, then ``driver.py``, the loop of rounds.
"""
