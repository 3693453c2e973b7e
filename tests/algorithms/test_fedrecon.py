"""FedRecon: oracle 5 of calibration spec 2.9, rounds by hand, what is kept and what is not, and mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedrecon import FedRecon
from algorithms.pflego import Pflego
from engine.algorithm import Batch, Client, Context, LocalRun, ModelState, Phase, Pooled, Scalar, Tensors, seeds
from engine.base.errors import ConfigError
from engine.client.steps.client_round import ClientTask
from engine.experiment import Local
from engine.models import MLP
from tests.support.bench import FEW, Bench, descend
from tests.support.pencil import pool
from tests.support.tiny import SIZES, drive, experiment, open_driver

FULL = Local(batch_size="full", epochs=2)
EXACT = {"actors": 0, "device": "cpu", "precision": "float64"}
PFLEGO_CODE: dict[str, Any] = {"reset_head": False, "support_frac": 1.0, "grad_only": True}


def check_gradients_are_pflegos(cls: type[FedRecon]) -> None:
    """Oracle 5, to the bit: k head steps, and the gradient of the body there, from the same head on the same rows."""
    for steps in (0, 1, 4):
        bench = Bench(MLP(hidden=(8,)))
        pflego = Pflego(tau=steps + 1, head_lr=0.05)
        fedrecon = cls(recon_steps=steps, recon_lr=0.05, **PFLEGO_CODE)
        for number in range(len(FEW)):
            state = bench.stored(number, bench.start["weights"])
            wanted = bench.train(pflego, number, state, FULL).upload["body_gradient"]
            trained = bench.train(fedrecon, number, state, FULL)
            assert torch.equal(trained.upload["body_gradient"], wanted)
            assert torch.equal(trained.new_state["head"], state["head"]) == (
                steps == 0
            )  # as it is before PFLEGO's step


def halves(bench: Bench, number: int, share: float) -> tuple[Batch, Batch]:
    """A client's support and query rows, drawn apart from the engine."""
    batch = bench.batch(number)
    order = torch.randperm(len(batch.y), generator=seeds.generator(0, "support", bench.context.round, number))
    cut = round(share * len(order))
    return tuple(replace(batch, x=batch.x[part], y=batch.y[part]) for part in (order[:cut], order[cut:]))  # type: ignore[return-value]


def load_fresh_head(bench: Bench, algorithm: FedRecon, number: int) -> None:
    """Put the server's body and the client's first head into the net."""
    body = bench.net.layout.body_of(bench.start["weights"])
    head = algorithm.init_state(bench.received(algorithm), {}, bench.newcomer(number))["head"]
    bench.net.load(bench.net.layout.join(body, head), bench.start["buffers"])


def check_rounds(cls: type[FedRecon]) -> None:
    """Two rounds against torch.optim: heads on the support part, bodies on the query part, the server's step.

    Client 2 lacks a class. In the second round heads start where they started in the first.
    """
    bench, states = Bench(MLP(hidden=(8,))), dict.fromkeys(range(len(FEW)))
    layout = bench.net.layout
    algorithm = cls(recon_steps=6, recon_lr=0.3, query_steps=2, support_frac=0.3, server_lr=0.7)
    for number in (1, 2):
        bench.context = replace(bench.context, round=number)
        trained, body, weight = [], torch.zeros(layout.body, dtype=torch.float64), 0
        for client in range(len(FEW)):
            trained.append(bench.train(algorithm, client, states[client] or None, FULL))
            states[client] = trained[-1].new_state
            load_fresh_head(bench, algorithm, client)
            support, query = halves(bench, client, 0.3)
            descend(bench.net, "head", support, 6, lr=0.3)
            descend(bench.net, "body", query, 2, lr=bench.context.lr)
            body += len(query.y) * layout.body_of(bench.net.weights)
            weight += len(query.y)
        server = algorithm.init_server(bench.start, bench.context)
        start = layout.body_of(server["weights"])
        got = algorithm.aggregate(server, pool(trained), bench.context)["weights"]
        wanted = start + 0.7 * (body / weight - start)
        torch.testing.assert_close(layout.body_of(got), wanted, rtol=0, atol=1e-12)
        assert torch.equal(layout.head_of(got), layout.head_of(server["weights"]))
        bench.start = {**bench.start, "weights": got}


def check_evaluation(cls: type[FedRecon]) -> None:
    """A client's own model: the server's body, and six steps on all rows from where the head starts, by hand."""
    bench = Bench(MLP(hidden=(8,)))
    bench.context = replace(bench.context, round=5)
    layout, kept = bench.net.layout, torch.linspace(-1, 1, bench.start["weights"].numel(), dtype=torch.float64)
    for reset in (True, False):
        algorithm = cls(recon_steps=6, recon_lr=0.3, reset_head=reset)
        for number in range(len(FEW)):
            state = {} if reset else bench.stored(number, kept)
            about = (algorithm, FULL, number, bench.parts[number], bench.context, bench.received(algorithm))
            bench.trainer.personalise(ClientTask(*about, state, newcomer=reset))
            got = bench.net.weights.clone()
            load_fresh_head(bench, algorithm, number)
            if not reset:
                bench.net.weights[layout.body :] = layout.head_of(kept)
            descend(bench.net, "head", bench.batch(number), 6, lr=0.3)
            assert torch.equal(layout.body_of(got), layout.body_of(bench.start["weights"]))
            present = [bench.stored(number, weights)["head"] for weights in (got, bench.net.weights)]
            torch.testing.assert_close(*present, rtol=0, atol=1e-12)


def test_gradients_are_pflegos() -> None:
    """Kills: a gradient before the head's steps, a head that also takes PFLEGO's joint step, a split that stays."""
    check_gradients_are_pflegos(FedRecon)


def test_rounds_by_hand() -> None:
    """Kills: parts that overlap or change places, a weight by all rows, the wrong sign, a head that is kept."""
    check_rounds(FedRecon)


def test_evaluation_reconstructs() -> None:
    """Kills: a head that is used as it starts; one reconstructed on the support part, or from elsewhere."""
    check_evaluation(FedRecon)


# --- mutants ------------------------------------------------------------------------------------------


class BodyFirst(FedRecon):
    def phases(self, context: Context) -> tuple[Phase, ...]:
        return super().phases(context)[::-1]


class SameRows(FedRecon):
    """Bug: both parts are the support part."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return tuple(replace(phase, rows="support") for phase in super().phases(context))


class ChangedPlaces(FedRecon):
    def phases(self, context: Context) -> tuple[Phase, ...]:
        head, body = super().phases(context)
        return replace(head, rows="query"), replace(body, rows="support")


class Joint(FedRecon):
    """Bug: the head goes on in the query phase."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        *heads, body = super().phases(context)
        return *heads, replace(body, trainable="all")


class AllRows(FedRecon):
    def weight(self, run: LocalRun) -> Scalar:
        return run.num_examples


class WrongSign(FedRecon):
    """Bug: a delta, after minus before, given to the server for a gradient."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        body = context.layout.body_of(server["weights"])
        return super().aggregate(server, replace(pooled, mean={"body": 2 * body - pooled.mean["body"]}), context)


class Keeps(FedRecon):
    """Bug (KarhouTam/FedRecon): a head from its client's first visit on."""

    @property
    def stateful(self) -> bool:
        return True

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        sent, _ = super().upload(run, received, state)
        return sent, {"head": run.client.context.layout.head_of(run.end)}


class DrawsAnew(FedRecon):
    """Bug (PFLEGO's code): another head at each visit."""

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        head = torch.rand(client.context.layout.head, generator=client.rng("head"))
        return super().start(received, {"head": head.to(received["body"])}, client)


class NoReconstruction(FedRecon):
    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        return ()


class OnSupport(FedRecon):
    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        return tuple(replace(phase, rows="support") for phase in super().personalise_phases(context))


@pytest.mark.parametrize("bug", [BodyFirst, SameRows, ChangedPlaces, Joint, AllRows, WrongSign, Keeps, DrawsAnew])
def test_wrong_rounds_are_killed(bug: type[FedRecon]) -> None:
    """Kills: an oracle that any round would pass."""
    with pytest.raises(AssertionError, match=r"Tensor-likes are not close"):
        check_rounds(bug)


@pytest.mark.parametrize("bug", [BodyFirst, SameRows, DrawsAnew])
def test_other_gradients_are_killed(bug: type[FedRecon]) -> None:
    """Kills: a comparison with PFLEGO from which neither moves."""
    with pytest.raises(AssertionError):
        check_gradients_are_pflegos(bug)


@pytest.mark.parametrize("bug", [NoReconstruction, OnSupport, DrawsAnew])
def test_wrong_evaluations_are_killed(bug: type[FedRecon]) -> None:
    """Kills: an oracle that any head would pass."""
    with pytest.raises(AssertionError, match=r"Tensor-likes are not close"):
        check_evaluation(bug)


# --- against its relatives, in a run ------------------------------------------------------------------


def body_after(folder: Path, name: str, fields: dict[str, Any], **local: Any) -> Tensor:
    """After three rounds of some of the clients, in float64 and full batches."""
    algorithm = {"name": name, **fields}
    settings = {"batch_size": "full", "epochs": 2, "lr": 0.2, **local}
    config = experiment(algorithm=algorithm, local=settings, participation={"count": 5}, execution=EXACT)
    done = drive(folder, config)
    return done.driver.layout.body_of(done.server["weights"])


def test_kept_heads_and_all_rows_are_fedrep(tmp_path: Path) -> None:
    """Kills: a server step of length 1 that is not the mean; a head that is not where it was left."""
    fields = {"recon_steps": 3, "recon_lr": 0.2, "reset_head": False, "support_frac": 1.0}
    ours = body_after(tmp_path / "a", "fedrecon", fields)
    fedrep = body_after(tmp_path / "b", "fedrep", {"head_epochs": 3, "body_epochs": 2})
    torch.testing.assert_close(ours, fedrep, rtol=0, atol=1e-12)
    split = body_after(tmp_path / "c", "fedrecon", {**fields, "support_frac": 0.5})
    assert (split - fedrep).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "yogi"])
def test_a_gradient_is_one_full_step(tmp_path: Path, optimizer: str) -> None:
    """Kills: a gradient of another size or sign than the step that it replaces; a server that forgets its moments.

    One step of size 1 ends a gradient away from where it started, so the server is given the same number.
    """
    server = {"server_optimizer": optimizer, "server_lr": 0.05}
    gradient = body_after(tmp_path / "a", "fedrecon", {"grad_only": True, **server}, lr=1.0)
    step = body_after(tmp_path / "b", "fedrecon", {"query_steps": 1, **server}, lr=1.0)
    torch.testing.assert_close(gradient, step, rtol=0, atol=1e-9)  # Adam divides by numbers near 0


# --- what is kept -------------------------------------------------------------------------------------


def test_nothing_is_kept_of_a_head_that_is_reset(tmp_path: Path) -> None:
    """Kills: heads in the store or in a checkpoint; an engine that takes a first head for a state."""
    for reset in (True, False):
        driver = open_driver(
            tmp_path / str(reset), experiment(algorithm={"name": "fedrecon", "recon_steps": 2, "reset_head": reset})
        )
        while not driver.finished:
            driver.advance()
        handles = driver.lineage.states.store.read(range(len(SIZES)))
        assert [handle is None for handle in handles] == [reset] * len(SIZES)
        summary = driver.close()
        assert (summary["states_sha256"] is None) == reset


def test_every_client_has_a_query_row() -> None:
    """Kills: a client whose weight is 0, and with it a cohort without a mean."""
    bench = Bench(MLP(hidden=(8,)), sizes=(1, 2, 3, 12))
    for share, wanted in ((0.9, [1, 1, 1, 1]), (0.5, [1, 1, 1, 6]), (1.0, [1, 2, 3, 12])):
        algorithm = FedRecon(support_frac=share, recon_steps=2)
        assert [bench.train(algorithm, number).weight for number in range(4)] == wanted


def test_what_is_refused() -> None:
    """Kills: a split without rows for the head; steps that nobody takes; a schedule that asks for a head never kept."""
    for field, value, sentence in (
        ("recon_steps", -1, "must be at least 0"),
        ("recon_lr", 0, "must be greater than 0"),
        ("query_steps", 0, "must be at least 1"),
        ("support_frac", 0, "must be greater than 0 and at most 1; 1 is no split: all rows for both"),
        ("support_frac", 1.5, "must be greater than 0 and at most 1"),
        ("server_lr", 0, "must be greater than 0"),
    ):
        with pytest.raises(ConfigError, match=f"^{field}={value}: {sentence}"):
            FedRecon(**{field: value})
    with pytest.raises(ConfigError, match=r"^query_steps=3: is not for grad_only, .*; set query_steps=null$"):
        FedRecon(grad_only=True, query_steps=3)
    for field, value in (("reset_head", False), ("server_optimizer", "adam")):
        change = [{"round": 2, "set": {f"algorithm.{field}": value}}]
        with pytest.raises(ConfigError, match=f"{field}={value}: cannot change in mid-run: .*; keep "):
            experiment(algorithm={"name": "fedrecon"}, schedule=change)
