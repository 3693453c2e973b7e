"""Compiled steps: the numbers of the loop, whoever the clients are, and one compilation for all of them.

On the CPU, by the compiler's C++ back end; a captured step is called again here in place of being replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Net, Tensors, overrides
from engine.base.errors import RunError
from engine.client.vmap import compiled_step
from engine.client.vmap.block_rows import parts
from engine.experiment import Execution
from tests.support.on_card import gap, settings
from tests.support.tiny import Driven, assignment, drive

ROUNDING = 1e-9  # in float64
SIZES = (20, 16, 7, 8, 16)  # of clients, with batches of 8: steps of three, two and one of them


class Recorder:
    """Replays by calling the step again."""

    def __init__(self, device: torch.device) -> None: ...

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


@pytest.fixture(autouse=True)
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let steps be captured without a GPU. Return for each compilation how many operations it was given."""
    found: list[int] = []
    compile_ = torch._inductor.compile

    def counted(traced: torch.fx.GraphModule, *given: Any, **options: Any) -> Any:
        found.append(len(traced.graph.nodes))
        return compile_(traced, *given, **options)

    monkeypatch.setattr("engine.client.jobs.CudaRecorder", Recorder)
    monkeypatch.setattr(torch._inductor, "compile", counted)
    return found


def run(folder: Path, name: str, compiled: bool, sizes: Sequence[int] = SIZES, **changes: Any) -> Driven:
    """Two rounds of three clients: by the loop, or in compiled steps."""
    config = settings(name, "loop", "cpu", **changes)
    if compiled:
        execution = config.execution.model_copy(update={"executor": "block_graph", "compiled": True})
        config = config.model_copy(update={"execution": execution})
    return drive(folder, config, parts=assignment(sizes))


def difference(folder: Path, name: str, **changes: Any) -> float:
    return gap(*(run(folder / str(compiled), name, compiled, **changes) for compiled in (False, True)))


@pytest.mark.long
def test_the_numbers_are_the_loops(tmp_path: Path, compilations: list[int]) -> None:
    """Kills: a step that is taken twice while it is traced; rows of other clients; a tensor that stays as it was when
    it was compiled; compiling anew for each client."""
    assert difference(tmp_path, "fedrep") <= ROUNDING  # two phases
    assert 1 <= len(compilations) <= 4


# Of clients: what of a method is in a compiled step.
HOOKS = ("loss", "gradient", "perturbation", "phases", "phase_start", "step_randomness", "step_constants", "start")
OWN_STEPS = [name for name, kind in ALGORITHMS.items() if any(overrides(kind, hook) for hook in HOOKS)]


@pytest.mark.long
@pytest.mark.parametrize("name", OWN_STEPS)
def test_all_methods_whose_steps_are_their_own(tmp_path: Path, name: str) -> None:
    """Kills: a hook that the compiler takes for another function, or that it cannot take."""
    assert difference(tmp_path, name, sizes=(16,) * 5) <= ROUNDING


LOCAL: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "rates by step": {"lr_by": "step", "lr_decay": 0.5, "momentum": 0.9, "clip_norm": 0.5},
    "augmented": {"augment": "crop_flip"},
    "full": {"batch_size": "full"},
}


@pytest.mark.long
@pytest.mark.parametrize("local", list(LOCAL))
def test_whatever_the_local_work(tmp_path: Path, local: str) -> None:
    """Kills: an optimizer's memory that a compiled step does not move; a rate of the first round."""
    assert difference(tmp_path, "fedprox", local=LOCAL[local], rounds=3) <= ROUNDING


@pytest.mark.long
@pytest.mark.usefixtures("tiny_norm")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "cbfl"])
def test_batchnorm(tmp_path: Path, name: str) -> None:
    """Kills: running statistics that no step moves, or every trace once more."""
    assert difference(tmp_path, name, model={"name": "tiny_norm"}) <= ROUNDING


@dataclass(frozen=True)
class ByRound(FedAvg):
    """Reads of the context what the next round changes."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return super().loss(net, batch, received, state) / batch.client.context.round


def test_what_each_round_changes_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[int]
) -> None:
    """Kills: a step that divides by the first round in all others."""
    monkeypatch.setitem(ALGORITHMS, "by_round", ByRound)
    assert difference(tmp_path, "by_round") <= ROUNDING
    assert not compilations


@dataclass(frozen=True)
class Asks(FedAvg):
    """Reads a number of what it has received."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return super().loss(net, batch, received, state) * (1 + float(received["weights"][0]) ** 2)


def test_a_number_of_the_first_round_is_not_compiled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a value that the trace has read, in the steps of all later rounds."""
    monkeypatch.setitem(ALGORITHMS, "asks", Asks)
    with pytest.raises(RunError, match=r"a step cannot be compiled: it asks for the value of a tensor; set execution"):
        run(tmp_path, "asks", compiled=True)


@pytest.mark.slow
def test_cohorts_of_other_sizes(tmp_path: Path, compilations: list[int]) -> None:
    """Kills: a step of one client, compiled in a small block, that reads beyond its memory in a larger one."""
    cohort = {"count": None, "fraction": 0.5, "scheme": "binomial"}
    assert difference(tmp_path, "fedprox", participation=cohort, rounds=6) <= ROUNDING
    assert len(compilations) >= 2


def test_what_the_compiler_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a step that goes on uncompiled in silence, with other bits than the experiment says; torch's own words."""

    def refuses(*given: Any, **options: Any) -> Any:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(torch._inductor, "compile", refuses)
    with pytest.raises(RunError, match=r"^a step cannot be compiled: no such kernel; set execution.compiled=false$"):
        run(tmp_path, "fedavg", compiled=True)


@pytest.mark.parametrize(
    ("first", "last", "most", "wanted"),
    [
        (0, 10, 10, [(0, 10)]),
        (0, 9, 10, [(0, 4), (4, 8), (8, 9)]),
        (2, 5, 3, [(2, 5)]),
        (1, 3, 3, [(1, 2), (2, 3)]),
    ],
)
def test_parts_by_hand(first: int, last: int, most: int, wanted: list[tuple[int, int]]) -> None:
    """Kills: a client that is left out or steps twice; a number of clients for which nothing is compiled."""
    assert list(parts(first, last, most)) == wanted


def test_it_is_another_result() -> None:
    """Kills: a field that changes bits and no digest, or the digest of what is not compiled."""
    plain = Execution(device="cuda", executor="block_graph")
    assert plain.compiled is False
    with pytest.raises(ValueError, match=r"compiled=True: is for captured steps of several clients, .* is graph; set"):
        Execution(device="cuda", executor="graph", compiled=True)
    assert compiled_step.OPTIONS["deterministic"] is True
