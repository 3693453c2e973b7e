"""Runs and sweeps of any number of folders as tables: trials, rounds, clients, classes and personal models.

It offers ``load_results`` (one object for all folders, with a pandas frame and an Arrow table of each kind),
``query.answer`` (SQL over the same tables) and ``frame_columns.markdown`` for docs/schema.md. Read ``frame_columns.py``
first (every column with its type, its unit and its meaning), then ``frames.py``.
"""

from engine.results.frames.frames import Frames, load_results

__all__ = ["Frames", "load_results"]
