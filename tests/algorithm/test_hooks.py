"""Hooks that do nothing: said by the algorithm, asked in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.ditto import Ditto
from algorithms.fedprox import FedProx
from algorithms.moon import Moon
from engine.algorithm import Algorithm, Client, Tensors, acts, idle_when, not_stacked, overrides
from engine.algorithm.hooks import STEP_HOOKS
from engine.models import MLP
from tests.algorithms.test_reductions import REDUCES
from tests.support.bench import Bench
from tests.support.loops import each
from tests.support.tiny import SUITED

NEUTRAL = list({f"{name} {row[0]}": (name, row[0]) for name, rows in REDUCES.items() for row in rows}.values())


@dataclass(frozen=True)
class Further(FedProx):
    """Has a gradient of its own, and says nothing of when that does nothing."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return 2 * super().gradient(grad, weights, received, state, client)


@dataclass(frozen=True)
class Marked(Further):
    """Says it."""

    @idle_when(mu=0, server_lr=2)
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return super().gradient(grad, weights, received, state, client)


class Below(Marked):
    """Overrides nothing."""


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(MLP(hidden=(6,), projection=True))


def test_a_mark_belongs_to_its_hook(bench: Bench) -> None:
    """Kills: a class below that loses its own term because of what the class above says; one that inherits a hook
    without its mark; a mark that wants all its fields; a mark that nobody reads."""
    context = bench.context
    kinds = (FedProx, Further, Marked, Below)
    acting = {kind: [acts(kind(mu=mu), "gradient", context) for mu in (0.0, 1.0)] for kind in kinds}
    assert acting == {FedProx: [False, True], Further: [True, True], Marked: [False, True], Below: [False, True]}
    assert not acts(Below(mu=1.0, server_lr=2.0), "gradient", context)
    assert not acts(FedProx(mu=1.0), "loss", context)
    with pytest.raises(TypeError, match="idle_when cannot mark upload; it marks gradient, loss, perturbation, "):
        idle_when(mu=0)(FedProx.upload)
    with pytest.raises(TypeError, match=r"Old.idle_hooks is asked no more; write @idle_when\(...\) on each hook"):
        type("Old", (FedProx,), {"idle_hooks": lambda self, context, phase: frozenset()})
    assert overrides(Further, "gradient")
    assert not overrides(FedProx(), "prepare")


def test_phases_and_rounds_count(bench: Bench) -> None:
    """Kills: a way that is chosen once for all phases, or for all rounds."""
    assert [acts(Ditto(), "gradient", bench.context, phase) for phase in ("", "personal")] == [False, True]
    rounds = [replace(bench.context, stage_round=round) for round in (1, 2)]
    assert [acts(ALGORITHMS["scaffold"](), "gradient", context) for context in rounds] == [False, True]


def test_a_reason_not_to_be_stacked_is_its_hooks(bench: Bench) -> None:
    """Kills: clients that are trained one by one because of a term that is not there."""
    assert not_stacked(Moon(mu=0.0), bench.context) == ""
    assert not_stacked(Moon(), bench.context) == Moon.requires.no_vmap != ""


@each("name, fields", NEUTRAL)
def test_what_is_said_to_do_nothing_does_nothing(bench: Bench, name: str, fields: dict[str, Any]) -> None:
    """Kills: a hook that is left out though it does something."""
    algorithm = ALGORITHMS[name](**{**SUITED.get(name, {}), **fields})
    defined = {hook for hook in STEP_HOOKS if overrides(algorithm, hook)}
    idle = {hook for hook in defined if not acts(algorithm, hook, bench.context)}
    if not idle:
        return
    client, batch = bench.client(0), bench.batch(0)
    received = bench.received(algorithm)
    state = algorithm.init_state(received, {}, client)
    if "gradient" in idle:
        grad, weights = torch.randn(2, bench.net.layout.size, dtype=torch.float64, generator=torch.Generator())
        assert torch.equal(algorithm.gradient(grad, weights, received, state, client), grad)
    if "step_randomness" in idle:
        assert not algorithm.step_randomness(client, len(batch.y), received)
    if "loss" in idle:
        ours, plain = (loss(bench.net, batch, received, state) for loss in (algorithm.loss, _plain(algorithm)))
        assert torch.equal(ours, plain)


def _plain(algorithm: Algorithm) -> Any:
    return lambda *args: Algorithm.loss(algorithm, *args)
