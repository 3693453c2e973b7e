"""The pictures of one run, written beside its tables.

partition.png     which client holds how much of which class
sampler.png       class shares before and after, where local steps see others than clients hold
curves.png        accuracy and loss over rounds
classes.png       accuracy on each class, where the last stage has no rounds
matrices.png      what the server ended with for pairs of classes, if anything
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.experiment import Experiment
from engine.record import matrices
from engine.record.run_folder import RunFolder
from engine.server.class_balance import changes_classes, last_trained, step_classes
from fedskew.lab.partitions import draw_partition, draw_steps
from fedskew.lab.run_pictures.curves import draw_curves


def draw_pictures(experiment: Experiment, folder: RunFolder, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Write all pictures of the run in ``folder``.

    counts: int64 [K, C], training samples of each client and class. classes: the names of the C classes.
    """
    if changes_classes(experiment):
        held, stage = counts[counts.sum(axis=1) > 0], last_trained(experiment)
        draw_steps(held, step_classes(stage.algorithm, stage.local, held), classes, folder.path / "sampler.png")
    draw_partition(counts, classes, folder.path / "partition.png")
    draw_curves(folder, folder.path / "curves.png")
    by_class, by_pair = not experiment.chain[-1].rounds, (folder.path / matrices.FILE).exists()
    if by_class or by_pair:
        from fedskew.lab.run_pictures.classes import draw_classes, draw_matrices  # with what reports are drawn by

        if by_class:  # curves over rounds say little of what it does
            draw_classes(folder, counts, classes)
        if by_pair:
            draw_matrices(folder, classes)
