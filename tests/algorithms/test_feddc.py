"""FedDC: exact oracles (O-DC1 to O-DC6), its options, and what differs in public code as mutants (G-03)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from algorithms.feddc import FedDC, relative_size
from engine.algorithm import Batch, Client, Context, LocalRun, Net, Pooled, Tensors
from engine.base.errors import ConfigError
from engine.models import MLP
from tests.support.bench import FEW, Bench
from tests.support.pencil import Federation, linear, quadratic, weight_of
from tests.support.tiny import SIZES, assignment, dataset, drive, experiment

EXACT = {"actors": 0, "device": "cpu", "precision": "float64"}
TARGETS, STEPS = [[1.0], [4.0] * 2, [-3.0] * 5], [2, 9, 4]
SHARE = torch.tensor([1, 2, 5], dtype=torch.float64) / 8


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(FedAvg, "loss", quadratic())
    return monkeypatch


def check_first_round_is_fedprox(algorithm: FedDC) -> None:
    """O-DC1: the states are zero, and what is left is a proximal term of weight alpha_k = alpha n / (n_k K)."""
    bench = Bench(MLP(hidden=(8,)))
    for number, size in enumerate(FEW):
        end = bench.train(algorithm, number).upload["weights"]
        mu = algorithm.alpha / (size * len(FEW) / sum(FEW))
        prox = bench.train(ALGORITHMS.build({"name": "fedprox", "mu": mu}), number).upload["weights"]
        torch.testing.assert_close(end, prox, rtol=0, atol=1e-12)


def check_control_of_a_linear_loss(algorithm: FedDC, **local: Any) -> None:
    """Where the gradient is b_k everywhere, g_k is b_k after any participation, whatever the decay of the rate.

    Patched: loss = <b_k, y>. Delta = -eta a (b_k + g/s_k - g_k), so g_k - g/s_k - Delta / (eta a) = b_k.
    """
    federation = Federation(algorithm, TARGETS, STEPS, lr=0.03, local=local)
    for lr, cohort in ((0.03, [0, 2]), (0.02, [0, 1]), (0.01, [0, 1, 2])):
        federation.context = replace(federation.context, lr=lr)
        federation.round(cohort)
        for client in cohort:
            state = federation.states[client]
            assert state is not None
            assert state["control"][0].item() == pytest.approx(TARGETS[client][0], rel=1e-9)


def check_server_follows_what_clients_keep(algorithm: FedDC) -> None:
    """O-DC4, O-DC5 at partial participation: g = mean of s_k g_k, h = mean of h_k, h_k = sum of k's own updates."""
    federation = Federation(algorithm, TARGETS, STEPS)
    own = torch.zeros(3, dtype=torch.float64)
    for cohort in ([0, 2], [1], [0, 1], [0, 1, 2]):
        before = federation.weight
        for client, trained in zip(cohort, federation.round(cohort), strict=True):
            own[client] += trained.upload["weights"][0] - before
        states = [state or {"control": torch.zeros(2), "drift": torch.zeros(2)} for state in federation.states]
        control = torch.stack([state["control"][0] for state in states])
        drift = torch.stack([state["drift"][0] for state in states])
        torch.testing.assert_close(drift, own, rtol=0, atol=1e-12)
        of_all = drift.mean() if algorithm.weighting == "uniform" else SHARE @ drift
        torch.testing.assert_close(federation.server["control"][0], SHARE @ control, rtol=0, atol=1e-12)
        torch.testing.assert_close(federation.server["mean_drift"][0], of_all, rtol=0, atol=1e-12)


def check_reaches_the_optimum(algorithm: FedDC, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients in every round, f_k = a_k/2 (y - b_k)^2 with a_k = (1 + b_k^2)/2; sizes and steps differ."""

    def loss(self: Any, net: Net, batch: Batch, received: Tensors, state: Tensors) -> torch.Tensor:
        target = batch.x.view(-1)[0]
        return (1 + target**2) / 4 * (weight_of(net) - target).square()

    monkeypatch.setattr(FedAvg, "loss", loss)
    federation = Federation(algorithm, TARGETS, STEPS, lr=0.05)
    for _ in range(60):
        federation.round()
    heavy = [len(rows) * (1 + rows[0] ** 2) / 2 for rows in TARGETS]
    optimum = sum(weight * rows[0] for weight, rows in zip(heavy, TARGETS, strict=True)) / sum(heavy)
    assert federation.weight == pytest.approx(optimum, abs=1e-5)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_reaches_the_optimum(monkeypatch: pytest.MonkeyPatch, weighting: Any) -> None:
    """Kills: a penalty that does not fit the means, so that the fixed point lies beside the optimum."""
    check_reaches_the_optimum(FedDC(alpha=0.5, weighting=weighting), monkeypatch)


def test_first_round_is_fedprox() -> None:
    """Kills: a penalty that is the same for clients of every size, a term without its half (O-DC1)."""
    check_first_round_is_fedprox(FedDC(alpha=0.5))


def test_first_server_step_is_twice_the_mean(pencil: pytest.MonkeyPatch) -> None:
    """Kills: a mean drift that lags by a round (O-DC2), a server_lr that scales half of the step."""
    for rate in (1.0, 0.5):
        federation = Federation(FedDC(alpha=0.1, server_lr=rate), TARGETS, STEPS, start=0.7)
        ends = [one.upload["weights"][0].item() for one in federation.round()]
        assert federation.weight == pytest.approx(0.7 + rate * 2 * (np.mean(ends) - 0.7), rel=1e-12)


class NoCorrection(FedDC):
    def gradient(self, grad: torch.Tensor, *args: Any) -> torch.Tensor:
        return grad


def test_without_penalty_and_correction_it_is_not_fedavg(pencil: pytest.MonkeyPatch) -> None:
    """Kills: alpha = 0 taken for FedAvg (O-DC3): w_{t+1} = w_t + D_t + sum of all D_s up to t."""
    federation = Federation(NoCorrection(alpha=0.0), TARGETS, STEPS, start=0.7)
    total = 0.0
    for _ in range(5):
        before = federation.weight
        update = float(np.mean([one.upload["weights"][0].item() for one in federation.round()])) - before
        total += update
        assert federation.weight == pytest.approx(before + update + total, rel=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_server_follows_what_clients_keep(pencil: pytest.MonkeyPatch, weighting: Any) -> None:
    """Kills: the cohort's mean where the mean over all clients belongs (O-DC4, O-DC5); a pair that does not match."""
    check_server_follows_what_clients_keep(FedDC(alpha=0.3, weighting=weighting))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_server_follows_what_clients_keep_in_a_run(tmp_path: Path, weighting: str) -> None:
    """Kills: a state that is not stored back, or that belongs to a place in the cohort (O-DC4)."""
    fields = {"name": "feddc", "weighting": weighting}
    done = drive(tmp_path, experiment(algorithm=fields, participation={"count": 3}, rounds=5, execution=EXACT))
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    kept = {"control": torch.zeros_like(done.server["weights"]), "drift": torch.zeros_like(done.server["weights"])}
    for client, size in enumerate(sizes / sizes.sum()):
        state = done.driver.lineage.states.store.read([client])[0]
        if state is not None:
            kept["control"] += size * state["control"]
            kept["drift"] += (size if weighting == "samples" else 1 / len(SIZES)) * state["drift"]
    torch.testing.assert_close(done.server["control"], kept["control"], rtol=0, atol=1e-10)
    torch.testing.assert_close(done.server["mean_drift"], kept["drift"], rtol=0, atol=1e-10)


def test_a_heavy_penalty_leads_to_minus_the_drift(pencil: pytest.MonkeyPatch) -> None:
    """Kills: a drift of the wrong sign (O-DC6): with eta alpha < 1 and alpha large, Delta_k -> -h_k."""
    federation = Federation(FedDC(alpha=1e5), [[2.0]], [80], lr=5e-6)
    drift = torch.tensor([0.8, 0.0], dtype=torch.float64)
    federation.states = [{"drift": drift, "control": torch.zeros_like(drift)}]
    assert federation.train(0).upload["weights"][0].item() == pytest.approx(-0.8, abs=1e-4)


@pytest.mark.parametrize("local", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_control_of_a_linear_loss(monkeypatch: pytest.MonkeyPatch, weighting: Any, local: dict[str, Any]) -> None:
    """Kills: the first round's rate, the mean client's steps, bare steps under momentum (G-03); g without 1/s_k."""
    monkeypatch.setattr(FedAvg, "loss", linear)
    check_control_of_a_linear_loss(FedDC(alpha=0.0, weighting=weighting), **local)


@pytest.mark.parametrize(("epochs", "reference"), [(3, 6), (1.25, 3)])
def test_the_released_normaliser(monkeypatch: pytest.MonkeyPatch, epochs: float, reference: int) -> None:
    """Kills: an option that is not the released code's: the first rate, and E ceil(mean n / B) steps for all.

    Loss <b, y>, sizes 1, 2, 5: mean 8/3, so 2 batches of 2 rows, which are 6 steps in 3 epochs and 3 in 1.25; b is
    scaled by a / 6, or a / 3, and by the decay of the rate.
    """
    monkeypatch.setattr(FedAvg, "loss", linear)
    local = {"epochs": epochs, "batch_size": 2, "steps": None}
    federation = Federation(FedDC(alpha=0.0, reference_norm=True), TARGETS, STEPS, lr=0.04, local=local)
    federation.context = replace(federation.context, lr=0.01)
    for client, trained in enumerate(federation.round()):
        steps = math.ceil(epochs * -(-len(TARGETS[client]) // 2))
        wanted = TARGETS[client][0] * steps / reference * 0.01 / 0.04
        assert trained.new_state["control"][0].item() == pytest.approx(wanted, rel=1e-12)


def test_clipping_bounds_the_corrected_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a limit on the plain gradient, on each entry, or one that stretches short gradients."""
    client: Any = type("One", (), {"num_examples": 1, "context": Federation(FedDC(), [[1.0]], [1]).context})()
    zero = torch.zeros(2, dtype=torch.float64)
    received = {"weights": zero, "control": torch.tensor([0.0, 3.0], dtype=torch.float64)}
    state = {"control": zero, "drift": zero}
    grad = torch.tensor([4.0, 0.0], dtype=torch.float64)
    assert FedDC(alpha=0.0, clip=1.0).gradient(grad, zero, received, state, client).tolist() == pytest.approx(
        [0.8, 0.6]
    )
    assert FedDC(alpha=0.0, clip=9.0).gradient(grad, zero, received, state, client).tolist() == [4.0, 3.0]
    nothing = {"weights": zero, "control": zero}
    assert FedDC(alpha=0.0, clip=1.0).gradient(zero, zero, nothing, state, client).tolist() == [0.0, 0.0]


def test_clipping_far_away_changes_nothing(tmp_path: Path) -> None:
    runs = [
        drive(tmp_path / str(clip), experiment(algorithm={"name": "feddc", "clip": clip})).sha for clip in (None, 1e9)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": -0.1}, "algorithm.alpha=-0.1: must be at least 0; 0 is none, which is not FedAvg"),
        ({"clip": 0.0}, "algorithm.clip=0.0: must be greater than 0; null is no limit"),
        ({"weighting": "size"}, "algorithm.weighting=size: must be 'uniform' or 'samples'"),
        ({"server_lr": 0.0}, "algorithm.server_lr=0.0: must be greater than 0; 1 takes the mean itself"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "feddc", **fields})
    assert str(error.value).startswith(message)


def test_adam_is_refused() -> None:
    """Kills: gradients read off a path that is not SGD's."""
    with pytest.raises(ConfigError, match=r"local\.optimizer=adam: feddc reads gradients off the path of SGD"):
        experiment(algorithm={"name": "feddc"}, local={"optimizer": "adam"})


def test_uneven_clients_and_a_full_cohort_learn(tmp_path: Path) -> None:
    """Kills: relative sizes that blow up a client of one row."""
    parts = assignment([1, 59, 60])
    run = drive(tmp_path, experiment(algorithm={"name": "feddc"}, rounds=10), dataset(), parts)
    assert run.summary["accuracy"] > 0.85


# --- mutants ------------------------------------------------------------------------------------------


class FirstRate(FedDC):
    """G-03: the undecayed learning rate."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return super().upload(replace(run, lr=run.local.lr), received, state)


class AverageSteps(FedDC):
    """G-03: the same step count for every client, here the mean one."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return super().upload(replace(run, accumulation=sum(STEPS) / len(STEPS)), received, state)


class BareSteps(FedDC):
    """Steps where momentum has made more of them."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return super().upload(replace(run, accumulation=run.steps), received, state)


class UnscaledUpdate(FedDC):
    """Trains with g / s_k and updates g_k with g, as SCAFFOLD does in FedDC's code."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        control = received["control"] * relative_size(run.client)
        return super().upload(run, {**received, "control": control}, state)


class SamePenalty(FedDC):
    """alpha for alpha_k."""

    def gradient(
        self, grad: torch.Tensor, weights: torch.Tensor, received: Tensors, state: Tensors, client: Client
    ) -> torch.Tensor:
        return grad + self.alpha * (weights - received["weights"] + state["drift"])


class DividedPenalty(FedDC):
    """alpha_k beside means by samples."""

    def gradient(
        self, grad: torch.Tensor, weights: torch.Tensor, received: Tensors, state: Tensors, client: Client
    ) -> torch.Tensor:
        return FedDC(alpha=self.alpha).gradient(grad, weights, received, state, client)


class CohortForAll(FedDC):
    """The cohort's mean for the mean over all clients, as E-06 in SCAFFOLD."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        everybody = replace(context, num_clients=pooled.count, num_examples=int(pooled.weight))
        return super().aggregate(server, pooled, everybody)


@pytest.mark.parametrize(
    ("mutant", "local"),
    [(FirstRate, {}), (AverageSteps, {}), (BareSteps, {"momentum": 0.9}), (UnscaledUpdate, {})],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_corrections_are_killed(monkeypatch: pytest.MonkeyPatch, mutant: Any, local: dict[str, Any]) -> None:
    monkeypatch.setattr(FedAvg, "loss", linear)
    with pytest.raises(AssertionError):
        check_control_of_a_linear_loss(mutant(alpha=0.0), **local)


def test_a_penalty_that_ignores_sizes_is_killed() -> None:
    with pytest.raises(AssertionError):
        check_first_round_is_fedprox(SamePenalty(alpha=0.5))


def test_a_penalty_beside_the_means_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_reaches_the_optimum(DividedPenalty(alpha=0.5, weighting="samples"), monkeypatch)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_server_that_forgets_the_absent_is_killed(pencil: pytest.MonkeyPatch, weighting: Any) -> None:
    with pytest.raises(AssertionError):
        check_server_follows_what_clients_keep(CohortForAll(alpha=0.3, weighting=weighting))
