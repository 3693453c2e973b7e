"""Measures of a partition's skew, from the counts of clients and classes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from engine.results import load
from engine.server.class_balance import skew
from tests.support.tiny import CLASSES, assignment, dataset, drive, experiment


def test_two_clients_of_one_class_each() -> None:
    """By hand. Kills: the divergence for its root; nats for bits; a sum without its half; clients without rows."""
    found = skew(np.array([[3, 0], [0, 0], [0, 3]]))
    assert found == {
        "label_hellinger": pytest.approx(math.sqrt(1 - math.sqrt(0.5))),
        "label_jensen_shannon": pytest.approx(math.sqrt(1.5 - 0.75 * math.log2(3))),
        "label_total_variation": 0.5,
        "effective_classes": 1,
    }


def test_equal_shares_are_no_skew() -> None:
    """Kills: a distance that rounding keeps above 0, or makes NaN; shares that depend on clients' sizes."""
    found = skew(np.array([[1, 2, 4], [5, 10, 20], [3, 6, 12]]))
    assert list(found.values())[:3] == [0, 0, 0]
    assert skew(np.full((7, 10), 9))["effective_classes"] == pytest.approx(10)


def test_against_scipy() -> None:
    """Kills: a mean by rows; the mean of clients' shares for the shares of all rows; a class that nobody has."""
    counts = np.random.default_rng(0).integers(0, 30, (12, 6)) * np.arange(1, 13)[:, None]
    counts[:, 4], counts[3, 1:] = 0, 0
    counts[3, 0] = 5
    shares = counts / counts.sum(axis=1, keepdims=True)
    whole = counts.sum(axis=0) / counts.sum()
    found = skew(counts)
    assert found["label_jensen_shannon"] == pytest.approx(np.mean([jensenshannon(p, whole, base=2) for p in shares]))
    assert found["effective_classes"] == pytest.approx(np.mean([np.exp(entropy(p)) for p in shares]))
    by_coefficient = [math.sqrt(1 - np.sqrt(p * whole).sum()) for p in shares]
    assert found["label_hellinger"] == pytest.approx(np.mean(by_coefficient))
    assert found["label_total_variation"] == pytest.approx(np.mean([np.maximum(p - whole, 0).sum() for p in shares]))


def test_in_summary_and_trials(tmp_path: Path) -> None:
    """Kills: a measure that is not written, or that trials lack; clients that are held out."""
    parts, data = assignment([20, 0, 13, 7, 30]), dataset(70)
    counts = parts.class_counts(data.train.labels, CLASSES)
    held_out = experiment(rounds=1, participation={"held_out": [2]})
    summary = drive(tmp_path / "run", held_out, data, parts).summary
    row = load(tmp_path / "run").trials.iloc[0]
    expected = skew(np.delete(counts, 2, axis=0))
    assert expected != skew(counts)
    assert {name: summary[name] for name in expected} == {name: row[name] for name in expected} == expected
    assert json.loads((tmp_path / "run/summary.json").read_text())["effective_classes"] == expected["effective_classes"]
