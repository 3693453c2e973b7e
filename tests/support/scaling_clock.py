"""A scaling study by a simulated cluster: what a round takes is known, for any number of actors."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.client.blocks import cut
from engine.experiment import Experiment
from engine.experiment.executor_policy import STACKING
from fedskew.lab.scaling.study import Study

MACHINE = {"nodes": 1, "cpus": 8.0, "gpus": 0.0, "hardware": "AVX2", "torch": "2.0", "fedskew": "0"}
SMALL: dict[str, Any] = {
    "name": "small",
    "data": {"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
    "partition": {"name": "iid", "clients": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch_size": 10, "lr": 0.05},
    "participation": {"count": 8},
    "execution": {"actors": 0, "device": "cpu", "block": 2},
}


def study(
    folder: Path,
    actors: Sequence[int] = (0, 1, 2, 4, 8),
    cohort: int = 8,
    turns: int = 5,
    seconds: float = 2.0,
    experiment: Experiment | None = None,
    **machine: Any,
) -> Study:
    experiment = experiment or Experiment(**SMALL)
    return Study(experiment, cohort, actors, {**MACHINE, **machine}, turns, seconds, folder)


def simulated(actors: int, blocks: Sequence[float], take_in: float, add: float) -> tuple[float, float]:
    """Seconds of a round without what nothing runs beside, and those of them in which the driver waits.

    blocks: each one's seconds on an actor. The longest go first, each to the actor that is free first; the driver takes
    results in and adds them in their order, while actors go on.
    """
    free, ends = [0.0] * actors, dict[int, float]()
    for block in sorted(range(len(blocks)), key=lambda block: -blocks[block]):
        ends[block] = free[0] + blocks[block]
        heapq.heapreplace(free, ends[block])
    now = waited = 0.0
    for block in range(len(blocks)):
        waited += max(ends[block] - now, 0.0)
        now = max(now, ends[block]) + take_in + add
    return now, waited


class Clock:
    """Measures rounds of the simulated cluster; each turn of a number of actors takes a little longer than the last."""

    def __init__(
        self,
        dies_after: int | None = None,
        noise: float = 0.01,
        client: float = 0.05,
        add: float = 0.002,
        take_in: float = 0.001,
    ) -> None:
        self.turns: list[int] = []
        self._dies_after, self._noise = dies_after, noise
        self._client, self._take_in, self._add = client, take_in, add

    def __call__(self, experiment: Experiment, seconds: float) -> dict[str, Any]:
        assert seconds == 2.0
        if len(self.turns) == self._dies_after:
            raise KeyboardInterrupt
        actors, clients = experiment.execution.actors, range(experiment.participation.count or 0)
        slower = 1 + self._noise * (self.turns.count(actors) - 2)
        self.turns.append(actors)
        cohort = cut(clients, experiment.execution.block, max(actors, 1), experiment.execution.executor in STACKING)
        blocks = [slower * self._client * len(block) for block in cohort]
        took, waited = simulated(max(actors, 1), blocks, self._take_in, self._add)
        phases = {"draw": 0.001, "broadcast": 0.002, "training": waited, "wait": 0.0, "aggregation": 0.003}
        phases |= {"transfer": self._take_in * len(blocks), "addition": self._add * len(blocks)}
        return {
            "seconds": 10 * (took + 0.006),
            "rounds": 10,
            **{f"{phase}_seconds": phases[phase] for phase in phases},
            "bytes_in": 8000.0 * len(blocks),
            "sums": len(blocks),
            "work_seconds": sum(blocks),
            "longest_seconds": max(blocks),
        }
