"""The guard on global generators: who draws from one is named, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Context, LocalRun, Net, Pooled, Tensors
from engine.base.errors import ClientError, UnkeyedDraw
from engine.base.part_calls import GlobalStates, on_the_server
from engine.client.global_generators import drawing_module
from engine.client.steps.drawing_modules import watch
from tests.support.bench import CPU, Bench
from tests.support.drawing import LAYERS, drawing, registered
from tests.support.tiny import drive, experiment, open_driver


def numpy_draw() -> float:
    return np.random.rand()  # noqa: NPY002 (what is to be found)


DRAWS = {"torch": lambda: torch.rand(1), "numpy": numpy_draw}


class NumpyNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 1e-3 * numpy_draw())


@dataclass(frozen=True)
class InLoss(FedAvg):
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return super().loss(net, batch, received, state) * (1 + 1e-3 * torch.rand(()))


@dataclass(frozen=True)
class InUpload(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end * (1 + 1e-3 * numpy_draw())}, {}


@dataclass(frozen=True)
class InAggregate(FedAvg):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return {**server, "weights": pooled.mean["weights"] + torch.rand(())}


@dataclass(frozen=True)
class InPredict(FedAvg):
    def predict(self, net: Net, x: Tensor) -> Tensor:
        return net(x) + numpy_draw()


def refused(folder: Path, executor: str, **changes: Any) -> str:
    """The sentence that a run ends with, though clients that fail are dropped."""
    execution = {"executor": executor, "block": 3, "workers": 2}
    with pytest.raises(UnkeyedDraw) as found:
        drive(folder, experiment(rounds=1, execution=execution, participation={"on_client_error": "drop"}, **changes))
    assert not isinstance(found.value, ClientError)
    assert found.value.exit_code == 1
    return str(found.value)


@pytest.mark.parametrize("executor", ["loop", "block"])
def test_a_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """Kills: noise of numpy's in silence; an error without its place; a client that is dropped for it."""
    monkeypatch.setitem(LAYERS, "numpy", lambda: nn.Sequential(NumpyNoise()))
    told = refused(tmp_path, executor, model=registered(monkeypatch, "dropout", "numpy"))
    assert "round 1: the network's module body.4.0 (NumpyNoise) draws from numpy's global generator" in told


@pytest.mark.parametrize(
    ("kind", "executor", "told"),
    [
        (InLoss, "loop", "round 1: InLoss, and no module of the network, draws from torch's global generator"),
        (InLoss, "block", "InLoss, or a module of the network, draws random numbers in a way that cannot be mapped"),
        (InUpload, "block", "round 1: InUpload, and no module of the network, draws from numpy's global generator"),
        (InAggregate, "loop", "round 1: InAggregate.aggregate draws from torch's global generator"),
        (InPredict, "loop", "InPredict, and no module of the network, draws from numpy's global generator"),
    ],
)
def test_an_algorithm_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, executor: str, told: str
) -> None:
    """Kills: a hook, on a client or on the server, that draws without a key."""
    monkeypatch.setitem(ALGORITHMS, "draws", kind)
    assert told in refused(tmp_path, executor, algorithm={"name": "draws"})


@pytest.mark.parametrize("who", DRAWS)
def test_states(who: str) -> None:
    """Kills: a state that is not looked at; one that is looked at through another."""
    before = GlobalStates.now(CPU)
    assert before.moved(GlobalStates.now(CPU)) == ""
    DRAWS[who]()
    assert before.moved(GlobalStates.now(CPU)) == f"{who}'s global generator"
    with pytest.raises(UnkeyedDraw, match=f"^this draws from {who}'s"), on_the_server("this"):
        DRAWS[who]()


def test_another_generator_of_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: memory of one generator read as another's."""
    present = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        np.random.set_bit_generator(np.random.PCG64(3))  # pyright: ignore[reportAttributeAccessIssue]
        test_states("numpy")
    finally:
        np.random.set_bit_generator(present)  # pyright: ignore[reportAttributeAccessIssue]


def test_draws_between_rounds_are_nobodys_affair(tmp_path: Path) -> None:
    """Kills: a user's code between rounds taken for the run's; a guard that moves what it guards."""
    driver = open_driver(tmp_path, experiment(rounds=2))
    driver.next()
    for draw in DRAWS.values():
        draw()
    before = GlobalStates.now()
    driver.next()
    assert before.moved(GlobalStates.now()) == ""
    driver.close()


def test_the_search_accuses_nobody_else() -> None:
    """Kills: the module around the one that draws, or one whose draws have keys; a search that leaves its traces."""
    bench = Bench(drawing("dropout", "gauss")())
    body: Any = bench.net.model.body
    assert drawing_module(bench.net, CPU) is None
    hooks = [len(module._forward_hooks) for module in bench.net.model.modules()]
    body.append(nn.Sequential(nn.Identity(), NumpyNoise()))
    bench.net.train(False)
    assert drawing_module(bench.net, CPU) == "body.5.1 (NumpyNoise)"
    assert [len(m._forward_hooks) for name, m in bench.net.model.named_modules() if "body.5" not in name] == hooks
    assert not bench.net.model.training
    assert watch(body)
