"""Data sets by name (``data.name``), each a frozen dataclass that reads its files into one array per split.

They offer one interface, :class:`~engine.data.samples.dataset.Source`: ``load`` gives a
:class:`~engine.data.samples.dataset.Dataset`, or an error that says what to download and where to put it. Read
``mnist.py`` first; ``finding.py`` looks for files, ``formats.py`` and ``pickled.py`` read them without running any
code in them.
"""
