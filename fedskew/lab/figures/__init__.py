"""Figures of a report, each small enough for a phone.

It offers one function for each kind of figure; a page that has room sets several side by side, and only those marked
wide scroll. Read ``rounds.py`` first, then ``lines.py``, ``panels.py`` and ``cells.py``, which most others share.
"""

from fedskew.lab.figures.classes import class_accuracy, matrix_maps
from fedskew.lab.figures.clients import client_accuracy
from fedskew.lab.figures.comparisons import critical_differences, forest
from fedskew.lab.figures.diagnosed import cka_means, drift
from fedskew.lab.figures.generated import ImagePanels, generated_images
from fedskew.lab.figures.hyperparameters import heat_maps, importance, sensitivity
from fedskew.lab.figures.rounds import curves
from fedskew.lab.partitions import partition

__all__ = [
    "ImagePanels",
    "cka_means",
    "class_accuracy",
    "client_accuracy",
    "critical_differences",
    "curves",
    "drift",
    "forest",
    "generated_images",
    "heat_maps",
    "importance",
    "matrix_maps",
    "partition",
    "sensitivity",
]
