"""The method of this package: found by its entry point, and what it does to updates."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from fedskew_more.fedclip import FedClip

from fedskew import Experiment, run
from fedskew.testing import parametrize_with_checks

POINTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]


def test_the_entry_point_is_the_method() -> None:
    """Kills: a method that fedskew would not find, or finds under another name."""
    ((name, place),) = POINTS["fedskew.plugins"].items()
    module, _, attribute = place.partition(":")
    assert (name, getattr(importlib.import_module(module), attribute)) == ("algorithm.fedclip", FedClip)


def test_updates_are_clipped(tmp_path: Path) -> None:
    """Kills: a norm that is not the update's, a factor above 1; a name that no config finds."""

    def norm(clip: float) -> float:
        experiment = Experiment(
            rounds=1,
            data={"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
            partition={"name": "iid", "clients": 1},
            model={"name": "logistic"},
            algorithm={"name": "fedclip", "clip": clip},
            execution={"actors": 0, "device": "cpu"},
        )
        run(experiment, out=tmp_path / str(clip))
        return pd.read_parquet(tmp_path / str(clip) / "rounds.parquet")["update_norm"].item()

    assert norm(0.01) == pytest.approx(0.01, rel=1e-4)
    assert 0.01 < norm(1e6) < 1e6


@parametrize_with_checks([FedClip()])
def test_the_contract_is_kept(part, check) -> None:
    """Kills: a method that a checkpoint, an executor or another process would betray."""
    check(part)
