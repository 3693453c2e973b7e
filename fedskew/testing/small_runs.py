"""Whole runs on small data, in this process: what they are of, and what they come to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from engine.algorithm import Algorithm, PostTraining, Tensors
from engine.base.errors import ConfigError
from engine.data import Assignment, Dataset, Iid
from engine.experiment import CHOICES, Experiment
from engine.record.run_folder import RunFolder
from engine.run.driver import Driver
from engine.run.reuse import Reuse
from engine.worker.in_process import InProcessPool
from fedskew.testing.failure import NotApplicable
from fedskew.testing.small_data import SIZES, assignment, dataset

LOCAL: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1}
# One worker: threads that take turns with the interpreter take longer.
PLACE: dict[str, Any] = {"actors": 0, "device": "cpu", "executor": "loop", "workers": 1}
SOME, ALL = {"count": 4}, {}  # of the clients, in a round
MLP, BATCHNORM = {"name": "mlp", "hidden": [12]}, {"name": "resnet8"}


def experiment_of(algorithm: Algorithm, cohorts: Sequence[dict[str, Any]] = (SOME, ALL), **changes: Any) -> Experiment:
    """Return an experiment of three rounds with this algorithm, as small as it accepts.

    ``cohorts``: sections ``participation``, of which the first one that it accepts is taken. ``changes``: sections of
    the experiment, replaced field by field. An algorithm without rounds follows two of FedAvg. Raises
    :class:`NotApplicable` where the algorithm refuses all that is small.
    """
    CHOICES["algorithm"].taken(algorithm)  # refused in its own sentence
    models = (changes.pop("model"),) if "model" in changes else (MLP, BATCHNORM)
    base: dict[str, Any] = {"rounds": 3, "seed": 0, "local": LOCAL, "execution": PLACE}
    values = {
        section: {**base[section], **value} if isinstance(base.get(section), dict) else value
        for section, value in {**base, **changes}.items()
    }
    first: ConfigError | None = None
    for model, cohort in product(models, cohorts):
        needed = {**algorithm.requires.model, **model} if isinstance(model, dict) else model
        try:
            return Experiment(**values, **_work_of(algorithm), model=needed, participation=cohort)
        except ConfigError as error:
            first = first or error
    raise NotApplicable(f"it refuses the small experiments that checks are made with: {first}")


def _work_of(algorithm: Algorithm) -> dict[str, Any]:
    """The section, or the stages, by which an algorithm is run."""
    if not isinstance(algorithm, PostTraining):
        return {"algorithm": algorithm}
    before = {"name": "train", "rounds": 2, "algorithm": {"name": "fedavg"}}
    end = {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": CHOICES["algorithm"].dump(algorithm)}
    return {"stages": [before, end]}


def fedavg(**fields: Any) -> Algorithm:
    """Return FedAvg, which models are trained by and others are compared with."""
    return CHOICES["algorithm"].build({"name": "fedavg", **fields})


# --- runs -----------------------------------------------------------------------------------------------------


@dataclass
class Driven:
    """A run that has ended."""

    driver: Driver
    summary: dict[str, Any]
    folder: RunFolder

    @property
    def sha(self) -> str:
        return self.summary["weights_sha256"]

    @property
    def shas(self) -> tuple[str, str | None]:
        """Of the weights, and of what clients keep, if anything."""
        return self.sha, self.summary["states_sha256"]

    @property
    def states(self) -> list[Tensors]:
        """What each client keeps; empty for one that has not taken part."""
        driver = self.driver
        handles = driver.lineage.states.store.read(range(len(driver.federation.population.sizes)))
        return [{} if handle is None else driver.pool.fetch(handle) for handle in handles]

    @property
    def server(self) -> dict[str, Any]:
        return self.driver.lineage.server

    def numbers(self) -> Tensors:
        """All that training changes, by name: the server's entries, and what clients keep."""
        kept = {
            f"state of client {k}: {name}": tensor for k, one in enumerate(self.states) for name, tensor in one.items()
        }
        return {**self.server, **kept}


def open_driver(
    folder: Path,
    config: Experiment,
    data: Dataset | None = None,
    parts: Assignment | None = None,
    reuse: Reuse | None = None,
) -> Driver:
    """Return a driver of ``config`` over small data, or over ``data`` divided as ``parts`` say; test rows are added."""
    data = data or dataset()
    parts = parts or assignment(SIZES)
    if not parts.tests:
        parts = Iid(clients=len(parts.clients)).share_tests(parts, data)
    run_folder = RunFolder(folder)
    run_folder.create(config)
    return Driver(config, run_folder, data, parts, InProcessPool(config, data, parts), reuse)


def finish(driver: Driver) -> Driven:
    """Run to the end."""
    while not driver.finished:
        driver.advance()
    return Driven(driver, driver.close(), driver.folder)


@contextmanager
def folder_for_a_check() -> Iterator[Path]:
    """Yield an empty folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedskew-check-") as folder:
        yield Path(folder)


def driven(config: Experiment, data: Dataset | None = None, parts: Assignment | None = None) -> Driven:
    """Run ``config`` to its end, leaving nothing on the disk but what it came to in memory."""
    with folder_for_a_check() as folder:
        driver = open_driver(folder, config, data, parts)
        with closing(driver.pool):
            return finish(driver)


def largest_gap(found: Tensors, wanted: Tensors) -> tuple[float, str]:
    """Return the largest |a - b| / max(1, |b|) over entries of the same names, and the entry that has it."""
    gaps = [(0.0, "")]
    for name, reference in wanted.items():
        if reference.numel() and found[name].shape == reference.shape:
            gap = (found[name].double() - reference.double()).abs() / reference.double().abs().clamp(min=1)
            gaps.append((float(gap.nan_to_num(torch.inf).max()), name))
        elif found[name].shape != reference.shape:
            gaps.append((torch.inf, name))
    return max(gaps)
