"""FedDyn against Algorithm 1 written out, and what its correction is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.full_batches import COUNTS, Driven, drive, experiment, federation
from tests.support.plain_torch import close, cross_entropy, descend, logits, owns

ALPHA = 0.3
SIZES = [sum(own) for own in COUNTS]


def written_out(run: Driven, weighting: str) -> tuple[Tensor, Tensor, list[Tensor]]:
    """theta, h and each client's gradient at the end. ``samples``: clients count as often as their rows."""
    own = owns(federation())
    count = [1] * len(own) if weighting == "uniform" else SIZES
    theta = run.first["weights"]
    h, kept = torch.zeros_like(theta), [torch.zeros_like(theta) for _ in own]
    for cohort in run.cohorts:
        ends: dict[int, Tensor] = {}
        for k in cohort:

            def risk(w: Tensor, k: int = k, theta: Tensor = theta) -> Tensor:
                near = ALPHA / 2 * (w - theta).square().sum()
                return cross_entropy(logits(w, own[k].x), own[k].y) - kept[k] @ w + near

            ends[k] = descend(risk, theta)
            kept[k] = kept[k] - ALPHA * (ends[k] - theta)
        h = h - ALPHA / sum(count) * sum(count[k] * (end - theta) for k, end in ends.items())
        total = sum(count[k] for k in cohort)
        theta = torch.stack([count[k] / total * end for k, end in ends.items()]).sum(0) - h / ALPHA
    return theta, h, kept


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_run_is_algorithm_1(tmp_path: Path, weighting: str, executor: str) -> None:
    """Kills: a sign of any of the three terms, the cohort's size for the number of clients, a state that is not stored
    back, h of the round before in the server's step."""
    fields = {"name": "feddyn", "alpha": ALPHA, "weighting": weighting}
    run = drive(tmp_path, experiment(fields, rounds=4, execution={"executor": executor}))
    theta, h, kept = written_out(run, weighting)
    close(run.server["weights"], theta)
    close(run.server["mean_gradient"], h)
    for state, wanted in zip(run.states, kept, strict=True):
        if state:
            close(state["local_gradient"], wanted)
    # h is the mean of what clients keep, those who never came included
    count = torch.tensor([1.0] * 3 if weighting == "uniform" else SIZES, dtype=torch.float64)
    close(run.server["mean_gradient"], (count / count.sum()) @ torch.stack(kept))


def test_first_local_training_is_fedprox(tmp_path: Path) -> None:
    """Kills: a regulariser with twice or half its weight: before anything is kept, clients do what FedProx's do.

    With everybody there the server adds the mean update once more: w + 2 D.
    """
    everybody = {"rounds": 1, "participation": {"count": 3}}
    dyn = drive(tmp_path / "dyn", experiment({"name": "feddyn", "alpha": ALPHA, "weighting": "samples"}, **everybody))
    prox = drive(tmp_path / "prox", experiment({"name": "fedprox", "mu": ALPHA}, **everybody))
    start = dyn.first["weights"]
    close(dyn.server["weights"], start + 2 * (prox.server["weights"] - start))


def test_it_comes_to_the_optimum_of_all_where_fedavg_does_not(tmp_path: Path) -> None:
    """Kills: a correction that does not vanish at the common optimum, which is what the paper proves of it.

    A linear model with weight decay, so that the risk over all rows has one optimum; there its gradient is 0.
    """
    decay, own = 0.1, owns(federation())

    def gradient_at_the_end_of(fields: dict[str, Any]) -> float:
        local = {"steps": 60, "lr": 0.1, "weight_decay": decay}
        config = experiment(fields, rounds=60, model={"name": "logistic"}, local=local, participation={"count": 3})
        w = drive(tmp_path / fields["name"], config).server["weights"].clone().requires_grad_()
        scores = [one.x @ w[:256].view(4, 64).T + w[256:] for one in own]
        risks = [n / sum(SIZES) * cross_entropy(s, one.y) for n, s, one in zip(SIZES, scores, own, strict=True)]
        (grad,) = torch.autograd.grad(torch.stack(risks).sum() + decay / 2 * w.square().sum(), w)
        return grad.norm().item()

    fedavg = gradient_at_the_end_of({"name": "fedavg"})
    feddyn = gradient_at_the_end_of({"name": "feddyn", "alpha": 0.3, "weighting": "samples"})
    assert fedavg > 1e-3
    assert feddyn < 0.01 * fedavg
