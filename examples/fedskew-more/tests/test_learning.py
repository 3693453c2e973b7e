"""Every method learns: on the embedded Fashion-MNIST images the loss falls, and accuracy is well above chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fedskew_more import METHODS

from engine.experiment import Experiment
from engine.run.run import run

# FedBN is FedAvg on a model without BatchNorm, and a convolution takes its time.
FEWER: dict[str, Any] = {"rounds": 4, "data": {"train_samples": 500}, "model": {"name": "cnn", "norm": "batch"}}


@pytest.mark.parametrize("name", METHODS)
def test_learns(tmp_path: Path, name: str) -> None:
    """Kills: a sign error; a method that works on small numbers alone. Chance is 0.1, and among the classes that a
    client has about 0.2."""
    changes = FEWER if name == "fedbn" else {}
    experiment = Experiment(
        rounds=changes.get("rounds", 8),
        data={"name": "fashion_mnist_sample", "train_samples": 1500, "test_samples": 500, **changes.get("data", {})},
        partition={"name": "dirichlet", "clients": 5, "alpha": 0.5},
        model=changes.get("model", {"name": "mlp", "hidden": [50]}),
        local={"epochs": 2, "batch_size": 16, "lr": 0.05},
        algorithm={"name": name},
        execution={"actors": 0, "device": "cpu", "workers": 1},
        evaluation={"every": 0},
    )
    summary = run(experiment, out=tmp_path / "run")
    assert summary["accuracy"] > 0.5
    rounds = pd.read_parquet(tmp_path / "run" / "rounds.parquet")
    before, after = rounds["loss_before"].tolist(), rounds["loss_after"].tolist()
    assert sum(after) < sum(before)
    assert before[-1] < 0.7 * before[0]
