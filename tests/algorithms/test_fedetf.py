"""FedETF: its simplex, a run against one with a temperature of its own in plain torch, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedetf import simplex
from engine.algorithm import ParamLayout
from engine.base.errors import ConfigError
from tests.support.full_batches import CLASSES, HIDDEN, drive, experiment, federation
from tests.support.plain_torch import HEAD, Own, close, cross_entropy, descend, features, owns

BIAS = CLASSES * HIDDEN  # where the head's bias begins


@pytest.mark.parametrize(("classes", "width"), [(4, 4), (10, 64), (2, 5)])
def test_the_simplex(classes: int, width: int) -> None:
    """Kills: vectors that are not of unit length, or not as far from each other as they can be; a bias."""
    layout = ParamLayout(body=0, head=classes * (width + 1), buffers=0, classes=classes, features=width)
    head = simplex(torch.randn(layout.head, generator=torch.Generator().manual_seed(1)).double(), layout)
    rows = head[: classes * width].view(classes, width)
    wanted = (classes * torch.eye(classes, dtype=torch.float64) - 1) / (classes - 1)
    torch.testing.assert_close(rows @ rows.T, wanted, rtol=0, atol=1e-12)
    assert (head[classes * width :] == 0).all()


def written_out(cohorts: Any, first: Tensor, gamma: float, scale: float) -> tuple[Tensor, Tensor]:
    """Bodies [.., -1] and temperatures, the last number, trained side by side; the classifier is no part of either."""
    start = first[-HEAD:][:BIAS].view(CLASSES, HIDDEN)
    left, _, right = torch.linalg.svd(start, full_matrices=False)
    frame = (CLASSES / (CLASSES - 1)) ** 0.5 * (torch.eye(CLASSES).double() - 1 / CLASSES) @ (left @ right)

    def loss(joint: Tensor, own: Own) -> Tensor:
        z = features(joint, own.x)
        cosines = (z / z.norm(dim=1, keepdim=True).clamp(min=1e-12)) @ frame.T
        prior = gamma * torch.tensor([max(count, 1e-300) for count in own.counts], dtype=torch.float64).log()
        return cross_entropy(joint[-1] * cosines + prior, own.y)

    own, joint = owns(federation()), torch.cat((first[:-HEAD], torch.tensor([scale], dtype=torch.float64)))
    for cohort in cohorts:
        total = sum(own[k].size for k in cohort)
        ends = [own[k].size / total * descend(lambda w, k=k: loss(w, own[k]), joint) for k in cohort]
        joint = torch.stack(ends).sum(0)
    return joint, frame


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize(("gamma", "scale"), [(1.0, 1.0), (0.0, 8.0), (0.5, 3.0)])
def test_a_run_is_that_of_a_trained_temperature(tmp_path: Path, gamma: float, scale: float, executor: str) -> None:
    """Kills: a classifier that moves otherwise than by its length; a temperature at another rate; a bias that is
    trained; features that are not normalised; a prior of the wrong sign or power."""
    fields = {"name": "fedetf", "gamma": gamma, "scale": scale}
    run = drive(tmp_path, experiment(fields, execution={"executor": executor}))
    joint, frame = written_out(run.cohorts, run.first["weights"], gamma, scale)
    close(run.server["weights"], torch.cat((joint[:-1], (joint[-1] * frame).flatten(), torch.zeros(CLASSES))))
    assert abs(joint[-1].item() - scale) > 1e-3


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    """Kills: a simplex in too few dimensions, an optimizer whose steps are not along the gradient."""
    with pytest.raises(ConfigError, match=r"algorithm.name=fedetf: needs 4 features or more for 4 classes, and the "):
        drive(tmp_path, experiment({"name": "fedetf"}, model={"name": "mlp", "hidden": [3]}))
    change = [{"round": 2, "set": {"algorithm.scale": 2.0}}]
    with pytest.raises(ConfigError, match=r"scale=2.0: cannot change in mid-run: .*; leave it at 1.0$"):
        experiment({"name": "fedetf"}, schedule=change)
    with pytest.raises(ConfigError, match=r"local.optimizer=adam: would not leave fedetf's classifier fixed; set "):
        experiment({"name": "fedetf"}, local={"optimizer": "adam"})
