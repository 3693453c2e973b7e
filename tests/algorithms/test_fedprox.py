"""FedProx: exact oracles (O-X2, O-X3; O-X1 is in test_reductions.py), and public bugs as mutants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from engine.algorithm import Client, Tensors
from engine.base.errors import ConfigError
from tests.support.pencil import Federation, quadratic
from tests.support.tiny import experiment


def update(algorithm: FedAvg, steps: int = 6, start: float = 0.7, **local: Any) -> float:
    """Of one client with f = (y - 3)^2 (curvature 2) at eta 0.1."""
    federation = Federation(algorithm, [[3.0]], [steps], start=start, local=local)
    return federation.train(0).upload["weights"][0].item() - start


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", quadratic(2.0))


def check_closed_form(cls: type[FedProx]) -> None:
    """O-X3: y_tau - w = (1 - (1 - eta (a + mu))^tau) a (b - w) / (a + mu)."""
    for mu in (0.1, 1.0, 5.0):
        for steps in (2, 6):
            factor = 1 - (1 - 0.1 * (2 + mu)) ** steps
            assert update(cls(mu=mu), steps) == pytest.approx(factor * 2 * (3 - 0.7) / (2 + mu), rel=1e-12)


def check_momentum(cls: type[FedProx]) -> None:
    """v <- rho v + g + mu (y - w); y <- y - eta v, by hand: the term goes through the momentum, once."""
    y = start = 0.7
    velocity = 0.0
    for _ in range(6):
        velocity = 0.9 * velocity + 2 * (y - 3) + 1.5 * (y - start)
        y -= 0.1 * velocity
    assert update(cls(mu=1.5), momentum=0.9) == pytest.approx(y - start, rel=1e-12)


@pytest.mark.usefixtures("pencil")
def test_closed_form() -> None:
    """Kills: a missing half or square, a constant mu (O-X3)."""
    check_closed_form(FedProx)


@pytest.mark.usefixtures("pencil")
def test_one_step_is_fedavg() -> None:
    """Kills: a penalty that is not zero at the received weights (O-X2)."""
    assert update(FedProx(mu=9.0), 1) == update(FedAvg(), 1)


@pytest.mark.usefixtures("pencil")
def test_updates_shrink_with_mu() -> None:
    """Kills: a term of the wrong sign; to nothing while eta mu < 1 (O-X3)."""
    updates = [update(FedProx(mu=mu), 60) for mu in (0.0, 0.1, 1.0, 3.0, 5.0)]
    assert updates == sorted(updates, reverse=True)
    tiny = Federation(FedProx(mu=1e4), [[3.0]], [60], lr=5e-5, start=0.7).train(0).upload["weights"][0].item()
    assert abs(tiny - 0.7) < 1e-3


@pytest.mark.usefixtures("pencil")
def test_momentum_by_hand() -> None:
    """Kills: a term outside the momentum, or in it twice by aliasing (G-04)."""
    check_momentum(FedProx)


def test_bad_values_are_refused() -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError, match=r"algorithm\.mu=-0\.1: must be at least 0; 0 is FedAvg"):
        experiment(algorithm={"name": "fedprox", "mu": -0.1})


# --- mutants ------------------------------------------------------------------------------------------


class NoSquare(FedProx):
    """Flower PR 2210: the gradient of (mu/2) ||w - w_t||, the square forgotten."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        away = weights - received["weights"]
        return grad + self.mu / 2 * away / torch.linalg.vector_norm(away).clamp(min=1e-12)


class NoHalf(FedProx):
    """mu ||w - w_t||^2."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + 2 * self.mu * (weights - received["weights"])


class HardCodedMu(FedProx):
    """FedDC's repository: weight 1e-4 without the half, whatever mu is."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + 2e-4 * (weights - received["weights"])


class Leaking(FedProx):
    """A term that is written into the gradient in place, and added once more: what aliasing comes to (G-04)."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        pull = self.mu * (weights - received["weights"])
        return grad.add_(pull) + pull


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("mutant", [NoSquare, NoHalf, HardCodedMu, Leaking])
@pytest.mark.parametrize("check", [check_closed_form, check_momentum])
def test_mutants_are_killed(mutant: type[FedProx], check: Any) -> None:
    with pytest.raises(AssertionError):
        check(mutant)
