"""Small federations for the tests: images that can be learned, the engine driven over them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.data import Assignment, Dataset, Iid, Split
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.run.driver import Driver
from engine.worker.in_process import InProcessPool

CLASSES, SHAPE, HIDDEN = 4, (1, 8, 8), 6
MEAN, STD = 0.5, 0.25
STEPS, LR = 3, 0.2
# Rows of each class: clients that lack classes, of three sizes.
COUNTS = ((6, 2, 0, 0), (0, 3, 9, 1), (1, 0, 4, 2))
CNN = {"name": "cnn", "norm": "batch"}


def split(labels: Sequence[int], seed: int) -> Split:
    """Images with these labels: a pattern for each class under noise."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).integers(0, 256, (CLASSES, *SHAPE))
    noise = rng.integers(0, 256, (len(labels), *SHAPE))
    return Split(((patterns[list(labels)] + noise) // 2).astype(np.uint8), np.array(labels, np.int64))


def federation(counts: Sequence[Sequence[int]] = COUNTS) -> tuple[Dataset, Assignment]:
    """Data, and clients with ``counts`` [K][C] rows of each class; all have all test rows in equal parts."""
    labels, clients = [], []
    for own in counts:
        rows = np.random.default_rng(len(labels)).permutation(np.repeat(np.arange(CLASSES), own))
        clients.append(np.arange(len(labels), len(labels) + len(rows)))
        labels += rows.tolist()
    data = Dataset(
        name="small",
        classes=tuple("abcd"),
        train=split(labels, 0),
        test=split([number % CLASSES for number in range(48)], 1),
        mean=(MEAN,),
        std=(STD,),
    )
    return data, Iid(clients=len(clients)).share_tests(Assignment(tuple(clients)), data)


def experiment(algorithm: dict[str, Any], **changes: Any) -> Experiment:
    """Full batches and few steps in float64, two clients of three in a round; ``changes`` go into the sections."""
    sections: dict[str, Any] = {
        "rounds": 3,
        "model": {"name": "mlp", "hidden": [HIDDEN]},
        "local": {"steps": STEPS, "batch_size": "full", "lr": LR},
        "participation": {"count": 2},
        "execution": {
            "actors": 0,
            "device": "cpu",
            "executor": "loop",
            "block": 10,
            "workers": 1,
            "precision": "float64",
        },
    }
    for name, value in changes.items():
        merges = isinstance(value, dict) and "name" not in value
        sections[name] = {**sections.get(name, {}), **value} if merges else value
    return Experiment(**sections, algorithm=algorithm)


@dataclass
class Driven:
    """A run at its end."""

    driver: Driver
    summary: dict[str, Any]
    folder: RunFolder
    first: dict[str, Tensor]  # the server's weights and buffers before the first round
    cohorts: list[tuple[int, ...]]

    @property
    def server(self) -> dict[str, Tensor]:
        return self.driver.lineage.server

    @property
    def sha(self) -> str:
        return self.summary["weights_sha256"]

    @property
    def states(self) -> list[dict[str, Tensor]]:
        """What each client keeps; empty for one that has not taken part."""
        handles = self.driver.lineage.states.store.read(range(len(self.driver.federation.population.sizes)))
        kept = [{} if handle is None else self.driver.pool.fetch(handle) for handle in handles]
        return [{name: torch.as_tensor(value) for name, value in state.items()} for state in kept]


def drive(folder: Path, config: Experiment, data: tuple[Dataset, Assignment] | None = None) -> Driven:
    """A whole run, in this process."""
    dataset, parts = data or federation()
    run_folder = RunFolder(folder)
    run_folder.create(config)
    driver = Driver(config, run_folder, dataset, parts, InProcessPool(config, dataset, parts))
    first = {name: driver.federation.fresh[name].clone() for name in ("weights", "buffers")}
    while not driver.finished:
        driver.advance()
    cohorts = [driver.federation.cohort(round) for round in range(1, config.rounds + 1)]
    return Driven(driver, driver.close(), driver.folder, first, cohorts)
