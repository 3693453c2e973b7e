"""Small runs on the pretended card, and how far they are from the same on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from algorithms import ALGORITHMS
from algorithms.distillation import Distillation
from engine.algorithm import PostTraining
from engine.experiment import Execution, Experiment
from tests.support import canaries
from tests.support.outcomes import SHORT, come_to
from tests.support.pretended_card import Counts, card, why_not
from tests.support.tiny import Driven, assignment, drive, experiment_of

MEASURED = ("loss", "accuracy", "loss_before", "loss_after", "local_accuracy")  # columns of a run's tables
SIZES = (20, 13, 7, 1, 16)  # of clients
EXECUTORS = ("loop", "block", "graph", "block_graph")
CAPTURING = ("graph", "lanes", "block_graph")
LANES = {"executor": "graph", "lanes": 2, "block": 4}  # what "lanes" stands for where executors are named
# Algorithms whose loop, too, sums in another order on a card, and why; that of all others does the same operations.
IN_ANOTHER_ORDER = {"cbfl": "images and their teacher's answers are made for many steps at once"}
ROUNDING = 1e-9  # in float64, which Adam may magnify
FEW: dict[str, dict[str, Any]] = {
    **SHORT,
    "pflego": {"tau": 4},
    **{name: {"epochs": 1} for name, kind in ALGORITHMS.items() if issubclass(kind, Distillation)},
}


def settings(name: str, executor: str = "loop", device: str = "cpu", **changes: Any) -> Experiment:
    """Two short rounds of three clients in float64; one round where the algorithm itself has none."""
    own = changes.pop("execution", {})
    execution = {"precision": "float64", "device": device, **execution_of(executor), **own}
    rounds = 1 if issubclass(ALGORITHMS[name], PostTraining) else 2
    base = {"rounds": rounds, "participation": {"count": 3}, "evaluation": {"every": rounds}}
    changes["local"] = {"epochs": 1, **changes.get("local", {})}
    fields = {**FEW.get(name, {}), **changes.pop("fields", {})}
    return experiment_of(name, fields, **{**base, **changes, "execution": execution})


def execution_of(executor: str) -> dict[str, Any]:
    """Fields of the section: of an executor, or of ``graph`` with lanes."""
    return LANES if executor == "lanes" else {"executor": executor}


def most(name: str, executor: str) -> float:
    """How far from the CPU's loop a run on the card may be."""
    return 0.0 if executor == "loop" and name not in IN_ANOTHER_ORDER else ROUNDING


@contextmanager
def one_canary() -> Iterator[None]:
    """Within, a run on the card has no canary of its own among its counts: those are computed at once."""
    with canaries.one_canary() as canary:
        if not why_not():
            with card():
                for precision in ("float32", "float64"):
                    canary(Execution(device="cuda", precision=precision, actors=0))
        yield


def on_cpu(folder: Path, name: str, **changes: Any) -> Driven:
    return drive(folder, settings(name, **changes), parts=assignment(SIZES))


def on_card(folder: Path, name: str, executor: str, **changes: Any) -> tuple[Driven, Counts]:
    """A run on the card, and what it asked of it."""
    with card() as present:
        return drive(folder, settings(name, executor, "cuda", **changes), parts=assignment(SIZES)), present.counts


def gap(one: Driven, other: Driven) -> float:
    """The largest difference of what two runs have come to, of their clients' losses and of their evaluations."""
    pairs = [(come_to(one), come_to(other)), (one.server["buffers"].double(), other.server["buffers"].double())]
    for table in ("clients", "evaluations", "personal"):
        columns = [name for name in MEASURED if name in one.folder.frame(table)]
        frames = [run.folder.frame(table)[columns].to_numpy(float) for run in (one, other)]
        pairs.append((torch.tensor(frames[0].copy()), torch.tensor(frames[1].copy())))
    found = 0.0
    for mine, others in pairs:
        assert mine.shape == others.shape and torch.equal(mine.isnan(), others.isnan())
        if mine.numel():
            found = max(found, float((mine - others).nan_to_num(0.0).abs().max()))
    return found
