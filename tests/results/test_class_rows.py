"""Accuracy of classes with many, medium and few training rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.results import load
from engine.results.class_figures import by_rows
from tests.support.sweep_folders import BASE, make_run


def test_the_thresholds() -> None:
    """Liu et al. (CVPR 2019): many are more than 100 rows, few fewer than 20. Kills: an edge on the other side; a mean
    by rows; a class without test data that counts, or makes NaN of the others."""
    rows = np.array([101, 100, 20, 19, 5000, 0, 500])
    found = by_rows(rows, [0.5, 0.25, 0.75, 0.1, 1.0, 0.3, None])
    assert found == {
        "many_accuracy": 0.75,
        "medium_accuracy": 0.5,
        "few_accuracy": pytest.approx(0.2),
    }
    none = by_rows(np.array([101, 101]), [0.5, None])
    assert none["many_accuracy"] == 0.5 and math.isnan(none["medium_accuracy"]) and math.isnan(none["few_accuracy"])


def test_of_a_trial(tmp_path: Path) -> None:
    """Kills: rows of the data for rows that clients hold; accuracies of another round."""
    experiment = Experiment(**BASE).override(["data.imbalance=200"])
    folder = make_run(tmp_path / "run", experiment)
    *_, last = RunFolder(folder).frame("evaluations")["class_accuracy"]
    row = load(folder).trials.iloc[0]
    groups = {"many": slice(0, 4), "medium": slice(4, 7), "few": slice(7, 10)}  # 1000 * 200^(-c / 9) rows
    expected = {f"{name}_accuracy": np.mean(last[of]) for name, of in groups.items()}
    assert dict(row[list(expected)]) == pytest.approx(expected)
