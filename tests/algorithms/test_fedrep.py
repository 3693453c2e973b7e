"""FedRep: oracle 10 of calibration spec 2.9, a round by hand, and wrong orders and phases as mutants."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedbabu import FedBabu
from algorithms.fedper import FedPer
from algorithms.fedrecon import FedRecon
from algorithms.fedrep import FedRep
from algorithms.personal_head import PersonalHead
from algorithms.pflego import Pflego
from engine.algorithm import Client, Context, LocalRun, Phase, Scalar, Tensors
from engine.base.errors import ConfigError
from engine.experiment import Local
from engine.models import MLP
from engine.models.resnet import ResNet20
from tests.support.bench import FEW, Bench, descend
from tests.support.pencil import pool
from tests.support.tiny import SIZES, drive, experiment

HEAVY = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}  # what a part that is not really frozen would feel


def check_parts_and_phases(cls: type[FedRep]) -> None:
    """Oracle 10: with BatchNorm, momentum and decay, each part and its statistics move in its own phase alone."""
    for heads, bodies in ((2, 0), (0, 2), (2, 2)):
        bench = Bench(ResNet20())
        layout, state = bench.net.layout, bench.stored(0, bench.start["weights"])
        trained = bench.train(cls(head_epochs=heads, body_epochs=bodies), 0, state, Local(batch_size=4, **HEAVY))
        assert torch.equal(trained.upload["body"], layout.body_of(bench.start["weights"])) == (bodies == 0)
        assert torch.equal(trained.new_state["head"], state["head"]) == (heads == 0)
        assert torch.equal(trained.buffers, bench.start["buffers"]) == (bodies == 0)


@pytest.mark.parametrize("cls", [FedPer, FedRep, FedRecon, Pflego])
def test_all_heads_start_from_the_servers(cls: type[PersonalHead]) -> None:
    """Kills: heads of their own draw where the published code has one for all, so that the first bodies cancel; one for
    all where each is to draw; a head that stays a view of what others were sent."""
    bench = Bench(MLP(hidden=(8,)))
    server = bench.net.layout.head_of(bench.start["weights"])

    def first(**fields: Any) -> list[Tensor]:
        algorithm, people = cls(**fields), map(bench.newcomer, range(len(FEW)))
        received = bench.received(algorithm)
        assert ("first_head" in received) == (not fields)
        return [algorithm.init_state(received, {}, client)["head"] for client in people]

    assert all(torch.equal(head, server) and head.data_ptr() != server.data_ptr() for head in first())
    for rule, lowest in (("kaiming", -1 / sqrt(8)), ("uniform01", 0)):
        heads = first(head_init=rule)
        assert len({tuple(head.tolist()) for head in heads}) == len(FEW)
        assert all(lowest <= head.min() < head.max() <= 1 for head in heads)


def check_a_round(cls: type[FedRep]) -> None:
    """Against torch.optim: three steps at each head, two at each body under the new head, bodies averaged by rows.

    Client 2 lacks a class.
    """
    bench, algorithm = Bench(MLP(hidden=(8,))), cls(head_epochs=3, body_epochs=2)
    layout = bench.net.layout
    local = Local(batch_size="full", **HEAVY)
    trained, bodies = [], []
    for number in range(len(FEW)):
        trained.append(bench.train(algorithm, number, local=local))
        bench.net.load(bench.start["weights"], bench.start["buffers"])  # all heads start from the server's
        descend(bench.net, "head", bench.batch(number), 3, **HEAVY)
        descend(bench.net, "body", bench.batch(number), 2, **HEAVY)
        wanted = bench.stored(number, bench.net.weights)["head"]
        torch.testing.assert_close(trained[-1].new_state["head"], wanted, rtol=0, atol=1e-12)
        bodies.append(layout.body_of(bench.net.weights).clone())
    server = algorithm.aggregate(algorithm.init_server(bench.start, bench.context), pool(trained), bench.context)
    mean = sum(size * body for size, body in zip(FEW, bodies, strict=True)) / sum(FEW)
    torch.testing.assert_close(layout.body_of(server["weights"]), mean, rtol=0, atol=1e-12)
    assert torch.equal(layout.head_of(server["weights"]), layout.head_of(bench.start["weights"]))


def check_body_alone_is_fedbabu(cls: type[FedRep]) -> None:
    """Oracle 10: no head epochs, and the same head: FedBABU's step to the bit, for a client that has all classes."""
    bench = Bench(MLP(hidden=(8,)))
    local = Local(epochs=2, batch_size=4, **HEAVY)
    fedbabu = bench.train(FedBabu(), 0, local=local)
    state = bench.stored(0, bench.start["weights"])
    fedrep = bench.train(cls(head_epochs=0, body_epochs=2), 0, state, local)
    assert not torch.equal(fedrep.upload["body"], bench.received(FedBabu())["body"])
    assert torch.equal(fedrep.upload["body"], fedbabu.upload["body"])
    assert torch.equal(fedrep.new_state["head"], state["head"])


def test_parts_and_phases() -> None:
    """Kills: decay or momentum on the frozen part; BatchNorm that learns in the heads' phase."""
    check_parts_and_phases(FedRep)


def test_a_round_by_hand() -> None:
    """Kills: the body before the head, a body trained under the head of the round before, a mean of clients."""
    check_a_round(FedRep)


def test_without_head_epochs_it_is_fedbabu() -> None:
    """Kills: head steps that are not skipped, other batches than FedBABU's."""
    check_body_alone_is_fedbabu(FedRep)


# --- mutants ------------------------------------------------------------------------------------------


class BodyFirst(FedRep):
    def phases(self, context: Context) -> tuple[Phase, ...]:
        return super().phases(context)[::-1]


class Joint(FedRep):
    """Bug: the second phase trains everything, as FedPer's only one does."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        *heads, body = super().phases(context)
        return *heads, replace(body, trainable="all")


class Unfrozen(FedRep):
    """Bug: in the heads' phase the body's gradient is set to zero, while its decay and its BatchNorm go on."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        *heads, body = super().phases(context)
        return *(replace(phase, name="heads", trainable="all", features="live") for phase in heads), body

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if client.phase != "heads":
            return grad
        layout = client.context.layout
        return layout.join(0 * layout.body_of(grad), layout.head_of(grad))


class MeanOfClients(FedRep):
    def weight(self, run: LocalRun) -> Scalar:
        return 1.0


class OldHead(FedRep):
    """Bug: the body's phase begins where the heads' began, under the head that the client came with."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        heads, body = super().phases(context)
        return replace(heads, name="heads"), replace(body, name="body")

    def phase_start(self, previous: Any, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return previous.start


@pytest.mark.parametrize("bug", [BodyFirst, Joint, MeanOfClients, OldHead])
def test_wrong_rounds_are_killed(bug: type[FedRep]) -> None:
    """Kills: an oracle that any round would pass."""
    with pytest.raises(AssertionError):
        check_a_round(bug)


@pytest.mark.parametrize("bug", [Joint, Unfrozen])
def test_phases_that_touch_both_parts_are_killed(bug: type[FedRep]) -> None:
    """Kills: an oracle without decay and BatchNorm, which a gradient set to zero would pass."""
    with pytest.raises(AssertionError):
        check_parts_and_phases(bug)


def test_a_head_that_is_trained_all_the_same_is_killed() -> None:
    """Kills: a comparison with FedBABU that looks at nothing."""
    with pytest.raises(AssertionError):
        check_body_alone_is_fedbabu(Joint)


# --- in a run -----------------------------------------------------------------------------------------


def test_heads_stay_with_their_clients(tmp_path: Path) -> None:
    """Kills: a head that is averaged, that travels, or that two clients share."""
    done = drive(tmp_path, experiment(algorithm={"name": "fedrep", "head_epochs": 2}))
    layout = done.driver.layout
    rows = done.folder.frame("clients")
    assert set(rows["floats_up"]) == set(rows["floats_down"]) == {layout.body}
    states = [done.driver.pool.fetch(handle) for handle in done.driver.lineage.states.store.read(range(len(SIZES)))]
    assert len({tuple(state["head"].flatten().tolist()) for state in states}) == len(SIZES)
    assert torch.equal(layout.head_of(done.server["weights"]), layout.head_of(done.driver.federation.fresh["weights"]))


def test_what_is_refused() -> None:
    """Kills: a negative number of epochs."""
    with pytest.raises(ConfigError, match=r"^head_epochs=-1: must be at least 0; 0 leaves heads as they were$"):
        FedRep(head_epochs=-1)
    with pytest.raises(ConfigError, match=r"^body_epochs=-1: must be at least 0; 0 leaves the body$"):
        FedRep(body_epochs=-1)
