"""The figures of a report.

Each is small enough for a phone, and a page that has room sets several side by side; only those marked wide scroll.
"""

from engine.analysis.figures.claims import forest
from engine.analysis.figures.classes import class_accuracy, class_bars, class_slopes
from engine.analysis.figures.hyperparameters import heat_maps, importance, parallel_coordinates, sensitivity
from engine.analysis.figures.matrices import matrix_maps
from engine.analysis.figures.population import client_accuracy, partition, worst_clients
from engine.analysis.figures.rounds import curves

__all__ = [
    "class_accuracy",
    "class_bars",
    "class_slopes",
    "client_accuracy",
    "curves",
    "forest",
    "heat_maps",
    "importance",
    "matrix_maps",
    "parallel_coordinates",
    "partition",
    "sensitivity",
    "worst_clients",
]
