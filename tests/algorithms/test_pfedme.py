"""pFedMe: exact oracles in one dimension, its limits, and wrong versions as mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.pfedme import PFedMe
from engine.algorithm import Client, Context, LocalRun, Phase, PhaseResult, Pooled, Tensors, seeds
from engine.base.errors import ConfigError
from engine.data.samples.batches import orders
from engine.models import ResNet8
from tests.support.bench import Bench
from tests.support.pencil import Federation, quadratic
from tests.support.tiny import drive, experiment

CURVATURE, RATE, START = 2.0, 0.1, 0.7
COHORTS = ([0, 2], [1], [0, 1, 2])
FIELDS: dict[str, Any] = {"lam": 3.0, "local_rounds": 3, "inner_steps": 4, "personal_lr": 0.05, "server_lr": 0.5}


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", quadratic(CURVATURE))


def local_rounds(algorithm: PFedMe, w: float, targets: list[float]) -> tuple[float, float]:
    """Alg. 1 with f = a/2 (y - x)^2, x being the target of each local round: w and theta after them."""
    theta = w
    for target in targets:
        theta = w
        for _ in range(algorithm.inner_steps):
            theta -= algorithm.personal_lr * (CURVATURE * (theta - target) + algorithm.lam * (theta - w))
        w -= RATE * algorithm.lam * (w - theta)
    return w, theta


def check_by_hand(algorithm: PFedMe) -> None:
    """Rounds of full batches at partial participation; the personal model is kept as it was left."""
    targets = [[1.0], [4.0] * 2, [-3.0] * 5]
    federation = Federation(algorithm, targets, [1, 1, 1], lr=RATE, start=START)
    server, own = START, dict.fromkeys(range(3), START)
    for cohort in COHORTS:
        mean = 0.0
        for client in cohort:
            w, own[client] = local_rounds(algorithm, server, targets[client][:1] * algorithm.local_rounds)
            mean += w * len(targets[client]) / sum(len(targets[other]) for other in cohort)
        server = (1 - algorithm.server_lr) * server + algorithm.server_lr * mean
        for client, trained in zip(cohort, federation.round(cohort), strict=True):
            assert trained.personal.weights[0].item() == pytest.approx(own[client], rel=1e-12)
        assert federation.weight == pytest.approx(server, rel=1e-12)
        for client, theta in own.items():
            known = federation.states[client] is not None
            assert federation.own(client) == pytest.approx(theta if known else server, rel=1e-12)


def check_batches(algorithm: PFedMe) -> None:
    """One row a batch: each local round draws one, and stays with it for all its steps."""
    targets = [1.0, 4.0, -3.0, 2.5, 0.25]
    federation = Federation(algorithm, [targets], [1], lr=RATE, start=START, local={"batch_size": 1})
    rng = seeds.generator(0, "theta/batches", 1, 0)
    drawn = [next(orders(5, 1, "keep", rng))[0] for _ in range(algorithm.local_rounds)]
    w, theta = local_rounds(algorithm, START, [targets[int(row)] for row in drawn])
    trained = federation.train(0)
    assert trained.upload["weights"][0].item() == pytest.approx(w, rel=1e-12)
    assert trained.new_state["personal"][0].item() == pytest.approx(theta, rel=1e-12)
    assert len(set(map(int, drawn))) > 1


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("change", [{}, {"server_lr": 1.0}, {"server_lr": 2.0, "local_rounds": 1}, {"inner_steps": 1}])
def test_by_hand(change: dict[str, Any]) -> None:
    """Kills: w that stays where it was received, theta for w or w for theta, one learning rate for the other."""
    check_by_hand(PFedMe(**{**FIELDS, **change}))


@pytest.mark.usefixtures("pencil")
def test_a_local_round_has_one_batch() -> None:
    """Kills: a batch for each inner step, a pass that goes on over local rounds."""
    check_batches(PFedMe(**{**FIELDS, "local_rounds": 6}))


@pytest.mark.usefixtures("pencil")
def test_many_inner_steps_find_the_proximal_point() -> None:
    """theta = (a x + lambda w) / (a + lambda), and w moves by the gradient of the envelope, lambda a (w - x) /
    (a + lambda): a gradient descent whose fixed point is the client's optimum. Kills: a half or a square too many."""
    lam, rounds = 3.0, 7
    algorithm = PFedMe(lam=lam, local_rounds=rounds, inner_steps=200, personal_lr=0.1)
    trained = Federation(algorithm, [[4.0]], [1], lr=RATE, start=START).train(0)
    factor = 1 - RATE * lam * CURVATURE / (CURVATURE + lam)
    before, after = (4 + factor**count * (START - 4) for count in (rounds - 1, rounds))
    assert trained.upload["weights"][0].item() == pytest.approx(after, rel=1e-12)
    theta = (CURVATURE * 4 + lam * before) / (CURVATURE + lam)
    assert trained.new_state["personal"][0].item() == pytest.approx(theta, rel=1e-12)


def test_one_inner_step_can_be_fedavg(tmp_path: Path) -> None:
    """Kills: a pull that is not zero where a local round begins, eta from another place: with K = 1 and eta lambda = 1
    w goes to theta, a plain step of the inner rate."""
    exact = {"execution": {"actors": 0, "device": "cpu", "precision": "float64"}}
    fields = {"name": "pfedme", "lam": 10.0, "local_rounds": 3, "inner_steps": 1, "personal_lr": 0.05}
    pfedme = drive(tmp_path / "a", experiment(algorithm=fields, local={"lr": 0.1, "batch_size": "full"}, **exact))
    fedavg = drive(tmp_path / "b", experiment(local={"lr": 0.05, "steps": 3, "batch_size": "full"}, **exact))
    torch.testing.assert_close(pfedme.server["weights"], fedavg.server["weights"], rtol=0, atol=1e-12)


def test_the_personal_model_has_its_statistics() -> None:
    """Kills: theta without the statistics that it was trained with."""
    bench = Bench(ResNet8())
    trained = bench.train(PFedMe(local_rounds=2, inner_steps=2), 0)
    assert torch.equal(trained.new_state["personal_buffers"], trained.buffers)
    assert not torch.equal(trained.buffers, bench.start["buffers"])
    assert torch.equal(trained.new_state["personal"], trained.weights)
    assert not torch.equal(trained.upload["weights"], trained.weights)


def test_its_length_is_its_own(tmp_path: Path) -> None:
    """Kills: passes of the local section on top of R local rounds of K steps."""
    fields = {"name": "pfedme", "local_rounds": 3, "inner_steps": 4}
    run = drive(tmp_path, experiment(algorithm=fields, local={"epochs": 5}, rounds=1))
    assert set(run.folder.frame("clients")["steps"]) == {12}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lam": 0.0}, "algorithm.lam=0.0: must be greater than 0; for example algorithm.lam=15.0"),
        ({"local_rounds": 0}, "algorithm.local_rounds=0: must be at least 1; for example algorithm.local_rounds=20"),
        ({"inner_steps": 0}, "algorithm.inner_steps=0: must be at least 1; for example algorithm.inner_steps=5"),
        (
            {"personal_lr": 0.0},
            "algorithm.personal_lr=0.0: must be greater than 0; for example algorithm.pers",
        ),
        ({"personal_lr": 0.5, "lam": 4.0}, "algorithm.personal_lr=0.5: must be below 2 / lam = 0.5"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "pfedme", **fields})
    assert str(error.value).startswith(message)


def test_symbols() -> None:
    settings = experiment(algorithm={"name": "pfedme"}).override(["lambda=7", "beta=2"])
    assert (settings.value_of("algorithm.lam"), settings.value_of("algorithm.server_lr")) == (7, 2)


@pytest.mark.parametrize(("symbol", "keys"), [("R", "rounds or algorithm."), ("K", "partition.clients or ")])
def test_symbols_of_two_keys_are_refused(symbol: str, keys: str) -> None:
    """Kills: the paper's R and K taken for the number of rounds and of clients."""
    with pytest.raises(ConfigError, match=rf"^{symbol}=5: stands for more than one key; write {keys}"):
        experiment(algorithm={"name": "pfedme"}).override([f"{symbol}=5"])


# --- mutants ------------------------------------------------------------------------------------------


class SendsTheta(PFedMe):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, super().upload(run, received, state)[1]


class StaysWhereItWas(PFedMe):
    """Each local round from the received weights."""

    def phase_start(self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return received["weights"]


class GoesOnFromTheta(PFedMe):
    def phase_start(self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return previous.end


class AnchoredAtTheReceived(PFedMe):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return super().gradient(grad, weights, {**received, "phase_start": received["weights"]}, state, client)


class InnerRateForBoth(PFedMe):
    def outer(self, inner: PhaseResult, client: Client) -> Tensor:
        context = replace(client.context, lr=self.personal_lr)
        return super().outer(inner, replace(client, context=context))


class WithoutBeta(PFedMe):
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return {**server, "weights": pooled.mean["weights"]}


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize(
    "mutant", [SendsTheta, StaysWhereItWas, GoesOnFromTheta, AnchoredAtTheReceived, InnerRateForBoth, WithoutBeta]
)
def test_mutants_are_killed(mutant: type[PFedMe]) -> None:
    with pytest.raises(AssertionError):
        check_by_hand(mutant(**FIELDS))


class ABatchForEachStep(PFedMe):
    def phases(self, context: Context) -> tuple[Phase, ...]:
        return tuple(replace(phase, repeat=1) for phase in super().phases(context))


@pytest.mark.usefixtures("pencil")
def test_a_batch_for_each_step_is_killed() -> None:
    with pytest.raises(AssertionError):
        check_batches(ABatchForEachStep(**{**FIELDS, "local_rounds": 6}))
