"""The number of workers that one process has, each in a thread of its own. Changes no bit.

Threads of one interpreter go on side by side while torch computes, and wait for one another between its operations. So
several workers pay where operations are long. Measured on two cores with ``logistic`` and ``mlp`` of 20 to 200 units,
60 and 600 rows a client: two workers took 0.97 to 1.37 of one's time for a quarter of a million multiply-adds in the
forward pass of a batch, 0.88 and 0.93 for half a million, 0.6 to 0.8 from 1.3 million on, and 0.5 to 0.6 for
convolutions.
"""

from __future__ import annotations

import logging

import numpy as np

from engine.base.devices import cores
from engine.client.steps.training_loop import CHUNK
from engine.data import Assignment
from engine.experiment import Experiment
from engine.models.cost import model_cost

Image = tuple[int, int, int]  # C, H, W

log = logging.getLogger("fedskew")
LONG = 500_000  # multiply-adds of a batch's forward pass, from which on workers go on side by side
MOST = 4  # workers of a process: what lies between torch's operations is one worker's at a time


def workers_of(experiment: Experiment, image: Image, classes: int, assignment: Assignment) -> int:
    """Return the number of workers that ``execution.workers`` means here, for a resolved experiment."""
    execution, configured = experiment.execution, experiment.execution.workers
    if any(spec.keeps_weights for spec in experiment.client_models):
        return 1  # a newcomer's network draws its weights from a generator that the process has one of
    if configured != "auto":
        shared = configured * execution.threads / cores()
        if configured > 1 and shared > 1:
            log.warning(
                "execution.workers=%d with execution.threads=%d on %d cores: each thread gets 1/%.3g of a core; fewer "
                "workers are faster, with the same bits",
                configured,
                execution.threads,
                cores(),
                shared,
            )
        return configured
    shares_nothing = execution.device == "cpu" and execution.autocast == "none"
    if not shares_nothing or batch_cost(experiment, image, classes, assignment) < LONG:
        return 1
    return max(1, min(cores() // execution.threads, MOST))


def batch_cost(experiment: Experiment, image: Image, classes: int, assignment: Assignment) -> int:
    """Count the multiply-adds of the cheapest batch's forward pass; a full batch has a mean client's rows."""
    mean = min(CHUNK, round(float(np.mean(assignment.sizes()))))
    batches = (stage.local.batch_size for stage in experiment.chain)
    rows = min(mean if isinstance(batch, str) else batch for batch in batches)
    specs = (experiment.model, *experiment.client_models)
    return rows * min(model_cost(spec, image, classes).macs for spec in specs)
