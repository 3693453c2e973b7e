"""What no trained weight changes, made ahead of the steps that need it: by rows, in step order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import cbfl
from algorithms.fedavg import FedAvg
from engine.algorithm import Net, Tensors
from engine.client.steps import step_constants
from engine.client.steps.step_constants import with_constants
from engine.client.steps.step_inputs import Inputs
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.tiny import assignment, drive, experiment

SIZES = [(2, 3), (2, 1), (1, 4), (2, 3)]  # clients and rows of each step


@dataclass(frozen=True)
class Doubles(FedAvg):
    seen: list[int] = field(default_factory=list)

    def step_constants(self, net: Net, drawn: Any, received: Tensors, context: Any) -> Tensors:
        assert not torch.is_grad_enabled()
        self.seen.append(len(drawn["noise"]))
        return {"twice": 2 * drawn["noise"].sum(1), "shifted": drawn["labels"] + received["by"]}


def steps(stacked: bool) -> list[Inputs]:
    made, rng = [], torch.Generator().manual_seed(0)
    for size in SIZES:
        lead = size if stacked else size[1:]
        drawn = {"noise": torch.randn(*lead, 5, generator=rng), "labels": torch.randint(9, lead, generator=rng)}
        made.append(Inputs({"rows": torch.zeros(*lead)}, drawn))
    return made


@pytest.mark.parametrize(("limit", "groups"), [(1, [1, 1, 1, 1]), (9, [2, 2]), (1000, [4])])
@pytest.mark.parametrize("stacked", [False, True])
def test_each_step_gets_its_own(monkeypatch: pytest.MonkeyPatch, stacked: bool, limit: int, groups: list[int]) -> None:
    """Kills: rows of another step or client, a last group that is left out, more rows at once than are asked for."""
    algorithm, net = Doubles(), Bench(MLP(hidden=(3,))).net
    given, total = steps(stacked), 0
    make: Callable[[Tensors], Any] = lambda drawn: algorithm.step_constants(net, drawn, {"by": torch.tensor(7)}, None)  # noqa: E731
    with torch.no_grad():
        found = list(step_constants._made(given, make, limit, stacked))
    assert len(found) == len(given)
    for step, before in zip(found, given, strict=True):
        assert torch.equal(step.drawn["shifted"], before.drawn["labels"] + 7)
        torch.testing.assert_close(step.drawn["twice"], 2 * before.drawn["noise"].sum(-1))
        assert step.drawn["noise"] is before.drawn["noise"]
        total += before.drawn["labels"].numel()
    assert sum(algorithm.seen) == total
    assert len(algorithm.seen) == len(groups) if limit != 9 else max(algorithm.seen) <= 9


def test_a_processor_makes_each_steps_alone() -> None:
    """Kills: steps that are made together where bits would move; a hook that is called where nothing was drawn, or that
    nobody has."""
    algorithm, bench = Doubles(), Bench(MLP(hidden=(3,)))
    rest = bench.net, {"by": torch.tensor(7)}, bench.context, nullcontext
    assert len(list(with_constants(steps(False), algorithm, *rest))) == len(SIZES)
    assert algorithm.seen == [rows for _, rows in SIZES]
    plain = [replace(step, drawn={}) for step in steps(False)]
    assert with_constants(plain, algorithm, *rest) is plain
    given = steps(False)
    assert with_constants(given, FedAvg(), *rest) is given


@pytest.mark.parametrize(("executor", "passes"), [("loop", 3 * 4), ("block", 4)])
def test_cbfls_images_are_made_once_for_all_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, passes: int
) -> None:
    """Kills: a frozen network that runs within the mapped loss, for each client or once more for each step."""
    calls: list[int] = []
    original = cbfl.images

    def counted(spec: Any, weights: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
        calls.append(len(labels))
        return original(spec, weights, noise, labels)

    monkeypatch.setattr(cbfl, "images", counted)
    settings = experiment(
        algorithm={"name": "cbfl"},
        rounds=1,
        participation={"count": 3},
        local={"steps": 4},
        execution={"executor": executor, "block": 3},
    )
    drive(tmp_path, settings, parts=assignment([16] * 6))
    assert len(calls) == passes and len(set(calls)) == 1
