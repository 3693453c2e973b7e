"""The one reader of what runs and sweeps have kept: their trials, rounds, clients and classes as tables.

It offers ``load`` (a folder as :class:`Results`) and what a sweep declares of a paper (``Claim``, ``PaperTable``,
``Published``); any number of folders as tables are in ``frames/``. Read ``trials.py`` first (the figures of a trial),
then ``results.py``.

results = load(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))
results.settings()                  # mean, spread and interval of every setting
"""

from engine.results.claims import Claim, PaperTable, Published
from engine.results.loading import load, write_trials
from engine.results.results import Axis, Results
from engine.results.settings import label, setting_label

__all__ = [
    "Axis",
    "Claim",
    "PaperTable",
    "Published",
    "Results",
    "label",
    "load",
    "setting_label",
    "write_trials",
]
