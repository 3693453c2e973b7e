"""Clients with rows of token ids: executor ``block`` against ``loop``, and a federated run that learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import Dataset, Split
from tests.support import side_by_side
from tests.support.side_by_side import RAGGED, assert_alike, second_round, together
from tests.support.tiny import CLASSES, SIZES, assignment, drive, experiment_of

VOCABULARY, LENGTH = 40, 7
DAN = {"name": "dan", "vocabulary": VOCABULARY, "dimension": 6, "hidden": [5]}


def texts(samples: int, seed: int) -> Split:
    """Rows of 1 to 7 tokens, most of them of the nine that belong to the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, samples)
    ids = np.where(rng.random((samples, LENGTH)) < 0.8, 1 + 9 * labels[:, None], 1) + rng.integers(
        0, 9, (samples, LENGTH)
    )
    ids[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, samples)[:, None]] = 0
    return Split(ids.astype(np.float32)[:, :, None, None], labels.astype(np.int64))


def dataset(samples: int) -> Dataset:
    return Dataset("texts", tuple("abcd"), texts(samples, 0), texts(80, 1), (0.0,), (1.0,), VOCABULARY)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fedavg", {}),
        ("fedprox", {"mu": 0.1}),
        ("scaffold", {}),
        ("ditto", {}),
        ("fedrep", {"head_epochs": 1}),
        ("pfedme", {"local_rounds": 4, "inner_steps": 2, "personal_lr": 0.1}),
    ],
)
def test_block_is_loop(tmp_path: Path, name: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: embeddings of another client of the block; a gradient that is spread over another's; padding counted where
    rows are stacked."""
    monkeypatch.setattr(side_by_side, "dataset", dataset)
    local = {"epochs": 1, "batch_size": 8, "lr": 0.1}
    execution = {"precision": "float64"}
    config = experiment_of(name, fields, model=DAN, rounds=3, evaluation={"every": 0}, local=local, execution=execution)
    trainer, visits, wanted = second_round(tmp_path, config)
    assert len(visits) == len(RAGGED)
    assert sum(trained.loss_after != trained.loss_before for trained in wanted) >= 4
    assert_alike(together(trainer, visits), wanted, 1e-9)


@pytest.mark.parametrize("executor", ["loop", "block"])
def test_a_run_learns_and_has_the_same_bits_again(tmp_path: Path, executor: str) -> None:
    """Kills: embeddings that are not trained, or not sent; a draw that no key belongs to."""
    local = {"epochs": 5, "lr": 0.5}
    config = experiment_of("fedavg", model=DAN, rounds=8, local=local, execution={"executor": executor})
    one, two = (drive(tmp_path / name, config, dataset(sum(SIZES)), assignment(SIZES)) for name in "ab")
    assert one.sha == two.sha
    assert one.summary["accuracy"] > 0.6  # chance is 0.25


@pytest.mark.parametrize(("name", "model"), [("moon", {**DAN, "projection": True}), ("perfedavg", DAN)])
def test_algorithms_that_look_deeper(tmp_path: Path, name: str, model: dict[str, Any]) -> None:
    """Features of other models, second derivatives. Kills: an embedding that has none of them."""
    config = experiment_of(name, model=model, rounds=2)
    assert np.isfinite(drive(tmp_path, config, dataset(sum(SIZES)), assignment(SIZES)).summary["loss"])
