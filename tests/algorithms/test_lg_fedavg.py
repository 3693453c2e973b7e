"""LG-FedAvg: a run against own bodies and one head in plain torch, what stays where, and where the cut may be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.base.errors import ConfigError
from tests.support.full_batches import CNN, drive, experiment, federation
from tests.support.plain_torch import HEAD, close, cross_entropy, descend, logits, owns

LG = {"name": "lg_fedavg"}


@pytest.mark.parametrize("executor", ["loop", "block"])
def test_a_run_is_own_bodies_under_one_head(tmp_path: Path, executor: str) -> None:
    """Kills: bodies that are averaged, a body of another client, one that is forgotten, a head that is not averaged by
    rows; a newcomer that does not start from the first body under the head of now."""
    run = drive(tmp_path, experiment(LG, rounds=4, execution={"executor": executor}))
    own, first = owns(federation()), run.first["weights"]
    head, bodies = first[-HEAD:], dict.fromkeys(range(len(own)), first[:-HEAD])
    for cohort in run.cohorts:
        heads, total = [], sum(own[k].size for k in cohort)
        for k in cohort:
            end = descend(lambda w, k=k: cross_entropy(logits(w, own[k].x), own[k].y), torch.cat((bodies[k], head)))
            bodies[k] = end[:-HEAD]
            heads.append(own[k].size / total * end[-HEAD:])
        head = torch.stack(heads).sum(0)
    close(run.server["weights"], torch.cat((first[:-HEAD], head)))
    for k, state in enumerate(run.states):
        if state:
            close(state["base"], bodies[k])
    assert (head - first[-HEAD:]).abs().max() > 0.01


def test_statistics_stay_with_their_clients(tmp_path: Path) -> None:
    """Kills: BatchNorm's statistics in the mean, or those that all started from in a client's next round."""
    run = drive(tmp_path, experiment(LG, model=CNN, participation={"count": 3}))
    assert torch.equal(run.server["buffers"], run.first["buffers"])
    kept = [state["statistics"] for state in run.states]
    assert not torch.equal(kept[0], kept[1]) and not torch.equal(kept[0], run.first["buffers"])
    again = drive(tmp_path / "again", experiment(LG, model=CNN, participation={"count": 3}, rounds=2))
    assert not torch.equal(again.states[0]["statistics"], kept[0])


def test_more_layers_are_shared(tmp_path: Path) -> None:
    """Kills: a cut that is read nowhere, or that counts from below: with two layers the second hidden one is shared."""
    run = drive(tmp_path, experiment({**LG, "layers": 2}, model={"name": "mlp", "hidden": [5, 6]}))
    same = run.server["weights"] == run.first["weights"]
    below = 5 * (64 + 1)
    assert same[:below].all() and not same[below:].all()
    assert len(run.states[0]["base"]) == below


def test_too_many_layers_are_refused(tmp_path: Path) -> None:
    """Kills: a cut below the model."""
    with pytest.raises(ConfigError, match=r"algorithm.layers=2: leaves no block below them: the model has 1 below"):
        drive(tmp_path, experiment({**LG, "layers": 2}))
