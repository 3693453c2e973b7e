"""How many workers one process has, each in a thread of its own. Changes no bit.

Threads of one interpreter go on side by side while torch computes, and wait for one another between its operations. So
several workers pay where operations are long. On two cores (2 of 8 combinations of ``logistic`` and ``mlp`` with 60 and
600 rows a client) the break-even was at half a million multiply-adds in the forward pass of a batch: at a quarter of
that two workers took 1.0 to 1.4 of one's time, at twice that 0.7 to 0.8, and for convolutions 0.5 to 0.6.
"""

from __future__ import annotations

import os

import numpy as np

from engine.data import Assignment
from engine.experiment import Experiment
from engine.model_cost import model_cost
from engine.phases import CHUNK

Image = tuple[int, int, int]  # C, H, W

LONG = 500_000  # multiply-adds of a batch's forward pass, from which on workers go on side by side
MOST = 4  # workers of a process: what lies between torch's operations is one worker's at a time


def workers_of(experiment: Experiment, image: Image, classes: int, assignment: Assignment) -> int:
    """What ``execution.workers`` means here, for a resolved experiment"""
    execution, asked = experiment.execution, experiment.execution.workers
    if asked != "auto":
        return asked
    if execution.device != "cpu" or batch_cost(experiment, image, classes, assignment) < LONG:
        return 1
    return max(1, min(cores() // execution.threads, MOST))


def batch_cost(experiment: Experiment, image: Image, classes: int, assignment: Assignment) -> int:
    """Multiply-adds of the cheapest batch's forward pass; a full batch is that of a client of mean size."""
    mean = min(CHUNK, round(float(np.mean(assignment.sizes()))))
    batches = (stage.local.batch_size for stage in experiment.chain)
    rows = min(mean if isinstance(batch, str) else batch for batch in batches)
    specs = (experiment.model, *experiment.client_models)
    return rows * min(model_cost(spec, image, classes).macs for spec in specs)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
