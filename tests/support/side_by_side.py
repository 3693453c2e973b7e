"""The same clients trained one by one and in one pass, and what they come to compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.client.steps.client_round import ClientResult, ClientTask
from engine.client.trainer import Trainer
from engine.experiment import Experiment
from tests.support.tiny import assignment, dataset, open_driver

# Batches of eight: four clients with full ones, short ones of four rows, a whole client in one, a single row.
RAGGED = (12, 1, 8, 12, 5, 20)
FIRST_COHORT = (0, 1, 4)  # the others are newcomers in round 2


def second_round(folder: Path, config: Experiment) -> tuple[Trainer, list[ClientTask], list[ClientResult]]:
    """Of a run by the loop: its trainer, what it is given for the clients of round 2, and what they come to.

    Some of these have a state and others get their first, the server's entries have moved, and rows are ragged.
    """
    sizes = list(RAGGED)
    config = config.replace({"execution.workers": 1})  # so that one trainer gets all visits
    driver = open_driver(folder, config, dataset(sum(sizes)), assignment(sizes))
    cohorts = {1: FIRST_COHORT, 2: tuple(range(len(sizes)))}
    driver.federation.cohort = cohorts.__getitem__  # type: ignore[method-assign]
    driver.next()
    trainer: Trainer = driver.pool._workers[0].trainer  # type: ignore[attr-defined]
    visits, found = list[ClientTask](), list[ClientResult]()
    train = trainer.train

    def spy(visit: ClientTask, probe: bool) -> ClientResult:
        visits.append(visit)
        found.append(train(visit, probe))
        return found[-1]

    trainer.train = spy  # type: ignore[method-assign]
    driver.next()
    trainer.train = train  # type: ignore[method-assign]
    driver.pool.close()
    return trainer, visits, found


def one_by_one(trainer: Trainer, visits: Sequence[ClientTask]) -> list[ClientResult]:
    return [trainer.train(visit, probe=True) for visit in visits]


def together(trainer: Trainer, visits: Sequence[ClientTask]) -> list[ClientResult]:
    return trainer.train_together(visits, probe=True)


def assert_alike(found: Sequence[ClientResult], wanted: Sequence[ClientResult], tolerance: float) -> None:
    """Everything that a client's round comes to, numbers w within ``tolerance`` max(1, |w|)."""
    assert len(found) == len(wanted)
    for client, (one, other) in enumerate(zip(found, wanted, strict=True)):
        for name in ("num_examples", "steps", "weight"):
            assert getattr(one, name) == getattr(other, name), (client, name)
        for name in ("loss_before", "loss_after"):
            a, b = getattr(one, name), getattr(other, name)
            assert (a is None) == (b is None), (client, name)
            assert a is None or abs(a - b) <= tolerance * max(1.0, abs(b)), (client, name, a, b)
        numbers, wanted_numbers = tensors(one), tensors(other)
        assert numbers.keys() == wanted_numbers.keys(), client
        for name, tensor in numbers.items():
            reference = wanted_numbers[name]
            assert (tensor.dtype, tensor.shape) == (reference.dtype, reference.shape), (client, name)
            gap = (tensor.double() - reference.double()).abs() / reference.double().abs().clamp(min=1)
            assert not tensor.numel() or gap.max() <= tolerance, (client, name, float(gap.max()))


def tensors(trained: ClientResult) -> dict[str, Tensor]:
    """All that a client's round comes to, by name."""
    groups = {"upload": trained.upload, "state": trained.new_state, "personal": trained.personal._asdict()}
    found = {f"{group}/{name}": tensor for group, entries in groups.items() for name, tensor in entries.items()}
    return {**found, "weights": trained.weights, "buffers": trained.buffers}


def single_steps(phases: Any) -> Any:
    """A ``phases`` hook with one step in each phase of the given one."""
    return lambda *args: tuple(replace(phase, epochs=None, steps=1) for phase in phases(*args))
