"""FedNova: exact oracles (O-N1 to O-N4; O-N5 is in test_messages.py), its options, and public bugs as mutants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.fednova import FedNova
from engine.algorithm import Context, LocalRun, Pooled, Scalar, Tensors
from engine.base.errors import ConfigError
from tests.support.pencil import Federation, linear, quadratic
from tests.support.tiny import SIZES, assignment, drive, experiment

EXACT = {"actors": 0, "device": "cpu", "precision": "float64"}


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(FedAvg, "loss", quadratic())
    return monkeypatch


def check_equal_steps_are_fedavg(algorithm: FedNova) -> None:
    """O-N1, on clients of sizes 1, 2 and 3 with a quadratic each."""
    ends = []
    for one in (algorithm, FedAvg()):
        federation = Federation(one, [[1.0], [4.0, 5.0], [-3.0] * 3], steps=[6, 6, 6], local={"momentum": 0.9})
        federation.round()
        federation.round()
        ends.append(federation.weight)
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


def check_direction_of_a_linear_loss(algorithm: FedNova, **local: Any) -> None:
    """Where the gradient is b everywhere, Delta_k / a_k is -eta b whatever was done locally."""
    for steps in (1, 2, 5, 20):
        federation = Federation(algorithm, [[2.5, 2.5, 2.5]], [steps], lr=0.03, local={"epochs": 7, **local})
        direction = federation.train(0).upload["direction"][0].item()
        assert direction == pytest.approx(-0.03 * 2.5, rel=1e-10), steps


def check_update_is_amplified_by_the_spread_of_sizes(algorithm: FedNova) -> None:
    """O-N3: with B | n_k, E epochs and plain SGD the step is (1 + CV^2) times the plain mean of Delta_k."""
    targets = [[1.0] * 2, [4.0] * 4, [-3.0] * 6, [0.5] * 12]
    steps = [3 * len(client) // 2 for client in targets]  # E = 3, B = 2
    federation = Federation(algorithm, targets, steps, start=0.7)
    ends = [one.upload["weights"][0].item() for one in Federation(FedAvg(), targets, steps, start=0.7).round()]
    sizes = np.array([len(client) for client in targets])
    federation.round()
    spread = (sizes.std() / sizes.mean()) ** 2
    assert federation.weight - 0.7 == pytest.approx((1 + spread) * (np.mean(ends) - 0.7), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
def test_equal_steps_are_fedavg(tmp_path: Path, local: dict[str, Any]) -> None:
    """Kills: a normaliser that does not cancel (O-N1); BatchNorm's statistics under it."""
    ends = []
    for name in ("fednova", "fedavg"):
        settings = experiment(
            algorithm={"name": name},
            local={"steps": 5, "lr": 0.02, "last_batch": "wrap", **local},  # no batch of one row, which is skipped
            model={"name": "resnet20"},
            execution=EXACT,
        )
        ends.append(drive(tmp_path / name, settings, parts=assignment([20, 60, 40])).server)
    for entry in ("weights", "buffers"):
        torch.testing.assert_close(ends[0][entry], ends[1][entry], rtol=0, atol=1e-10)


def test_equal_steps_with_a_proximal_term_are_fedprox(tmp_path: Path) -> None:
    """Kills: a proximal term of another strength, or one that the normaliser does not know."""
    ends = []
    for name in ("fednova", "fedprox"):
        settings = experiment(algorithm={"name": name, "mu": 0.7}, local={"steps": 5}, execution=EXACT)
        ends.append(drive(tmp_path / name, settings).server["weights"])
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_equal_steps_by_hand(pencil: pytest.MonkeyPatch) -> None:
    check_equal_steps_are_fedavg(FedNova())


@pytest.mark.parametrize(("steps", "value"), [(1, 1.0), (2, 1.99), (10, 9.561792), (50, 39.499393)])
def test_accumulation_with_a_proximal_term(pencil: pytest.MonkeyPatch, steps: int, value: float) -> None:
    """Kills: the number of steps in place of a_k (O-N2; momentum's vectors are in test_golden.py): eta mu = 0.01."""
    federation = Federation(FedNova(mu=0.1), [[2.0]], [steps], lr=0.1)
    assert federation.train(0).upload["accumulation"].item() == pytest.approx(value, abs=1e-6)


LOCALS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.5},
    {"momentum": 0.9, "nesterov": True},
]


@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_direction_of_a_linear_loss(monkeypatch: pytest.MonkeyPatch, local: dict[str, Any]) -> None:
    """Kills: a_k that is not what the optimizer does (O-N2)."""
    monkeypatch.setattr(FedAvg, "loss", linear)
    check_direction_of_a_linear_loss(FedNova(), **local)


def test_direction_of_a_linear_loss_with_a_proximal_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", linear)
    check_direction_of_a_linear_loss(FedNova(mu=3.0))


def test_fixed_epochs_amplify_by_the_spread_of_sizes(pencil: pytest.MonkeyPatch) -> None:
    """Kills: tau_eff by clients in place of samples (O-N3)."""
    check_update_is_amplified_by_the_spread_of_sizes(FedNova())


def test_the_step_is_the_sum_over_clients(pencil: pytest.MonkeyPatch) -> None:
    """Kills: a product of means that is not sum_k p_k tau_eff / a_k Delta_k, with each tau_eff."""
    targets, steps, share = [[1.0], [4.0] * 2, [-3.0] * 5], [2, 9, 4], np.array([1, 2, 5]) / 8
    for tau_eff in ("norm", "steps"):
        algorithm = FedNova(tau_eff=tau_eff, server_lr=0.7)  # type: ignore[arg-type]
        federation = Federation(algorithm, targets, steps, local={"momentum": 0.9})
        trained = federation.round()
        plain = Federation(FedAvg(), targets, steps, local={"momentum": 0.9}).round()
        updates = np.array([one.upload["weights"][0].item() for one in plain])
        a = np.array([one.upload["accumulation"].item() for one in trained])
        effective = share @ (a if tau_eff == "norm" else np.array(steps))
        assert federation.weight == pytest.approx(0.7 * (share * effective / a) @ updates, rel=1e-12)


@pytest.mark.slow
def test_fixed_points(pencil: pytest.MonkeyPatch) -> None:
    """Kills: any weighting that leaves the objective inconsistent (O-N4).

    f_k = (y - b_k)^2 / 2 and tau_k steps, of which Delta_k = (1 - (1 - eta)^tau_k) (b_k - w): to first order in eta
    FedAvg ends at sum p tau b / sum p tau, FedNova at sum p b.
    """
    targets, steps = [[1.0], [4.0] * 2, [-3.0]], [2, 30, 8]
    share, b = np.array([1, 2, 1]) / 4, np.array([1.0, 4.0, -3.0])
    tau = np.array(steps)
    ends = {}
    for algorithm in (FedNova(), FedAvg()):
        federation = Federation(algorithm, targets, steps, lr=0.01, start=3.0)
        for _ in range(130):
            federation.round()
        ends[type(algorithm)] = federation.weight
    for algorithm, power, first_order in ((FedAvg, 0, (share * tau) @ b / (share @ tau)), (FedNova, 1, share @ b)):
        weight = share * (1 - 0.99**tau) / tau**power
        assert ends[algorithm] == pytest.approx(weight @ b / weight.sum(), abs=1e-7)
        assert ends[algorithm] == pytest.approx(first_order, abs=0.2)
    assert abs(ends[FedAvg] - ends[FedNova]) > 1


def test_a_client_without_steps_has_no_direction() -> None:
    """Kills: 0 / 0."""

    def upload(steps: int) -> Tensors:
        start, end = torch.zeros(2), torch.zeros(2)
        run: Any = type("Run", (), {"start": start, "end": end, "steps": steps, "accumulation": float(steps)})()
        return FedNova().upload(run, {}, {})[0]

    assert torch.equal(upload(0)["direction"], torch.zeros(2))
    assert upload(0)["accumulation"] == 0


# --- options ------------------------------------------------------------------------------------------


def test_server_momentum_is_on_the_normalised_step(pencil: pytest.MonkeyPatch) -> None:
    """Kills: momentum on the plain update."""
    targets, steps = [[1.0], [4.0] * 2], [2, 9]
    still = Federation(FedNova(), targets, steps)
    moving = Federation(FedNova(server_momentum=0.5), targets, steps)
    for federation in (still, moving):
        federation.round()
    first = still.weight
    assert moving.weight == pytest.approx(first, rel=1e-12)
    moving.round()
    still.round()  # from the same weights
    assert moving.weight - first == pytest.approx(still.weight - first + 0.5 * first, rel=1e-12)


def test_max_multiplier_holds_the_smallest_clients(pencil: pytest.MonkeyPatch) -> None:
    """Kills: a limit on all clients alike, or on a_k; a limit that nobody hears of."""
    targets, steps, share = [[1.0], [4.0] * 6, [-3.0] * 9], [1, 12, 18], np.array([1, 6, 9]) / 16
    tau_eff = share @ np.array(steps)
    updates = [one.upload["weights"][0].item() for one in Federation(FedAvg(), targets, steps).round()]
    limited = Federation(FedNova(max_multiplier=1.5), targets, steps)
    limited.round()
    factors = np.minimum(tau_eff / np.array(steps), 1.5)
    assert limited.weight == pytest.approx((share * factors) @ np.array(updates), rel=1e-12)
    assert limited.server["held"] == 1
    assert limited.server["tau_eff"] == pytest.approx(tau_eff, rel=1e-12)
    loose, none = (Federation(FedNova(max_multiplier=m), targets, steps) for m in (1e6, None))
    for federation in (loose, none):
        federation.round()
    assert loose.weight == pytest.approx(none.weight, rel=1e-12)
    assert loose.server["held"] == 0
    assert "held" not in none.server


def test_what_is_held_is_in_the_rounds_table(tmp_path: Path) -> None:
    """Kills: a limit that acts in silence; single uploads that are kept although there is none."""
    for limit in (1.2, None):
        fields = {"name": "fednova", "max_multiplier": limit}
        run = drive(tmp_path / str(limit), experiment(algorithm=fields, rounds=2))
        rows = [dict(row) for row in run.folder.frame("rounds")["scalars"]]
        steps = np.array([2 * -(-size // 8) for size in SIZES])
        tau_eff = np.array(SIZES) @ steps / sum(SIZES)
        assert [row["tau_eff"] for row in rows] == pytest.approx([tau_eff] * 2, rel=1e-6)
        assert FedNova(max_multiplier=limit).stack_uploads == (limit is not None)
        if limit is not None:
            assert [row["held"] for row in rows] == [(tau_eff / steps > limit).sum()] * 2
        else:
            assert all("held" not in row for row in rows)


@pytest.mark.parametrize(
    ("fields", "local", "message"),
    [
        ({"mu": -1.0}, {}, "algorithm.mu=-1.0: must be at least 0; 0 is none"),
        ({"server_momentum": 1.0}, {}, "algorithm.server_momentum=1.0: must be at least 0 and below 1; 0 is none"),
        ({"max_multiplier": 0.0}, {}, "algorithm.max_multiplier=0.0: must be greater than 0; null is no limit"),
        ({"tau_eff": "mean"}, {}, "algorithm.tau_eff=mean: must be 'norm' or 'steps'"),
        (
            {"mu": 0.1},
            {"momentum": 0.9},
            "algorithm.mu=0.1: a_k is known for a proximal term or for momentum, not for both; "
            "set algorithm.mu=0 or local.momentum=0",
        ),
        (
            {"mu": 20.0},
            {"lr": 0.1},
            "algorithm.mu=20.0: must be below 1 / local.lr = 10, beyond which steps overshoot the received weights",
        ),
        ({}, {"optimizer": "adam"}, "local.optimizer=adam: fednova reads gradients off the path of SGD"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], local: dict[str, Any], message: str) -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "fednova", **fields}, local=local)
    assert str(error.value).startswith(message)


# --- mutants ------------------------------------------------------------------------------------------


class Steps(FedNova):
    """The number of steps under momentum."""

    def accumulation(self, run: LocalRun) -> Scalar:
        return run.steps


class Epochs(FedNova):
    """Epochs for steps (Plato issue 382)."""

    def accumulation(self, run: LocalRun) -> Scalar:
        return float(run.local.epochs)


class Samples(FedNova):
    """Samples for steps (FL4Health PR 64)."""

    def accumulation(self, run: LocalRun) -> Scalar:
        return run.num_examples


class Mixed(FedNova):
    """G-04: both recursions into one normaliser, as in the authors' optimizer with rho > 0 and mu > 0."""

    def accumulation(self, run: LocalRun) -> Scalar:
        counter = total = 0.0
        for _ in range(int(run.steps)):
            counter = run.local.momentum * counter + 1
            total = (total + counter) * (1 - run.lr * self.mu) + 1
        return total


class NoEffectiveSteps(FedNova):
    """Normalised updates that nobody scales back."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return self.stepped(server, pooled.mean["direction"])


class EqualClients(FedNova):
    """tau_eff as the plain mean over clients."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        assert pooled.stacked is not None
        return self.stepped(server, pooled.stacked["accumulation"].mean() * pooled.mean["direction"])


@pytest.mark.parametrize(
    ("mutant", "local"),
    [(Steps(), {"momentum": 0.9}), (Epochs(), {}), (Samples(), {}), (Mixed(mu=3.0), {"momentum": 0.9})],
    ids=lambda value: type(value).__name__,
)
def test_wrong_normalisers_are_killed(monkeypatch: pytest.MonkeyPatch, mutant: FedNova, local: dict[str, Any]) -> None:
    monkeypatch.setattr(FedAvg, "loss", linear)
    with pytest.raises(AssertionError):
        check_direction_of_a_linear_loss(mutant, **local)


def test_wrong_means_are_killed(pencil: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_equal_steps_are_fedavg(NoEffectiveSteps())
    with pytest.raises(AssertionError):
        check_update_is_amplified_by_the_spread_of_sizes(EqualClients())
