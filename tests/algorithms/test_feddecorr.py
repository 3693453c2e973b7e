"""FedDecorr: its term by hand, against torch's correlations, and whole runs against the loss written out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from algorithms.feddecorr import FedDecorr
from tests.support.full_batches import drive, experiment, federation
from tests.support.plain_torch import Objective, Own, averaged, close, cross_entropy, features, logits

TWINS = torch.tensor([[1.0, 2.0], [2.0, 4.0], [4.0, 8.0], [-1.0, -2.0]], dtype=torch.float64)
STRANGERS = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("z", "paper", "code"),
    [(TWINS, 1.0, 9 / 4), (TWINS * torch.tensor([1, -1]), 1.0, 9 / 4), (STRANGERS, 1 / 2, 0.0)],
    ids=["twins", "opposites", "strangers"],
)
def test_by_hand(z: Tensor, paper: float, code: float) -> None:
    """Kills: a diagonal that is in where it is not, or the other way round; a scale of features; a mean over d.

    Of two features that go together all four correlations are 1 or -1, of two that do not the diagonal's two. The
    code's sums of products are N - 1 = 3 times that: 3^2 / N.
    """
    for form, wanted in (("paper", paper), ("code", code)):
        assert FedDecorr(form=form).correlations(z).item() == pytest.approx(wanted, rel=1e-7, abs=1e-12)


def test_it_is_torchs_correlation() -> None:
    """Kills: covariances, rows for features."""
    z = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = torch.corrcoef(z.T).square().mean().item()
    assert FedDecorr().correlations(z).item() == pytest.approx(wanted, rel=1e-6)


def test_a_dead_feature_has_a_gradient() -> None:
    """Kills: a root or a division at a variance of 0."""
    z = torch.cat((TWINS, torch.zeros(4, 1, dtype=torch.float64)), dim=1).requires_grad_()
    (grad,) = torch.autograd.grad(FedDecorr().correlations(z), z)
    assert torch.isfinite(grad).all()


def feddecorr(beta: float) -> Objective:
    def objective(weights: Tensor, received: Tensor, own: Own) -> Tensor:
        z = features(weights, own.x)
        apart = z - z.sum(0) / own.size
        covariances = apart.T @ apart / (own.size - 1)
        spread = (torch.diagonal(covariances) + 1e-8).sqrt()
        correlations = covariances / torch.outer(spread, spread)
        return cross_entropy(logits(weights, own.x), own.y) + beta * (correlations**2).sum() / z.shape[1] ** 2

    return objective


@pytest.mark.parametrize("executor", ["loop", "block"])
def test_a_run_is_that_of_the_loss_written_out(tmp_path: Path, executor: str) -> None:
    """Kills: features other than the head's, a term without gradient, another client's rows."""
    data = federation()
    run = drive(tmp_path, experiment({"name": "feddecorr", "beta": 2.0}, execution={"executor": executor}), data)
    close(run.server["weights"], averaged(run, data, feddecorr(2.0)))
    assert (run.server["weights"] - averaged(run, data, feddecorr(1.0))).abs().max() > 1e-4
