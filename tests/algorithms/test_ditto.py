"""Ditto: exact oracles in one dimension, FedAvg and local training to the bit, and wrong versions as mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.ditto import Ditto
from algorithms.fedavg import FedAvg
from algorithms.local import LocalOnly
from engine.algorithm import Client, Context, LocalRun, ModelState, Phase, PhaseResult, Tensors
from engine.base.errors import ConfigError, RunError
from tests.support.pencil import Federation, quadratic
from tests.support.tiny import Driven, drive, experiment

TARGETS, STEPS = [[1.0], [4.0] * 2, [-3.0] * 5], [2, 9, 4]
COHORTS = ([0, 2], [1], [0, 1], [0, 1, 2])
RATE, START = 0.1, 0.7
SMALL: dict[str, Any] = {"model": {"name": "resnet8"}, "rounds": 2}


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", quadratic())


def check_by_hand(algorithm: Ditto) -> None:
    """Alg. 1 with f_k = (y - x_k)^2 / 2: v moves by -eta ((v - x) + lambda (v - w)), the global model as in FedAvg."""
    federation = Federation(algorithm, TARGETS, STEPS, lr=RATE, start=START)
    server, own = START, dict[int, float]()
    for cohort in COHORTS:
        ends = []
        for client in cohort:
            (target, *_), v, w = TARGETS[client], own.get(client, server), server
            for _ in range(algorithm.personal_epochs or STEPS[client]):
                v -= RATE * ((v - target) + algorithm.lam * (v - server))
            for _ in range(STEPS[client]):
                w -= RATE * (w - target)
            own[client] = v
            ends.append((len(TARGETS[client]), w))
        server = sum(size * w for size, w in ends) / sum(size for size, _ in ends)
        for client, trained in zip(cohort, federation.round(cohort), strict=True):
            assert trained.new_state["personal"][0].item() == pytest.approx(own[client], rel=1e-12)
            assert trained.personal.weights[0].item() == pytest.approx(own[client], rel=1e-12)
        assert federation.weight == pytest.approx(server, rel=1e-12)
    for client, v in own.items():
        assert federation.own(client) == pytest.approx(v, rel=1e-12)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize(
    "fields", [{"lam": 0.5}, {"lam": 3.0}, {"lam": 0.0}, {"lam": 0.5, "personal_epochs": 5}], ids=str
)
def test_by_hand(fields: dict[str, Any]) -> None:
    """Kills: a term without its half, a personal model that is not kept, epochs of the one for the other."""
    check_by_hand(Ditto(**fields))


@pytest.mark.usefixtures("pencil")
def test_the_personal_model_lies_between() -> None:
    """Kills: a pull of the wrong size: the minimum of f_k + lambda/2 (v - w)^2 is (x + lambda w) / (1 + lambda)."""
    for lam in (0.0, 1.0, 99.0):
        federation = Federation(Ditto(lam=lam), [[3.0]], [40], lr=0.9 / (1 + lam), start=START)
        own = federation.train(0).new_state["personal"][0].item()
        assert own == pytest.approx((3 + lam * START) / (1 + lam), rel=1e-12)


def run(folder: Path, name: str, **changes: Any) -> Driven:
    fields = {"lam": 0.0} if name == "ditto" else {}
    return drive(folder, experiment(**SMALL, **changes, algorithm={"name": name, **fields}))


def test_without_a_pull_it_is_local_training(tmp_path: Path) -> None:
    """Kills: statistics of the global model in the personal one. To the bit; of all rows no order is drawn."""
    full = {"local": {"batch_size": "full"}}
    ditto, local = run(tmp_path / "a", "ditto", **full), run(tmp_path / "b", "local", **full)
    assert ditto.summary["states_sha256"] == local.summary["states_sha256"]


@pytest.mark.slow
def test_without_a_pull_it_is_local_training_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a personal model whose batches depend on the global model's training."""
    monkeypatch.setattr(LocalOnly, "phases", lambda self, context: (Phase(name="personal"),))
    ditto, local = run(tmp_path / "a", "ditto"), run(tmp_path / "b", "local")
    assert ditto.summary["states_sha256"] == local.summary["states_sha256"]


def check_global_part(folder: Path) -> None:
    """FedAvg's weights and statistics, and the losses that are reported, to the bit."""
    local = {"momentum": 0.9, "weight_decay": 1e-3, "lr": 0.02}
    ditto, fedavg = (
        drive(folder / name, experiment(algorithm={"name": name}, local=local, participation={"count": 5}, **SMALL))
        for name in ("ditto", "fedavg")
    )
    assert ditto.sha == fedavg.sha
    losses = ["loss_before", "loss_after"]
    assert ditto.folder.frame("clients")[losses].equals(fedavg.folder.frame("clients")[losses])


def test_the_global_part_is_fedavg(tmp_path: Path) -> None:
    """Kills: batches that the personal model has taken away, its statistics in the mean, losses of another model."""
    check_global_part(tmp_path)


@pytest.mark.usefixtures("pencil")
def test_a_personal_model_that_diverges_is_named() -> None:
    """Kills: weights that are kept though they are not numbers, since the global ones are."""
    with pytest.raises(RunError, match="client 0 diverged in round 1"):
        Federation(Ditto(lam=1e6), [[3.0]], [100]).train(0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lam": -0.1}, "algorithm.lam=-0.1: must be at least 0; 0 is local training beside FedAvg"),
        ({"personal_epochs": 0}, "algorithm.personal_epochs=0: must be at least 1; null is as many as for the global"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "ditto", **fields})
    assert str(error.value).startswith(message)


def test_lambda_is_a_symbol() -> None:
    assert experiment(algorithm={"name": "ditto"}).override(["lambda=0.7"]).value_of("algorithm.lam") == 0.7


# --- mutants ------------------------------------------------------------------------------------------


class Restarting(Ditto):
    """A personal model that begins at the received one each round."""

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return super().start(received, state, client)._replace(weights=received["weights"])


class AnchoredAtItself(Ditto):
    """Held near where it was, and not near the global model."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return super().gradient(grad, weights, {**received, "weights": received["phase_start"]}, state, client)


class OnBoth(Ditto):
    """A pull on the global model too: FedProx."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return super().gradient(grad, weights, received, state, replace(client, phase="personal"))


class NoHalf(Ditto):
    """lambda ||v - w||^2."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        pulled = super().gradient(grad, weights, received, state, client)
        return 2 * pulled - grad


class SendsItsOwn(Ditto):
    """The server averages personal models."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.ends["personal"].end}, super().upload(run, received, state)[1]


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("mutant", [Restarting, AnchoredAtItself, OnBoth, NoHalf, SendsItsOwn])
def test_mutants_are_killed(mutant: type[Ditto]) -> None:
    with pytest.raises(AssertionError):
        check_by_hand(mutant(lam=0.5))


class OneStream(Ditto):
    """Phases that draw from one stream: the global model gets what the personal one leaves."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return tuple(replace(phase, name="personal") for phase in super().phases(context))

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad  # or the global model were pulled too


class StatisticsCarriedOver(Ditto):
    """The global model trained on the statistics that the personal one has come to."""

    def phase_start(self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(received["weights"], previous.buffers)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [OneStream, StatisticsCarriedOver])
def test_leaks_into_the_global_part_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: type[Ditto]
) -> None:
    monkeypatch.setitem(ALGORITHMS, "ditto", mutant)
    with pytest.raises(AssertionError):
        check_global_part(tmp_path)


class GlobalStatistics(Ditto):
    """A personal model with the statistics of the global one."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, self.keeping(ModelState(run.ends["personal"].end, run.buffers))


def test_foreign_statistics_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "ditto", GlobalStatistics)
    with pytest.raises(AssertionError):
        test_without_a_pull_it_is_local_training(tmp_path)
