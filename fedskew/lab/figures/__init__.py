"""Figures of a report, each small enough for a phone.

It offers one function for each kind of figure; a page that has room sets several side by side, and only those marked
wide scroll. Read ``rounds.py`` first, then ``panels.py`` and ``lines.py``, which most others share.
"""

from fedskew.lab.figures.claims import forest
from fedskew.lab.figures.classes import class_accuracy, class_bars
from fedskew.lab.figures.diagnosed import cka_means, drift
from fedskew.lab.figures.generated import ImagePanels, generated_images
from fedskew.lab.figures.hyperparameters import heat_maps, importance, sensitivity
from fedskew.lab.figures.matrices import matrix_maps
from fedskew.lab.figures.population import client_accuracy, worst_clients
from fedskew.lab.figures.ranks import critical_differences
from fedskew.lab.figures.rounds import curves
from fedskew.lab.partitions import partition

__all__ = [
    "ImagePanels",
    "cka_means",
    "class_accuracy",
    "class_bars",
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
    "worst_clients",
]
