"""The config of a run: frozen, checked at construction, hashed, YAML in and out.

It offers :class:`Experiment` and its sections; every room above reads its settings from there and decides nothing of
its own. Read ``experiment.py`` first.
"""

from engine.experiment.experiment import (
    CHOICES,
    IDENTITY,
    NEUTRAL,
    SECTIONS,
    Change,
    Checkpoint,
    Evaluation,
    Execution,
    Experiment,
    Local,
    Participation,
    Stage,
    keys,
    lineage_of,
    no_gpu,
    parse_assignment,
)

__all__ = [
    "CHOICES",
    "IDENTITY",
    "NEUTRAL",
    "SECTIONS",
    "Change",
    "Checkpoint",
    "Evaluation",
    "Execution",
    "Experiment",
    "Local",
    "Participation",
    "Stage",
    "keys",
    "lineage_of",
    "no_gpu",
    "parse_assignment",
]
