"""The checks of algorithms: what each finds, in which sentence, and what it lets pass."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from algorithms.fedser import FedSer
from algorithms.scaffold import Scaffold
from engine.algorithm import Algorithm, Client, Context, Kind, LocalRun, ModelState, Pooled, Tensors
from engine.base.declared import Neutral
from engine.base.errors import ConfigError, FedskewError
from engine.experiment import CHOICES
from fedskew.testing import algorithm_runs
from fedskew.testing.checks import CHECKS, checks_of, outcome, section_of

ALGORITHMS = CHOICES["algorithm"]
BY_NAME = {check.name: check for check in CHECKS["algorithm"]}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every class of this file is a known algorithm meanwhile."""
    for kind in list(globals().values()):
        if isinstance(kind, type) and issubclass(kind, Algorithm) and kind.__module__ == __name__:
            monkeypatch.setitem(ALGORITHMS, kind.__name__.lower(), kind)


def found_by(name: str, part: Algorithm) -> str:
    """The sentence with which a check fails, "" if it passes."""
    status, told = outcome(BY_NAME[name], part)
    assert status != "skipped", told
    assert "\n" not in told
    return told


# --- five mistakes of a newcomer ----------------------------------------------------------------------


def test_a_field_without_a_default_is_told_of() -> None:
    """Kills: a field that must be set, so that no check and no list can make the algorithm."""

    @dataclass(frozen=True, kw_only=True)
    class Bare(FedAvg):
        mu: float

    with pytest.raises(ConfigError) as told:
        ALGORITHMS.add("bare", Bare)
    assert re.search(r"algorithm.name=bare: .*Bare has no default for mu; give it one", str(told.value))


@dataclass(frozen=True)
class InPlace(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        grad += 0.1 * (weights - received["weights"])
        return grad


@dataclass(frozen=True)
class Undeclared(FedAvg):
    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"drift": torch.zeros_like(received["weights"])}


@dataclass(frozen=True)
class WrongShape(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end[:3]}, state


@dataclass(frozen=True)
class Drawing(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + 0.01 * torch.randn(grad.shape, dtype=grad.dtype)


MISTAKES = [
    (
        InPlace(),
        "inputs_not_written",
        "InPlace.gradient (a client of 13 rows, round 1) writes into grad, which it was given and others share; make "
        "a new tensor, as by a + b, in place of a += b, a.add_(b) or a[...] = b",
    ),
    (
        Undeclared(),
        "returns_what_it_declares",
        "Undeclared.init_state: entry 'drift' is not declared; add it to Undeclared.entries with its kind, as in "
        "entries = {**FedAvg.entries, 'drift': Kind.VECTOR}",
    ),
    (
        WrongShape(),
        "returns_what_it_declares",
        "WrongShape.upload: entry 'weights' has shape (3,); a vector here has shape (832,); give it that shape, or "
        "declare Kind.TENSOR, which may have any",
    ),
    (
        Drawing(),
        "draws_by_key",
        "Drawing.gradient (a client of 13 rows, round 1) draws from torch's global generator, whose numbers are others"
        " in every run; draw from client.rng(...) or tools.rng(...), or of seeds.generator(...) where neither is at "
        "hand",
    ),
]


@pytest.mark.parametrize(("part", "check", "sentence"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_mistake_is_told_in_a_sentence(part: Algorithm, check: str, sentence: str) -> None:
    """Kills: a check that sees nothing; a sentence without the method, the tensor or the repair."""
    assert re.sub(r"of \d+ rows", "of 13 rows", found_by(check, part)) == sentence


# --- the other rules ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remembering(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        object.__setattr__(self, "last", run.end)
        return super().upload(run, received, state)


@dataclass(frozen=True)
class InClass(FedAvg):
    seen: ClassVar[int] = 0

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        type(self).seen += 1
        return super().aggregate(server, pooled, context)


@dataclass(frozen=True)
class Changing(FedAvg):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        server["weights"] = pooled.mean["weights"]
        return server


@dataclass(frozen=True)
class Echoing(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": received["weights"]}, state


@dataclass(frozen=True)
class Branching(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if grad.norm() > 1:
            return grad / grad.norm()
        return grad


@dataclass(frozen=True)
class Measuring(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad * min(1.0, 1 / grad.norm().item())


@dataclass(frozen=True)
class Single(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + 0.1 * torch.ones(grad.shape) * weights


@dataclass(frozen=True)
class Counting(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad / 2 if client.num_examples > 10 else grad


@dataclass(frozen=True)
class Dividing(FedAvg):
    def weight(self, run: LocalRun) -> Any:
        return 1 / (run.num_examples - 1)


@dataclass(frozen=True)
class Emptying(FedAvg):
    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(received["weights"], -received["buffers"].abs() - 1)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end + run.buffers.sum().sqrt()}, state


@dataclass(frozen=True)
class Unseeded(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end + np.random.default_rng().normal()}, state


@dataclass(frozen=True)
class UnseededLater(Unseeded):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return super().upload(run, received, state) if run.client.context.round > 1 else ({"weights": run.end}, state)


BESIDE: list[int] = []


@dataclass(frozen=True)
class Beside(FedAvg):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        BESIDE.append(context.round)
        return {**server, "weights": pooled.mean["weights"] / len(BESIDE)}


@dataclass(frozen=True)
class BesideLater(FedAvg):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        BESIDE.append(context.round)
        return {**server, "weights": pooled.mean["weights"] / (2 if context.round == 2 and len(BESIDE) > 6 else 1)}


@dataclass(frozen=True)
class NoReturn(FedAvg):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return {**server, "weights": pooled.mean["weights"]} if context.round > 9 else None  # type: ignore[return-value]


@dataclass(frozen=True)
class PerRow(FedAvg):
    def loss(self, net: Any, batch: Any, received: Tensors, state: Tensors) -> Tensor:
        return torch.nn.functional.cross_entropy(net(batch.x), batch.y, reduction="none")


@dataclass(frozen=True)
class Halved(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad.half()


@dataclass(frozen=True)
class OneDictionary(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}  # type: ignore[return-value]


@dataclass(frozen=True)
class Beginningless(FedAvg):
    entries: ClassVar = {**FedAvg.entries, "last": Kind.VECTOR}

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, {"last": run.end}


@dataclass(frozen=True)
class NotNeutral(FedProx):
    mu: Annotated[float, Neutral(1.0, "is FedAvg")] = 0.01


@dataclass(frozen=True)
class NotIdle(FedAvg):
    mu: float = 0.1
    neutral: ClassVar = {"mu": 0.0}

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + self.mu * (weights - received["weights"])


FAULTS = [
    (Remembering(), "keeps_nothing", r"Remembering.upload \(.*\) keeps self.last, which is in no checkpoint"),
    (InClass(), "keeps_nothing", r"InClass.aggregate \(round 1\) keeps InClass.seen, which is in no checkpoint"),
    (Changing(), "inputs_not_written", r"Changing.aggregate \(round 1\) changes the entries of server, .*; return"),
    (Echoing(), "inputs_not_written", r"Echoing.upload .* sends received\['weights'\] itself as upload\['weights'\]"),
    (Branching(), "values_not_read", r"Branching.gradient .* branches on a tensor's value in line \d+, if grad.norm"),
    (Measuring(), "values_not_read", r"Measuring.gradient .* takes a tensor's value \(item\) in line \d+"),
    (Single(), "float64_throughout", r"Single.gradient .* ones makes a tensor of shape .* and dtype float32 in line"),
    (
        Counting(),
        "same_in_one_pass",
        r"Counting fails where several clients are trained in one pass .*no_vmap=[.]{3}[)]$",
    ),
    (Dividing(), "clients_of_every_size", r"Dividing fails with clients of no row, one row or one class: .*ZeroDiv"),
    (Emptying(), "with_batchnorm", r"Emptying fails with a model with BatchNorm: client \d+ diverged"),
    (
        Unseeded(),
        "same_twice",
        r"Unseeded comes to another upload\['weights'\] when a client's round is",
    ),
    (
        UnseededLater(),
        "same_twice",
        r"UnseededLater comes to other bits when the same run is made again",
    ),
    (BesideLater(), "stop_and_resume", r"BesideLater comes to other bits when it is stopped after round 2 and resumed"),
    (Beside(), "stop_and_resume", r"Beside comes to another server\['weights'\] when aggregate .* by \S+\.BESIDE: "),
    (NoReturn(), "returns_what_it_declares", r"NoReturn.aggregate \(round 1\) returns nothing \(None\), and must"),
    (PerRow(), "returns_what_it_declares", r"PerRow.loss .* returns a tensor of shape \[8\] .* take the mean"),
    (Halved(), "returns_what_it_declares", r"Halved.gradient .* dtype float16, and was given .* dtype float32"),
    (OneDictionary(), "returns_what_it_declares", r"OneDictionary.upload .* returns a dict, and must return two"),
    (Beginningless(), "returns_what_it_declares", r"Beginningless.upload .* 'last' as a state that begins nowhere"),
    (NotNeutral(), "neutral_is_fedavg", r"NotNeutral with mu=1.0 is not FedAvg to the bit under .*=loop \(weights"),
    (NotIdle(), "neutral_is_fedavg", r"NotIdle with mu=0.0 is not FedAvg to the bit under .* hook with @idle_when"),
]


@pytest.mark.parametrize(("part", "check", "sentence"), FAULTS, ids=lambda value: str(value)[:30])
def test_a_fault_is_found(part: Algorithm, check: str, sentence: str) -> None:
    """Kills: a check that passes whatever the part does, or fails without saying where."""
    assert re.search(sentence, found_by(check, part)), found_by(check, part)


@pytest.mark.slow
@pytest.mark.parametrize("part", [FedProx(mu=0.5), Scaffold()], ids=lambda part: type(part).__name__)
def test_a_sound_algorithm_passes(part: Algorithm) -> None:
    """Kills: a check that fails whatever the part does; one that is skipped where it has a meaning."""
    ended = {check.name: outcome(check, part) for check in checks_of(part)}
    neutral = ended.pop("neutral_is_fedavg")
    assert set(ended.values()) == {("ok", "")}
    assert neutral == (("ok", "") if isinstance(part, FedProx) else ("skipped", "it declares no neutral value"))


def test_methods_are_themselves_again() -> None:
    """Kills: a class that stays watched after a check, in every run that comes after it."""
    before = dict(vars(InPlace)), dict(vars(FedAvg))
    assert found_by("inputs_not_written", InPlace())
    assert (dict(vars(InPlace)), dict(vars(FedAvg))) == before


def test_what_cannot_be_checked_says_why() -> None:
    """Kills: a check that passes where it was not made; a reason that is empty."""
    for name in ("same_in_one_pass", "values_not_read"):
        status, told = outcome(BY_NAME[name], FedSer(transform="resize_back"))
        assert status == "skipped" and "each client draws its own widths" in told
    status, told = outcome(BY_NAME["same_on_a_gpu"], FedAvg())
    assert torch.cuda.is_available() or (status, told) == ("skipped", "there is no GPU here")


def test_an_inherited_neutral_value_is_none() -> None:
    """Kills: FedAvg's own neutral value taken for that of every method that is built on it."""
    assert outcome(BY_NAME["neutral_is_fedavg"], InPlace()) == ("skipped", "it declares no neutral value")


def test_a_class_in_place_of_an_instance_is_refused() -> None:
    """Kills: a traceback for the commonest slip of a call."""
    with pytest.raises(ConfigError, match=r"part=FedAvg: is a class; make one of it: FedAvg\(\)"):
        section_of(FedAvg)
    with pytest.raises(ConfigError, match="part=int: is no part of an experiment; give an instance of Source"):
        section_of(3)


@dataclass(frozen=True)
class OfItsProcess(FedAvg):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end + 1e-3 * os.getpid()}, state


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_bits_on_actors_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: actors that are never asked; bits of a process taken for those of the run."""
    assert algorithm_runs.ACTORS == (3, 2, 1)
    monkeypatch.setattr(algorithm_runs, "ACTORS", (1,))
    check = BY_NAME["on_any_number_of_actors"]
    assert check in checks_of(FedAvg(), full=True) and check not in checks_of(FedAvg())
    status, told = outcome(check, OfItsProcess())
    assert status == "FAILED" and "comes to other bits on 1 actors than in this process" in told


def test_failures_are_errors_of_the_user() -> None:
    """Kills: a failed check that the command line would show with a traceback."""
    with pytest.raises(FedskewError):
        BY_NAME["draws_by_key"](Drawing())
