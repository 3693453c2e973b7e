"""The conformance suite: whether a part (an algorithm, a model, data, a partition) keeps what the engine counts on.

It offers ``checks_of``, which lists the checks of a part; each is a small function that raises ``NotConforming``. Read
``checks.py`` first, then ``algorithm_values.py`` for what a check looks like.
"""
