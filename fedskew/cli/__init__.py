"""The command line: one file for each group of commands, and ``main.py``, which puts them together.

It offers the program ``fedskew`` to users and nothing to other rooms; what takes long to import (Ray Tune, pandas,
matplotlib) is imported when a command asks for it. Read ``main.py`` first, then ``run.py``.
"""
