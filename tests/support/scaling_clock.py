"""A scaling study by a made-up clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.experiment import Experiment
from fedskew.lab.scaling.law import Law
from fedskew.lab.scaling.study import Setting, Study

LAW = Law(40.0, 0.05, 0.002)
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
    **machine: Any,
) -> Study:
    return Study(Experiment(**SMALL), cohort, actors, {**MACHINE, **machine}, turns, seconds, folder)


class Clock:
    """Measures rounds that take what a law says, in proportion to clients; each turn a little longer than the last."""

    def __init__(self, dies_after: int | None = None, noise: float = 0.01) -> None:
        self.turns: list[Setting] = []
        self._dies_after, self._noise = dies_after, noise

    def __call__(self, experiment: Experiment, seconds: float) -> tuple[float, int]:
        assert seconds == 2.0
        if len(self.turns) == self._dies_after:
            raise KeyboardInterrupt
        setting = Setting(experiment.execution.actors, experiment.participation.count or 0)
        repeat = self.turns.count(setting)
        self.turns.append(setting)
        rate = (LAW(setting.actors) if setting.actors else 50.0) * 8 / setting.clients
        return 10 / rate * math.exp(self._noise * (repeat - 2)), 10
