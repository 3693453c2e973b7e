"""Twice the same: which kinds of state beside the dictionaries are found before a run begins, and which are not.

The two lists are the documentation of what the check reaches: each kind with what its sentence names, or the reason.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Context, LocalRun, ModelState, Net, Pooled, Tensors
from engine.base.errors import RunError
from engine.base.part_calls import GlobalStates, settings
from engine.models import MODELS
from tests.support.drawing import LAYERS, WIDTH, registered
from tests.support.tiers import six
from tests.support.tiny import drive, experiment, experiment_of

COUNT, SEEN, CACHE = 0, list[float](), dict[str, float]()
LOCAL, BOX, NUMBERS = threading.local(), SimpleNamespace(count=0), itertools.count()
OF_TORCH, OF_NUMPY = torch.Generator(), np.random.Generator(np.random.PCG64(0))
HELPERS = ModuleType("helpers")
BY_OBJECT = weakref.WeakKeyDictionary[Any, float]()
FILE = Path()


@pytest.fixture(autouse=True)
def as_at_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let this file's state be that of a fresh process before each test, and go afterwards."""
    for name, value in {"COUNT": 0, "SEEN": [], "CACHE": {}, "FILE": tmp_path / "count"}.items():
        monkeypatch.setitem(globals(), name, value)
    monkeypatch.setenv("COUNTED", "0")
    monkeypatch.setattr(Planted, "count", 0)
    once.cache_clear()
    BY_OBJECT.clear()


def size(run: LocalRun) -> float:
    """A number that is each client's own."""
    return float(run.end.abs().sum())


def told_by_a_global(run: LocalRun) -> float:
    global COUNT
    COUNT += 1
    return COUNT


def told_by_a_list(run: LocalRun) -> float:
    SEEN.append(1)
    return len(SEEN)


def counting() -> Callable[[LocalRun], float]:
    count = 0

    def told(run: LocalRun) -> float:
        nonlocal count
        count += 1
        return count

    return told


def told_by_a_default(run: LocalRun, seen: list[int] = []) -> float:  # noqa: B006 (what is to be found)
    seen.append(1)
    return len(seen)


def told_by_its_attribute(run: LocalRun) -> float:
    own = vars(told_by_its_attribute)
    own["count"] = own.get("count", 0) + 1
    return own["count"]


@lru_cache
def once() -> float:
    return SEEN[-1]


def told_by_who_came_first(run: LocalRun) -> float:
    SEEN.append(size(run))
    return once()


def told_by_a_thread(run: LocalRun) -> float:
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return LOCAL.count


def told_by_a_file(run: LocalRun) -> float:
    with FILE.open("a") as file:
        file.write(".")
    return FILE.stat().st_size


def told_by_the_environment(run: LocalRun) -> float:
    os.environ["COUNTED"] = str(int(os.environ["COUNTED"]) + 1)
    return float(os.environ["COUNTED"])


def told_by_an_object(run: LocalRun) -> float:
    BOX.count += 1
    return BOX.count


def told_by_a_helper(run: LocalRun) -> float:
    own = vars(HELPERS)
    own["count"] = own.get("count", 0) + 1
    return own["count"]


class Answering:
    """A proxy, as libraries have them: it has whatever it is asked for, until it is used."""

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            raise RuntimeError("there is nothing behind it yet")
        return self


PROXY = Answering()


@dataclass(frozen=True)
class Planted(FedAvg):
    """FedAvg whose weights depend on what a function tells."""

    count: ClassVar[float] = 0
    told: ClassVar[Any] = staticmethod(lambda run: 0.0)

    def weight(self, run: LocalRun) -> float:
        return super().weight(run) + self.told(run)


def with_told(told: Callable[[LocalRun], float]) -> type[FedAvg]:
    return dataclass(frozen=True)(type("Mine", (Planted,), {"told": staticmethod(told), "__module__": __name__}))


class InClass(Planted):
    def weight(self, run: LocalRun) -> float:
        type(self).count += 1
        return self.count


class OnceInClass(Planted):
    def weight(self, run: LocalRun) -> float:
        type(self).count = self.count or size(run)
        return self.count


class OnceInSelf(Planted):
    @cached_property
    def first(self) -> float:
        return SEEN[-1]

    def weight(self, run: LocalRun) -> float:
        SEEN.append(size(run))
        return self.first


class InAggregate(Planted):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        CACHE["rounds"] = CACHE.get("rounds", 0) + 1
        return {**server, "weights": pooled.mean["weights"] / CACHE["rounds"]}


class OnceInAggregate(Planted):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        first = CACHE.setdefault("first", float(pooled.weight))
        return {**server, "weights": pooled.mean["weights"] / first}


class InPredict(Planted):
    def predict(self, net: Net, x: Tensor) -> Tensor:
        CACHE["batches"] = CACHE.get("batches", 0) + 1
        return net(x) if CACHE["batches"] == 1 else -net(x)


class Uploaded(Planted):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        total = CACHE.setdefault("total", torch.zeros_like(run.end))  # type: ignore[arg-type]
        return {"weights": total.add_(run.end)}, state  # type: ignore[attr-defined]


class Scratch(Planted):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        scratch = CACHE.setdefault("scratch", torch.zeros_like(run.end))  # type: ignore[arg-type]
        return {"weights": scratch.copy_(run.end)}, state  # type: ignore[attr-defined]


class Writing(Planted):
    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        received["weights"].mul_(0.9)
        return super().start(received, state, client)


class Broadcasting(Planted):
    count: ClassVar[int] = 0

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        Broadcasting.count += 1
        return {"weights": server["weights"] * (1 + 0.01 * Broadcasting.count)}


class WritingOnTheServer(Planted):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        server["weights"] += pooled.mean["weights"]
        return server


def setting(change: Callable[[], Any]) -> type[FedAvg]:
    def loss(self: Any, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        change()
        return FedAvg.loss(self, net, batch, received, state)

    return dataclass(frozen=True)(type("Mine", (Planted,), {"loss": loss, "__module__": __name__}))


AGAIN = "when a client's round is computed again after another client's, by"
HERE = __name__
FOUND: dict[str, tuple[type[FedAvg], str]] = {
    "a counter in the class": (
        InClass,
        f"InClass comes to another weight {AGAIN} InClass.count: results would depend on",
    ),
    "a global number": (with_told(told_by_a_global), f"{AGAIN} {HERE}.COUNT:"),
    "a global list": (with_told(told_by_a_list), f"{AGAIN} {HERE}.SEEN:"),
    "a closure": (with_told(counting()), f"{AGAIN} counting.<locals>.told:"),
    "a default argument": (with_told(told_by_a_default), f"{AGAIN} told_by_a_default:"),
    "a function's attribute": (with_told(told_by_its_attribute), f"{AGAIN} told_by_its_attribute.count:"),
    "a module that is imported": (with_told(told_by_a_helper), f"{AGAIN} helpers.count:"),
    "beside a proxy": (with_told(lambda run: bool(PROXY) + told_by_a_list(run)), f"{AGAIN} {HERE}.SEEN:"),
    "an object of a module": (with_told(told_by_an_object), f"{AGAIN} SimpleNamespace.count:"),
    "a thread's own": (with_told(told_by_a_thread), f"{AGAIN} what a class, a module, a cache, a file or a clock has:"),
    "a file": (with_told(told_by_a_file), f"{AGAIN} what a class"),
    "the environment": (with_told(told_by_the_environment), f"{AGAIN} what a class"),
    "a clock": (with_told(lambda run: time.perf_counter_ns()), f"{AGAIN} what a class"),
    "an iterator": (with_told(lambda run: next(NUMBERS)), f"{AGAIN} what a class"),
    "a generator of torch": (with_told(lambda run: float(torch.rand((), generator=OF_TORCH))), f"{AGAIN} what a class"),
    "a generator of numpy": (with_told(lambda run: OF_NUMPY.random()), f"{AGAIN} what a class"),
    "Python's module random": (with_told(lambda run: random.random()), f"{AGAIN} what a class"),
    "the server's step": (InAggregate, f"server['weights'] when aggregate is computed again .*by {HERE}.CACHE.rounds:"),
    "what is sent": (
        Broadcasting,
        "another received['weights'] when broadcast is computed again .*by Broadcasting.count:",
    ),
    "predictions": (
        InPredict,
        "another score when the test of the same weights is computed again .*CACHE.batches:",
    ),
    "a tensor that is sent itself": (
        Uploaded,
        f"Uploaded comes to another upload['weights'] {AGAIN} {HERE}.CACHE.total",
    ),
    "a tensor that is sent again": (
        Scratch,
        "Scratch writes into what an earlier client has sent, which is added later;",
    ),
    "what clients receive": (Writing, "Writing writes into received['weights'], which it was given and others share; "),
    "what the server has": (WritingOnTheServer, "WritingOnTheServer.aggregate writes into server['weights'], which it"),
    "torch's default dtype": (
        setting(lambda: torch.set_default_dtype(torch.float64)),
        "Mine changes torch's default dtype in a client's round, and others share it; leave it as it is",
    ),
    "torch's threads": (
        setting(lambda: torch.set_num_threads(3)),
        "Mine changes torch's number of threads in a",
    ),
    "the working directory": (setting(lambda: os.chdir("/")), "Mine changes the working directory in a client's round"),
    "numpy's handling of errors": (
        setting(lambda: np.seterr(all="raise")),
        "Mine changes numpy's handling of errors",
    ),
}


@pytest.mark.parametrize("kind", FOUND)
def test_state_beside_the_dictionaries_is_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: another result with two actors, or after a resume, in silence; a sentence without the culprit's name."""
    part, told = FOUND[kind]
    before, numpys = settings(), np.geterr()
    monkeypatch.setitem(ALGORITHMS, "mine", part)
    try:
        with pytest.raises(RunError) as found:
            drive(tmp_path, experiment(rounds=1, algorithm={"name": "mine"}))
    finally:
        torch.set_default_dtype(before["torch's default dtype"])
        torch.set_num_threads(before["torch's number of threads"])
        os.chdir(before["the working directory"])
        np.seterr(**numpys)
    for piece in told.split(".*"):
        assert piece in str(found.value), found.value


class InRoundTwo(Planted):
    def weight(self, run: LocalRun) -> float:
        SEEN.append(1)
        return super().weight(run) + (len(SEEN) if run.client.context.round > 1 else 0)


class InBeforeRound(Planted):
    def before_round(self, server: Tensors, compute: Any, context: Context) -> Tensors:
        SEEN.append(1)
        return {**server, "weights": server["weights"] + len(SEEN)}


def told_by_the_first_file(run: LocalRun) -> float:
    if not FILE.exists():
        FILE.write_text(str(size(run)))
    return float(FILE.read_text())


FIRST = "all that follow go by the first one, and nothing of a user's is put back for a trial"
OUT_OF_REACH: dict[str, tuple[type[FedAvg], str]] = {
    "what acts in later rounds": (InRoundTwo, "only the first round after a start is tried"),
    "the server's training": (InBeforeRound, "it may take long, and is not tried; prepare and finish alike"),
    "a number of the process": (with_told(lambda run: os.getpid() % 7), "it is the same all through the process"),
    "a file, of who came first": (with_told(told_by_the_first_file), FIRST),
    "a cache of functools, of who came first": (with_told(told_by_who_came_first), FIRST),
    "a dictionary, of who came first": (with_told(lambda run: CACHE.setdefault("first", size(run))), FIRST),
    "a class, of who came first": (OnceInClass, FIRST),
    "an attribute of self, of who came first": (OnceInSelf, FIRST),
    "the server's first step": (OnceInAggregate, FIRST),
    "a weak dictionary, of who came first": (with_told(lambda run: BY_OBJECT.setdefault(FedAvg, size(run))), FIRST),
}


@pytest.mark.parametrize("kind", OUT_OF_REACH)
def test_some_state_is_out_of_reach(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a list that says less than is found by now."""
    part, reason = OUT_OF_REACH[kind]
    assert reason
    monkeypatch.setitem(ALGORITHMS, "mine", part)
    assert drive(tmp_path, experiment(rounds=1, algorithm={"name": "mine"})).summary["status"] == "finished"


class Mean(nn.Module):
    mean: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        return x / self.calls[0]


@pytest.mark.parametrize(("layer", "told"), [(Mean, "Mean.mean"), (Counting, "calls")])
def test_state_of_a_network_is_found(
    layer: type[nn.Module], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: an attribute outside of the buffers by which bits depend on the number of workers."""
    monkeypatch.setitem(LAYERS, "mine", lambda: nn.Sequential(layer()))
    model = registered(monkeypatch, "mine")
    with pytest.raises(
        RunError,
        match=rf"to another \S.* again after another client's, by .*{told}.*a network keeps in buffers of real numbers",
    ):
        drive(tmp_path, experiment(rounds=1, model=model))


class Remembering(nn.Module):
    """Writes in training what it reads where it is tested."""

    mean: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = x.detach().mean()
        return x if self.training else x - self.mean


class Shrinking(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.weight.mul_(0.9)
        return super().forward(x)


def test_a_test_depends_on_nobodys_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: evaluations that go by whom the worker trained last, where clients are few and small."""
    monkeypatch.setitem(LAYERS, "mine", lambda: nn.Sequential(Remembering()))
    model = registered(monkeypatch, "mine")
    with pytest.raises(RunError, match=r"another score when the test of the same weights .* by Remembering.mean:"):
        drive(tmp_path, experiment(rounds=1, model=model))


@pytest.mark.parametrize("executor", ["loop", "block"])
def test_several_clients_are_trained_as_one_alone(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: what a forward pass changes in place, lost where Python runs once for several clients; a refusal of the
    loop, which trains it as plain PyTorch does."""
    monkeypatch.setitem(LAYERS, "mine", lambda: Shrinking(WIDTH, WIDTH))
    model = registered(monkeypatch, "mine")
    refused = pytest.raises(RunError, match=r"other weights alone than in a pass of several clients; set execution.ex")
    with nullcontext() if executor == "loop" else refused:
        drive(tmp_path, experiment(rounds=1, model=model, execution={"executor": executor}))


class Assigning(nn.Module):
    """Puts a new tensor in its buffer's place, as it would be written for plain PyTorch."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


@pytest.mark.parametrize(("executor", "told"), [("loop", r"\.mean:"), ("block", r"buffer \S*mean; write into it")])
def test_a_buffer_that_is_replaced_is_found(
    executor: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a running mean that never moves in a pass over several clients, by whichever executor."""
    monkeypatch.setitem(LAYERS, "mine", lambda: nn.Sequential(Assigning()))
    model = registered(monkeypatch, "mine")
    monkeypatch.setattr(MODELS["drawing"], "keeps_weights", True)
    with pytest.raises(RunError, match=told):
        drive(tmp_path, experiment(rounds=1, model=model, execution={"executor": executor}))


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("name", six(ALGORITHMS))
def test_ours_are_the_same_twice(
    name: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a false alarm; a trial that moves what the run goes on with, or a global generator."""
    config = experiment_of(name, rounds=2, execution={"executor": executor})
    plain, before = drive(tmp_path / "plain", config), GlobalStates.now()
    monkeypatch.setattr("engine.server.rehearsal.is_ours", lambda kind: False)
    with caplog.at_level(logging.INFO, "fedskew"):
        tried = drive(tmp_path / "tried", config)
    assert (tried.shas, before.moved(GlobalStates.now())) == (plain.shas, "")
    assert any("twice the same: " in text and "tried by clients (" in text for text in caplog.messages)
