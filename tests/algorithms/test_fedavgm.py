"""FedAvgM: exact oracles (O-A1 to O-A3), and the public variants that are not its default, as mutants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.fedavgm import FedAvgM
from engine.algorithm import Pooled, Tensors
from engine.base.errors import ConfigError
from engine.record.run_folder import RunFolder
from engine.run.driver import Driver
from engine.server.round import RoundRunner
from engine.worker.in_process import InProcessPool
from tests.support.outcomes import variance_mask
from tests.support.pencil import context, regression
from tests.support.tiny import BATCHNORM, assignment, dataset, drive, experiment

NET = regression([0.0])[1]
UPDATE = torch.tensor([1.0, -0.5], dtype=torch.float64)


def steps(algorithm: FedAvg, updates: list[torch.Tensor]) -> list[torch.Tensor]:
    """The server's steps where clients' mean updates are these."""
    server: Tensors = {"weights": torch.tensor([3.0, 7.0], dtype=torch.float64), "buffers": torch.zeros(0)}
    taken = []
    for update in updates:
        pooled = Pooled({"weights": server["weights"] + update}, weight=1.0, count=1)
        moved = algorithm.aggregate(server, pooled, context(NET))
        taken.append(moved["weights"] - server["weights"])
        server = moved
    return taken


def check_first_step_is_the_update(algorithm: FedAvgM) -> None:
    torch.testing.assert_close(steps(algorithm, [UPDATE])[0], UPDATE, rtol=1e-12, atol=0)


def check_geometric_series(algorithm: FedAvgM) -> None:
    """v_t = D (1 - beta^t) / (1 - beta) for a constant D."""
    beta = algorithm.server_momentum
    for number, step in enumerate(steps(algorithm, [UPDATE] * 40), start=1):
        wanted = algorithm.server_lr * UPDATE * (1 - beta**number) / (1 - beta)
        torch.testing.assert_close(step, wanted, rtol=1e-12, atol=0)


def check_average(algorithm: FedAvgM) -> None:
    """v_t = D (1 - beta^t): the step tends to D, never beyond it."""
    for number, step in enumerate(steps(algorithm, [UPDATE] * 40), start=1):
        wanted = UPDATE * (1 - algorithm.server_momentum**number)
        torch.testing.assert_close(step, wanted, rtol=1e-12, atol=1e-12)


def test_without_momentum_it_is_fedavg(tmp_path: Path) -> None:
    """Kills: a velocity that is there although beta is 0 (O-A1; here to the bit, for any form and server_lr)."""
    for form in ("heavy_ball", "nesterov", "ema"):
        for rate in (1.0, 0.5):
            ours = steps(FedAvgM(server_lr=rate, server_momentum=0.0, form=form), [UPDATE, 2 * UPDATE])
            theirs = steps(FedAvg(server_lr=rate), [UPDATE, 2 * UPDATE])
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_a_constant_update_adds_up_to_a_geometric_series(beta: float, rate: float) -> None:
    """Kills: an average in place of a sum, the velocity scaled by server_lr twice (O-A2)."""
    check_geometric_series(FedAvgM(server_lr=rate, server_momentum=beta))


def test_forms_start_as_they_should() -> None:
    """Kills: one form taken for another (O-A3, G-06): the first steps are D, (1 + beta) D, (1 - beta) D."""
    for form, factor in (("heavy_ball", 1.0), ("nesterov", 1.9), ("ema", 0.1)):
        first = steps(FedAvgM(server_momentum=0.9, form=form), [UPDATE])[0]  # type: ignore[arg-type]
        torch.testing.assert_close(first, factor * UPDATE, rtol=1e-12, atol=0)
    assert FedAvgM().form == "heavy_ball"


def test_an_average_tends_to_the_update() -> None:
    """Kills: (1 - beta) forgotten."""
    check_average(FedAvgM(form="ema"))


def test_nesterov_is_one_step_ahead() -> None:
    """Kills: a look-ahead along the old velocity: step_t = D_t + beta v_t with v_t that of the heavy ball."""
    updates = [UPDATE, -2 * UPDATE, 0.3 * UPDATE]
    heavy = steps(FedAvgM(server_momentum=0.8), updates)
    ahead = steps(FedAvgM(server_momentum=0.8, form="nesterov"), updates)
    for update, ball, step in zip(updates, heavy, ahead, strict=True):
        torch.testing.assert_close(step, update + 0.8 * ball, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("beta", [-0.1, 1.0, 1.5])
def test_bad_values_are_refused(beta: float) -> None:
    """Kills: a velocity that grows without end."""
    with pytest.raises(ConfigError, match=f"server_momentum={beta}: must be at least 0 and below 1; 0 is FedAvg"):
        FedAvgM(server_momentum=beta)


# --- mutants ------------------------------------------------------------------------------------------


class FlowersDefault(FedAvgM):
    """G-06: Flower's FedAvgM steps by D + beta v where the paper steps by v."""

    def stepped(self, server: Tensors, update: torch.Tensor) -> Tensors:
        velocity = self.server_momentum * server.get("velocity", torch.zeros_like(update)) + update
        step = update + self.server_momentum * velocity
        return {**server, "weights": server["weights"] + step, "velocity": velocity}


class NoAverage(FedAvgM):
    """The heavy ball under the name of the average."""

    def stepped(self, server: Tensors, update: torch.Tensor) -> Tensors:
        velocity = self.server_momentum * server.get("velocity", torch.zeros_like(update)) + update
        return {**server, "weights": server["weights"] + velocity, "velocity": velocity}


class NoMemory(FedAvgM):
    """A velocity that is computed and not kept."""

    def stepped(self, server: Tensors, update: torch.Tensor) -> Tensors:
        return {name: tensor for name, tensor in super().stepped(server, update).items() if name != "velocity"}


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (FlowersDefault(), check_first_step_is_the_update),
        (FlowersDefault(), check_geometric_series),
        (NoAverage(form="ema"), check_average),
        (NoMemory(), check_geometric_series),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_mutants_are_killed(mutant: Any, check: Any) -> None:
    with pytest.raises(AssertionError):
        check(mutant)


class MomentumOnBuffers(RoundRunner):
    """G-07 (MOON's code), E-07 (FedNova's, by name of the layer): the rule for weights reaches running statistics."""

    def _aggregated(self, *args: Any) -> Tensors:
        new, buffers = super()._aggregated(*args), args[-1]
        self.velocity = 0.9 * getattr(self, "velocity", 0.0) + (new["buffers"] - buffers)
        return {**new, "buffers": buffers + self.velocity}


def check_variances_stay_positive(folder: Path, cls: type[RoundRunner]) -> None:
    """O-5 on FedAvgM, with a small learning rate: the statistics of the images alone move the buffers."""
    config = experiment(
        algorithm={"name": "fedavgm"}, rounds=8, local={"lr": 1e-3, "batch_size": 64, "epochs": 3}, **BATCHNORM
    )
    data, parts, run_folder = dataset(), assignment([60, 60]), RunFolder(folder)
    run_folder.create(config)
    driver = Driver(config, run_folder, data, parts, InProcessPool(config, data, parts))
    driver.rounds = cls(driver.federation)
    variances = variance_mask(driver.pool._workers[0].net)  # type: ignore[attr-defined]
    while not driver.finished:
        driver.advance()
        assert (driver.lineage.server["buffers"][variances] > 0).all()
    driver.close()


def test_running_variances_are_means_and_no_sums(tmp_path: Path) -> None:
    """Kills: server momentum on BatchNorm's buffers (G-07, E-07), whose variances overshoot zero."""
    check_variances_stay_positive(tmp_path / "ours", RoundRunner)
    with pytest.raises(AssertionError):
        check_variances_stay_positive(tmp_path / "mutant", MomentumOnBuffers)


def test_a_velocity_begins_with_the_stage(tmp_path: Path) -> None:
    """Kills: a velocity that a later stage inherits: its first step is FedAvg's."""
    base = {"name": "base", "algorithm": {"name": "fedavgm"}, "rounds": 2}
    ends = []
    for name in ("fedavgm", "fedavg"):
        stages = [base, {"name": "next", "algorithm": {"name": name}, "rounds": 1, "needs": ["base"]}]
        ends.append(drive(tmp_path / name, experiment(stages=stages)).server)
    assert "velocity" in ends[0]
    torch.testing.assert_close(ends[0]["weights"], ends[1]["weights"], rtol=1e-5, atol=1e-6)
