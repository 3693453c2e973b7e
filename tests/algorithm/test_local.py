"""The section ``local``: rates by rounds and by steps, and what steps put into a delta."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from engine.algorithm import Local, accumulated, accumulation

ROUNDS = 12
Scheduler = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
SCHEDULES: dict[str, tuple[dict[str, Any], Scheduler]] = {
    "constant": ({}, lambda own: lr_scheduler.ConstantLR(own, 1.0)),
    "exponential": ({"lr_decay": 0.9}, lambda own: lr_scheduler.ExponentialLR(own, 0.9)),
    "step": ({"lr_schedule": "step", "lr_period": 5, "lr_decay": 0.1}, lambda own: lr_scheduler.StepLR(own, 5, 0.1)),
    "cosine": (
        {"lr_schedule": "cosine", "lr_period": 11, "lr_end": 0.05},
        lambda own: lr_scheduler.CosineAnnealingLR(own, 11, 0.05 * 0.3),
    ),
    "linear": (
        {"lr_schedule": "linear", "lr_period": 7, "lr_end": 0.2},
        lambda own: lr_scheduler.LinearLR(own, 1.0, 0.2, 7),
    ),
    "warm-up, then linear": (
        {"lr_schedule": "linear", "lr_period": 4, "lr_warmup": 3},
        lambda own: lr_scheduler.SequentialLR(
            own, [lr_scheduler.LinearLR(own, 1 / 3, 1.0, 2), lr_scheduler.LinearLR(own, 1.0, 0.01, 4)], [3]
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_torch(name: str) -> None:
    """Kills: a schedule that is a round early or late, goes on after its period, or warms up to another rate."""
    fields, scheduler = SCHEDULES[name]
    local = Local(lr=0.3, **fields)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step of the optimizer comes between
        theirs, rates = scheduler(optimizer), list[float]()
        for _ in range(ROUNDS):
            rates.append(optimizer.param_groups[0]["lr"])
            theirs.step()
    assert [local.lr_at(round) for round in range(1, ROUNDS + 1)] == pytest.approx(rates, abs=1e-15)
    by_step = Local(lr=0.3, lr_by="step", **fields)
    assert {by_step.lr_at(round) for round in range(1, ROUNDS + 1)} == {0.3}
    assert (0.3 * by_step.factor(torch.arange(ROUNDS))).tolist() == pytest.approx(rates, abs=1e-15)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_with_a_schedule_are_counted_by_what_they_put_into_a_delta(momentum: float, nesterov: bool) -> None:
    """Kills: FedNova's and SCAFFOLD's normalisation by the number of steps where rates differ between them."""
    nesterov = nesterov and momentum > 0
    local = Local(lr=0.5, lr_by="step", lr_decay=0.8, lr_warmup=2, momentum=momentum, nesterov=nesterov)
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=momentum, nesterov=nesterov)
    for factor in local.factor(torch.arange(7)).tolist():
        optimizer.param_groups[0]["lr"], weight.grad = 0.5 * factor, torch.ones_like(weight)
        optimizer.step()
    assert accumulated(local, 7) == pytest.approx(-weight.item() / 0.5, rel=1e-14)
    plain = accumulation(momentum, 7, nesterov)
    assert accumulated(local.of_phase(0.1), 7) == plain != accumulated(local, 7)


REFUSED: dict[str, dict[str, Any]] = {
    "momentum=0.9: is of sgd and rmsprop, not of adam": {"optimizer": "adam", "momentum": 0.9},
    "nesterov=True: needs SGD with momentum": {"nesterov": True},
    "lr_end=0.1: is not of local.lr_schedule=exponential": {"lr_end": 0.1},
    "lr_decay=0.9: is not of local.lr_schedule=cosine": {
        "lr_schedule": "cosine",
        "lr_period": 3,
        "lr_decay": 0.9,
    },
    "lr_period=None: is needed for local.lr_schedule=step; set it to a number of rounds": {
        "lr_schedule": "step",
        "lr_decay": 0.5,
    },
    "lr_period=3: is not of local.lr_schedule=exponential; leave it out": {"lr_period": 3},
}


@pytest.mark.parametrize("told", REFUSED)
def test_fields_that_would_be_passed_over_are_refused(told: str) -> None:
    """Kills: momentum of Adam, or the decay of a cosine, that is written down and never used."""
    with pytest.raises(ValueError, match=told):
        Local(**REFUSED[told])
