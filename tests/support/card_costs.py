"""What a step and a round ask of a card: counted in a round in which nothing is done for the first time.

Four clients of 16 rows take part in every round, with batches of 8. A round in which each takes two steps is counted,
and one in which each takes four: their difference is the cost of steps, what the first has beside its own steps is the
cost of the round. Both are exact, for nothing depends on time or on values.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine.experiment import Experiment
from tests.support.on_card import CAPTURING, EXECUTORS, execution_of
from tests.support.pretended_card import Counts, card
from tests.support.tiny import SUITED, assignment, dataset, experiment, open_driver

CLIENTS, ROWS, BATCH = 4, 16, 8
STEPS = CLIENTS * ROWS // BATCH  # of the shorter round, all clients together
IMAGE = (1, 8, 8)

GENERATOR = {"name": "cbfl", **SUITED["cbfl"], "gamma": 1.0, "refresh": 100}  # trained before the first round alone


@dataclass(frozen=True)
class Method:
    """An experiment whose costs are told."""

    algorithm: dict[str, Any]
    executors: tuple[str, ...] = EXECUTORS
    local: dict[str, Any] = field(default_factory=dict)
    begins: int = 1  # the first round whose steps are those of all later ones
    # The field that makes a round longer, and its two values: by two steps of each client.
    longer: tuple[str, Any, Any] = ("local.epochs", 1, 2)

    def steady(self, executor: str) -> int:
        """The first round in which nothing is done for the first time, or captured."""
        return self.begins + (2 if executor in CAPTURING else 1)


# A row without steps is told as a round.
METHODS: dict[str, Method] = {
    "fedavg": Method({"name": "fedavg"}, executors=(*EXECUTORS, "lanes")),
    "fedavg, crop_flip": Method({"name": "fedavg"}, local={"augment": "crop_flip"}),
    "scaffold": Method({"name": "scaffold"}, begins=2),
    "moon": Method({"name": "moon"}, begins=2, executors=("loop",)),
    "pflego": Method({"name": "pflego"}, longer=("algorithm.tau", 3, 5)),
    "fedser": Method({"name": "fedser", **SUITED["fedser"]}, executors=("loop",)),
    "cbfl": Method(GENERATOR, executors=(*EXECUTORS, "lanes")),
    "cbfl, crop_flip": Method(GENERATOR, executors=("loop", "block_graph"), local={"augment": "crop_flip"}),
}


@dataclass(frozen=True)
class Cost:
    """How often the host starts an operation, replays a graph, waits for the card, and uploads."""

    launches: float
    replays: float
    waits: float
    uploads: float

    @classmethod
    def of(cls, counts: Counts, share: float = 1) -> Cost:
        return cls(**{name: _short(count * share) for name, count in counts.totals.items()})


@dataclass(frozen=True)
class Row:
    """A line of the table: of a step of one client, and of a round of four clients beside their steps."""

    step: Cost
    round: Cost


NAMES = tuple(one.name for one in fields(Cost))


def rows() -> Iterator[tuple[str, str]]:
    """All rows of the table: what, and the executor."""
    for name, method in METHODS.items():
        for executor in method.executors:
            yield name, executor
    for name in ALONE:
        yield name, "loop"


def measured(name: str, executor: str, model: str = "tiny_norm", lines: bool = False) -> tuple[Row, Counts]:
    """The costs of a row, and the counts of the steps, or of the round where there are none, by line of code.

    lines: whether launches are told by line, too.
    """
    counting = Counting(model, lines)
    if name in ALONE:
        step, round = ALONE[name](counting)
        return Row(Cost.of(step), Cost.of(round)), step if any(step.totals.values()) else round
    method = METHODS[name]
    key, short, long = method.longer
    few, many = (counting.steady(method, executor, {key: value}) for value in (short, long))
    steps = many - few
    return Row(Cost.of(steps, 1 / STEPS), Cost.of(few - steps)), steps


@dataclass(frozen=True)
class Counting:
    """Runs of one model whose rounds are counted."""

    model: str
    lines: bool

    def steady(self, method: Method, executor: str, changes: dict[str, Any]) -> Counts:
        local = {"epochs": 1, "batch_size": BATCH, **method.local}
        round = method.steady(executor)
        config = self.config(executor, method.algorithm, round + 1, local=local)
        return self.counted(config.replace(changes), round)

    def config(self, executor: str, algorithm: dict[str, Any], rounds: int, **changes: Any) -> Experiment:
        base: dict[str, Any] = {
            "rounds": rounds,
            "model": {"name": self.model},
            "execution": {"device": "cuda", "block": CLIENTS, **execution_of(executor)},
            "evaluation": {"every": 0, "client_loss": False, "personal_every": 0},
        }
        return experiment(**{**base, **changes}, algorithm=algorithm)

    def counted(self, config: Experiment, round: int | None) -> Counts:
        """What one round costs; None: what comes after round 1."""
        preflight = patch("engine.worker.preflight.Preflight.due", lambda *_: False)  # of another round
        with tempfile.TemporaryDirectory() as folder, preflight, card() as present:
            present.counts_lines = self.lines
            driver = open_driver(Path(folder), config, dataset(CLIENTS * ROWS, IMAGE), assignment([ROWS] * CLIENTS))
            while driver.round < (1 if round is None else round - 1):
                driver.next()
            before = present.counts.copy()
            driver.next()
            while round is None and not driver.finished:
                driver.next()
            counts = present.counts - before
            driver.close()
        return counts


def _generator(counting: Counting) -> tuple[Counts, Counts]:
    """Of one step of CBFL's generator, and nothing of a round."""
    few, many = (
        counting.counted(counting.config("loop", {**GENERATOR, "refresh": 1, "gen_steps": steps}, 3), 2)
        for steps in (2, 3)
    )
    return many - few, Counts()


def _ccvr(counting: Counting) -> tuple[Counts, Counts]:
    """Of the stage that follows training."""
    stages = [
        {"name": "train", "rounds": 1, "algorithm": {"name": "fedavg"}},
        {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": "ccvr"}},
    ]
    values = counting.config("loop", {"name": "fedavg"}, 1).to_mapping()
    del values["algorithm"], values["rounds"]
    return Counts(), counting.counted(Experiment.from_mapping({**values, "stages": stages}), None)


def _evaluation(counting: Counting) -> tuple[Counts, Counts]:
    """Of the global model on the test set, in one batch."""
    without, with_it = (
        counting.counted(
            counting.config("loop", {"name": "fedavg"}, 3, evaluation={"every": every, "client_loss": False}), 2
        )
        for every in (0, 1)
    )
    return Counts(), with_it - without


# What is measured apart, in the loop: counts of a step, and of what has none.
ALONE: dict[str, Callable[[Counting], tuple[Counts, Counts]]] = {
    "cbfl's generator": _generator,
    "ccvr": _ccvr,
    "evaluation": _evaluation,
}


def told(counts: Counts) -> str:
    """Waits and uploads by line of code, the most first."""
    found = Counter({("wait", *place): count for place, count in counts.waits.items()})
    found.update({("upload", *place): count for place, count in counts.uploads.items()})
    found.update({("launch", *place): count for place, count in counts.operations.items()})
    return "\n".join(f"  {count:5} {kind:6} {what} at {where}" for (kind, what, where), count in found.most_common())


def _short(value: float) -> float:
    return round(value, 3)
