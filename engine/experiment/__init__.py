"""The config of a run: everything that determines its result, checked before anything is computed.

It offers :class:`Experiment`, its sections and stages, and the dotted keys by which all of it is set; rooms above read
their settings from there, and it is the one room that knows which algorithms there are. Read ``experiment.py`` first:
a file for each kind of part stands beside it, and ``checks.py`` holds the rules across sections.
"""

from engine.algorithm import Local
from engine.experiment.checks import settings_of
from engine.experiment.choices import CHOICES, written
from engine.experiment.dotted_keys import keys, parse_assignment
from engine.experiment.execution import IDENTITY, NEUTRAL, Execution, check_share, no_gpu
from engine.experiment.experiment import Experiment
from engine.experiment.sections import SECTIONS, Checkpointing, Evaluation, Participation, Stop
from engine.experiment.stages import Change, Stage, lineage_of
from engine.experiment.work import Work

__all__ = [
    "CHOICES",
    "IDENTITY",
    "NEUTRAL",
    "SECTIONS",
    "Change",
    "Checkpointing",
    "Evaluation",
    "Execution",
    "Experiment",
    "Local",
    "Participation",
    "Stage",
    "Stop",
    "Work",
    "check_share",
    "keys",
    "lineage_of",
    "no_gpu",
    "parse_assignment",
    "settings_of",
    "written",
]
