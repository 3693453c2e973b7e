"""A scaling study by a made-up clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.experiment import Experiment
from fedskew.lab.scaling.law import Law
from fedskew.lab.scaling.plan import Plan, Setting, Wanted, make_plan
from fedskew.lab.scaling.study import Turn

LAW = Law(40.0, 0.05, 0.002)
MACHINE = {"nodes": 1, "cpus": 8.0, "gpus": 0.0, "hardware": "AVX2", "torch": "2.0", "fedskew": "0"}
SMALL: dict[str, Any] = {
    "name": "small",
    "data": {"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
    "partition": {"name": "iid", "clients": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch_size": 10, "lr": 0.05},
    "participation": {"count": 8},
    "execution": {"actors": 0, "device": "cpu"},
}


def plan(actors: Sequence[int] = (0, 1, 2, 4, 8), cohort: int = 8, holders: int = 20, **wanted: Any) -> Plan:
    return make_plan(Experiment(**SMALL), cohort, holders, actors, Wanted(**wanted))


class Clock:
    """A bench whose rounds take what a law says, in proportion to clients; each turn a little longer than the last."""

    def __init__(self, dies_after: int | None = None, noise: float = 0.01) -> None:
        self.turns: list[Setting] = []
        self.opened_groups: list[list[Setting]] = []
        self._dies_after, self._noise = dies_after, noise

    def load(self) -> float:
        return 0.5

    @contextmanager
    def opened(self, settings: Sequence[Setting]) -> Iterator[Mapping[Setting, Any]]:
        self.opened_groups.append(list(settings))
        yield {setting: Pace(self, setting) for setting in settings}

    def measure(self, setting: Setting) -> Turn:
        if len(self.turns) == self._dies_after:
            raise KeyboardInterrupt
        repeat = self.turns.count(setting)
        self.turns.append(setting)
        rate = (LAW(setting.actors) if setting.actors else 50.0) * 8 / setting.clients
        blocks = 4 if setting.block == "auto" else math.ceil(setting.clients / setting.block)
        rounds = 10
        seconds = rounds / rate * math.exp(self._noise * (repeat - 2))
        parameters = {"logistic": 7_850, "mlp": 6_370, "cnn": 1_663_370}[setting.model]
        return Turn(
            seconds,
            rounds,
            samples=rounds * setting.clients * 10,
            blocks=blocks,
            parameters=parameters,
            executor="loop",
        )


class Pace:
    def __init__(self, clock: Clock, setting: Setting) -> None:
        self._clock, self._setting = clock, setting

    def turn(self, seconds: float) -> Turn:
        assert seconds == 2.0
        return self._clock.measure(self._setting)
