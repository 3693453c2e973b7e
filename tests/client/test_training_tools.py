"""Training beside the rounds: steps that are sent ahead, and captured where the executor captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.algorithm import Tensors, TrainingTools, seeds
from engine.client.messages import ComputeJob
from engine.client.training_tools import FlatTrainingTools
from engine.client.vmap.cuda_graph import Programs
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.tiny import experiment, open_driver

ROWS = [4] * 6 + [3]  # of each step


class Recorder:
    """Replays by doing the work again."""

    def __init__(self) -> None:
        self.warmed = self.recorded = self.replayed = 0

    def warm_up(self, work: Callable[[], None]) -> None:
        self.warmed += 1
        work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def fitted(recorder: Recorder | None, asked: list[int] | None = None) -> list[Tensor]:
    """A line through rows that differ from step to step."""
    tools = FlatTrainingTools(Bench(MLP(hidden=(3,))).net, lambda purpose: seeds.generator(0, purpose, 1))
    tools._recorder = None if recorder is None else lambda: recorder
    leaves = [torch.zeros(5, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
    for leaf in leaves:
        leaf.requires_grad_()
    rng = tools.rng("rows")

    def inputs() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in ROWS:
            x = torch.randn(rows, 5, generator=rng, dtype=torch.float64)
            if asked is not None:
                asked.append(rows)
            yield x, torch.arange(rows)

    def loss(x: Tensor, number: Tensor) -> Tensor:
        return (x @ leaves[0] + leaves[1] - number[:, None]).square().mean()

    tools.minimise(loss, leaves, inputs(), 0.1, (0.5, 0.9))
    return leaves


def test_a_captured_step_is_the_step() -> None:
    """Kills: a step of other inputs, one that is run and replayed, a gradient of another leaf, another optimizer."""
    recorder, asked = Recorder(), list[int]()
    plain, captured = fitted(None), fitted(recorder, asked)
    for mine, wanted in zip(captured, plain, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)
    assert (recorder.warmed, recorder.recorded, recorder.replayed) == (2, 1, 5)  # the shorter batch comes once
    assert asked == ROWS
    assert all(leaf.abs().max() > 0.05 for leaf in plain)


def test_a_step_is_adams() -> None:
    """Kills: betas or a rate that do not arrive; a gradient that is added to the one before."""
    leaf = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    theirs = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.02, betas=(0.5, 0.8))
    tools = FlatTrainingTools(Bench(MLP(hidden=(3,))).net, lambda purpose: seeds.generator(0, purpose, 1))
    rows = [(torch.tensor([1.0, -2.0, step], dtype=torch.float64),) for step in range(4)]
    tools.minimise(lambda slope: (slope * (leaf - 1)).sum(), [leaf], rows, 0.02, (0.5, 0.8))
    for (slope,) in rows:
        optimizer.zero_grad()
        (slope * (theirs - 1)).sum().backward()
        optimizer.step()
    assert torch.equal(leaf, theirs)


@pytest.mark.parametrize("far", [False, True])
def test_the_server_trains_as_its_executor_does(monkeypatch: pytest.MonkeyPatch, far: bool) -> None:
    """Kills: work beside rounds that is never captured, or is on a CPU, where torch's own optimizers do it."""
    bench = Bench(MLP(hidden=(3,)))
    bench.trainer.programs = Programs(Recorder)
    if far:
        bench.net.weights = bench.net.weights.to("meta")
    made = bench.trainer.tools(lambda purpose: seeds.generator(0, purpose, 1))._recorder
    assert (made is Recorder) == far


def asked_twice(tools: TrainingTools, shared: Tensors) -> Tensors:
    return {name: torch.rand(2, generator=tools.rng("noise")) for name in ("first", "second")}


def test_the_servers_draws_go_on(tmp_path: Path) -> None:
    """Kills: a generator that begins anew each time it is asked for, so that dropout has one mask for all steps."""
    driver = open_driver(tmp_path, experiment())
    worker: Any = driver.pool._workers[0]  # type: ignore[attr-defined]
    server = driver.lineage.server
    worker.receive({name: server[name] for name in ("weights", "buffers")})
    found = worker.compute(ComputeJob(asked_twice, round=1))
    rng = seeds.generator(driver.experiment.seed, "noise", 1)
    assert torch.equal(torch.cat((found["first"], found["second"])), torch.rand(4, generator=rng))
    driver.close()
