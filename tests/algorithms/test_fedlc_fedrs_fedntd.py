"""FedLC, FedRS and FedNTD: their losses by hand, and whole runs against the same losses written row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.fedlc import FedLC
from algorithms.fedntd import FedNTD, not_true
from algorithms.fedrs import FedRS
from engine.base.errors import ConfigError
from tests.support.full_batches import CLASSES, drive, experiment, federation
from tests.support.plain_torch import Objective, Own, averaged, close, cross_entropy, logits


def batch_of(labels: list[int], counts: list[int], x: list[list[float]]) -> Any:
    """A batch whose images are the logits themselves, see :class:`Identity`."""
    client = SimpleNamespace(class_counts=torch.tensor(counts))
    return SimpleNamespace(x=torch.tensor(x, dtype=torch.float64), y=torch.tensor(labels), client=client)


class Identity:
    """A net that gives its input, and at other weights those weights, whatever the input."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def at(self, weights: Tensor, buffers: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: weights.expand_as(x)


NET: Any = Identity()


def test_fedlc_by_hand() -> None:
    """Kills: a margin of the wrong sign or power, one that is not scaled by tau.

    16 rows of class 0 and 1 of class 1: margins tau/2 and tau. With equal logits a row of class 1 costs log(1 + e) at
    tau = 2, and one of class 0 log(1 + 1/e).
    """
    found = [FedLC(tau=2.0).loss(NET, batch_of([y], [16, 1], [[0.3, 0.3]]), {}, {}).item() for y in (0, 1)]
    assert found == pytest.approx([math.log(1 + 1 / math.e), math.log(1 + math.e)], rel=1e-12)


def test_fedlc_leaves_out_what_a_client_lacks() -> None:
    """Kills: missing classes with a finite margin, a gradient that is not a number there."""
    batch = batch_of([0], [4, 1, 0], [[1.0, 0.5, 9.0]])
    batch.x.requires_grad_()
    loss = FedLC(tau=1e-9).loss(NET, batch, {}, {})
    (grad,) = torch.autograd.grad(loss, batch.x)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.5)), rel=1e-6)
    assert grad[0, 2] == 0 and torch.isfinite(grad).all()


def test_fedrs_by_hand() -> None:
    """Kills: the factor on the client's own classes, a factor on probabilities, alpha and 1 - alpha exchanged.

    Class 1 is missing: with alpha = 1/4 the logits (2, 8) count as (2, 2), and the loss is log 2.
    """
    assert FedRS(alpha=0.25).loss(NET, batch_of([0], [5, 0], [[2.0, 8.0]]), {}, {}).item() == pytest.approx(math.log(2))
    assert FedRS(alpha=0.25).loss(NET, batch_of([0], [5, 1], [[2.0, 2.0]]), {}, {}).item() == pytest.approx(math.log(2))


def test_not_true_classes() -> None:
    """Kills: another class left out than the row's own, another order of the rest."""
    scores = torch.arange(8.0).view(2, 4)
    assert not_true(scores, torch.tensor([0, 2])).tolist() == [[1, 2, 3], [4, 5, 7]]


def test_fedntd_by_hand() -> None:
    """Kills: the divergence in the other direction, one over all classes, a temperature on one side alone.

    Two classes besides the row's own. The teacher is at (3/4, 1/4) at temperature 2 and the client at (1/2, 1/2):
    KL = 3/4 log(3/2) + 1/4 log(1/2). The client's cross entropy of three equal logits is log 3.
    """
    received = {"weights": torch.tensor([7.0, 2 * math.log(3), 0.0], dtype=torch.float64), "buffers": torch.empty(0)}
    loss = FedNTD(beta=0.5, tau=2.0).loss(NET, batch_of([0], [1, 0, 0], [[1.0, 1.0, 1.0]]), received, {})
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert loss.item() == pytest.approx(math.log(3) + 0.5 * divergence, rel=1e-9)


def fedlc(tau: float) -> Objective:
    def objective(weights: Tensor, received: Tensor, own: Own) -> Tensor:
        scores, has = logits(weights, own.x), [c for c in range(CLASSES) if own.counts[c]]
        margins = {c: tau / own.counts[c] ** 0.25 for c in has}
        costs = [
            torch.stack([(row[c] - margins[c]).exp() for c in has]).sum().log() - (row[y] - margins[y])
            for row, y in zip(scores, own.y, strict=True)
        ]
        return torch.stack(costs).mean()

    return objective


def fedrs(alpha: float) -> Objective:
    def objective(weights: Tensor, received: Tensor, own: Own) -> Tensor:
        factors = torch.tensor([1.0 if count else alpha for count in own.counts], dtype=torch.float64)
        return cross_entropy(logits(weights, own.x) * factors, own.y)

    return objective


def fedntd(beta: float, tau: float) -> Objective:
    def objective(weights: Tensor, received: Tensor, own: Own) -> Tensor:
        mine, taught = logits(weights, own.x), logits(received, own.x)
        costs = []
        for row, before, y in zip(mine, taught, own.y, strict=True):
            others = [c for c in range(CLASSES) if c != y]
            local, kept = (torch.softmax(one[others] / tau, 0) for one in (row, before))
            costs.append((kept * (kept / local).log()).sum())
        return cross_entropy(mine, own.y) + beta * torch.stack(costs).mean()

    return objective


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize(
    ("fields", "objective"),
    [
        ({"name": "fedavg"}, fedrs(1.0)),
        ({"name": "fedlc", "tau": 0.7}, fedlc(0.7)),
        ({"name": "fedrs", "alpha": 0.3}, fedrs(0.3)),
        ({"name": "fedntd", "beta": 0.8, "tau": 2.0}, fedntd(0.8, 2.0)),
    ],
    ids=["fedavg", "fedlc", "fedrs", "fedntd"],
)
def test_a_run_is_that_of_the_loss_written_out(
    tmp_path: Path, fields: dict[str, Any], objective: Objective, executor: str
) -> None:
    """Kills: counts of another client or of the batch, a teacher that is trained along or is last round's, an executor
    of its own mind; with FedAvg, an oracle that is none."""
    data = federation()
    run = drive(tmp_path, experiment(fields, execution={"executor": executor}), data)
    close(run.server["weights"], averaged(run, data, objective))
    assert (run.server["weights"] - run.first["weights"]).abs().max() > 0.01


@pytest.mark.parametrize(
    ("fields", "other"),
    [
        ({"name": "fedlc", "tau": 0.7}, fedlc(0.8)),
        ({"name": "fedrs", "alpha": 0.3}, fedrs(0.7)),
        ({"name": "fedntd", "beta": 0.8, "tau": 2.0}, fedntd(0.8, 1.0)),
    ],
    ids=["fedlc", "fedrs", "fedntd"],
)
def test_other_losses_are_told_apart(tmp_path: Path, fields: dict[str, Any], other: Objective) -> None:
    """Kills: a setting in which the terms are too small to be seen."""
    data = federation()
    run = drive(tmp_path, experiment(fields), data)
    assert (run.server["weights"] - averaged(run, data, other)).abs().max() > 1e-4


def test_bad_values_are_refused() -> None:
    """Kills: a missing check of any of these methods, an error that does not say which field and what it must be."""
    bad: dict[str, dict[str, Any]] = {
        "feddyn": {"alpha": 0.0, "weighting": "rows"},
        "fedntd": {"beta": -1.0, "tau": 0.0},
        "fedlc": {"tau": -0.1},
        "fedrs": {"alpha": 1.5},
        "fedrod": {"gamma": -1.0, "personal_epochs": -1},
        "fedadam": {"server_lr": 0.0, "beta1": 1.0},
        "fedyogi": {"beta2": -0.1, "tau": 0.0},
        "fedproto": {"lam": -0.5},
        "fedbn": {"server_lr": 0.0},
        "fedcm": {"alpha": 0.0},
        "fedacg": {"server_momentum": 1.0, "mu": -0.1},
        "fedexp": {"epsilon": 0.0},
        "qfedavg": {"q": -1.0, "weighting": "rows"},
        "feddecorr": {"beta": -1.0, "form": "printed"},
        "fedetf": {"scale": 0.0, "gamma": -1.0},
        "lg_fedavg": {"layers": 0},
        "apfl": {"alpha": 1.5},
    }
    for name, fields in [*bad.items(), ("fedrs", {"alpha": -0.1})]:
        for field, value in fields.items():
            with pytest.raises(ConfigError, match=rf"^algorithm\.{field}={value}: must be .+"):
                ALGORITHMS.build({"name": name, field: value})
