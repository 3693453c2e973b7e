"""FedROD: its two losses with a pencil, and whole runs against both heads trained separately in plain torch."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedrod import FedROD
from engine.base.errors import ConfigError
from tests.support.full_batches import Driven, drive, experiment, federation
from tests.support.plain_torch import (
    HEAD,
    averaged,
    close,
    cross_entropy,
    descend,
    features,
    head,
    logits,
    owns,
    rows_of,
)

GAMMA = 0.8


def balanced(weights: Tensor, own: Any) -> Tensor:
    """Mean over rows of -log(n_y^gamma e^f_y / sum_c n_c^gamma e^f_c)."""
    shares = torch.tensor([float(count) for count in own.counts], dtype=torch.float64) ** GAMMA
    masses = logits(weights, own.x).exp() * shares
    return torch.stack([-(row[y] / row.sum()).log() for row, y in zip(masses, own.y, strict=True)]).mean()


def test_balanced_softmax_by_hand() -> None:
    """Kills: a prior of the wrong sign, one that is not a power. Counts 8 and 1: with equal logits and gamma = 1/3, the
    classes have masses 2 and 1; a class without rows has none."""
    client = SimpleNamespace(class_counts=torch.tensor([8, 1, 0]), phase="")
    batch: Any = SimpleNamespace(
        x=torch.tensor([[0.4, 0.4, 7.0]], dtype=torch.float64), y=torch.tensor([1]), client=client
    )
    net: Any = lambda x: x  # noqa: E731
    assert FedROD(gamma=1 / 3).loss(net, batch, {}, {}).item() == pytest.approx(math.log(3), rel=1e-9)
    client.phase = "personal"
    three = 2 + math.exp(6.6)
    assert FedROD(gamma=1 / 3).loss(net, batch, {}, {}).item() == pytest.approx(math.log(three), rel=1e-9)


def personal_heads(run: Driven, data: Any, steps: int) -> dict[int, Tensor]:
    """The P of each client that took part, trained by itself beside a generic head that stands still."""
    own, weights = owns(data), run.first["weights"]
    heads: dict[int, Tensor] = {}
    for cohort in run.cohorts:
        total, mean = sum(own[k].size for k in cohort), torch.zeros_like(weights)
        for k in cohort:
            end = descend(lambda w, k=k: balanced(w, own[k]), weights)
            z = features(end, own[k].x)
            fixed = head(end, z)
            heads[k] = descend(
                lambda p, k=k, z=z, fixed=fixed: cross_entropy(fixed + head(p, z), own[k].y),
                heads.get(k, torch.zeros(HEAD, dtype=torch.float64)),
                steps,
            )
            mean = mean + own[k].size / total * end
        weights = mean
    return heads


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("passes", [None, 2])
def test_a_run_trains_both_heads(tmp_path: Path, passes: int | None, executor: str) -> None:
    """Kills: a personal head that reaches the server or the body, one trained without the generic logits, one that is
    forgotten between rounds; features of the received body, passes that are not the field's."""
    data = federation()
    fields = {"name": "fedrod", "gamma": GAMMA, "personal_epochs": passes}
    run = drive(tmp_path, experiment(fields, execution={"executor": executor}), data)
    close(run.server["weights"], averaged(run, data, lambda w, received, own: balanced(w, own)))
    wanted = personal_heads(run, data, steps=3 if passes is None else passes)
    assert {k for k, state in enumerate(run.states) if state} == wanted.keys()
    for k, personal in wanted.items():
        close(run.states[k]["personal_head"], personal)
        assert personal.abs().max() > 1e-3


def test_clients_answer_by_the_sum_of_both_heads(tmp_path: Path) -> None:
    """Kills: an own model without the personal head, or under another client's."""
    data = federation()
    run = drive(tmp_path, experiment({"name": "fedrod"}), data)
    table = run.folder.frame("personal")
    last = table[(table["round"] == 3) & (table["point"] == "post_server")].set_index("client")
    for k, part in enumerate(data[1].tests):
        test = rows_of(data[0].test.images[part], data[0].test.labels[part])
        personal = run.states[k].get("personal_head", torch.zeros(HEAD, dtype=torch.float64))
        z = features(run.server["weights"], test.x)
        answers = (head(run.server["weights"], z) + head(personal, z)).argmax(1).tolist()
        right = sum(a == y for a, y in zip(answers, test.y, strict=True)) / test.size
        assert last.loc[k, "accuracy"] == pytest.approx(right, abs=1e-9)


def test_without_passes_own_models_are_the_generic_one(tmp_path: Path) -> None:
    """Kills: a personal head that starts elsewhere than at 0."""
    run = drive(tmp_path, experiment({"name": "fedrod", "personal_epochs": 0}))
    assert all(not state["personal_head"].any() for state in run.states if state)


def test_a_head_that_is_not_linear_is_refused() -> None:
    """Kills: a sum of heads where logits are not a sum."""
    with pytest.raises(ConfigError, match=r"model\.head=normalised"):
        experiment({"name": "fedrod"}, model={"name": "mlp", "hidden": [6], "head": "normalised"})
