"""Figures of an evaluation, against definitions written row by row.

The same rows gave scikit-learn 1.9's accuracy_score, balanced_accuracy_score, f1_score, precision_score, recall_score,
log_loss, brier_score_loss and confusion_matrix to the bit, and torchmetrics 1.9's multiclass_calibration_error, which
computes in float32, up to 1e-7.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.client.messages import Scores, scores_of
from engine.server import measures

CLASSES = 9
NEVER, WITHOUT_ROWS = 8, 7  # classes: never predicted; without test rows


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Softmax scores [n, C] and labels [n]."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(3000, CLASSES))
    logits[:, NEVER] -= 15
    labels = rng.integers(0, WITHOUT_ROWS, 3000)
    labels[:40] = NEVER
    shares = np.exp(logits)
    return shares / shares.sum(axis=1, keepdims=True), labels


def scored(shares: np.ndarray, labels: np.ndarray) -> Scores:
    predicted = shares.argmax(axis=1)
    of_label = shares[np.arange(len(labels)), labels]
    brier = float(((shares - np.eye(shares.shape[1])[labels]) ** 2).sum())
    pairs = (labels * shares.shape[1] + predicted).astype(float)
    return scores_of(shares.shape[1], float(-np.log(of_label).sum()), brier, {}, pairs, shares.max(axis=1))


def test_each_figure_is_the_known_one(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Kills: precision for recall, a transposed matrix, a class without rows taken for 0, F1 over classes with rows
    alone, a Brier score of the true class alone.
    """
    shares, labels = rows
    predicted, classes = shares.argmax(axis=1), range(CLASSES)
    row = measures.of_rows(scored(shares, labels)) | measures.of_classes(scored(shares, labels))
    matrix = np.array([[np.sum((labels == one) & (predicted == other)) for other in classes] for one in classes])
    assert row["confusion"] == matrix.ravel().tolist()
    recall = [np.mean(predicted[labels == one] == one) if one != WITHOUT_ROWS else None for one in classes]
    precision = [np.mean(labels[predicted == one] == one) if one != NEVER else None for one in classes]
    assert row["class_accuracy"] == pytest.approx(recall)
    assert row["class_precision"] == pytest.approx(precision)
    assert row["class_samples"] == [np.sum(labels == one) for one in classes]
    tested = [value for value in recall if value is not None]
    assert row["balanced_accuracy"] == pytest.approx(np.mean(tested))
    assert row["worst_class_accuracy"] == min(tested) == 0
    f1 = [
        2 * p * r / (p + r) if p and r else 0.0 for p, r in zip(precision, recall, strict=True)
    ]  # 0 of a class that is only predicted, or never
    assert row["macro_f1"] == pytest.approx(np.mean(f1))
    assert row["accuracy"] == np.mean(predicted == labels)
    squared = [np.sum((of_row - np.eye(CLASSES)[label]) ** 2) for of_row, label in zip(*rows, strict=True)]
    assert row["brier"] == pytest.approx(np.mean(squared))


def test_calibration(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Kills: a bin that begins with its upper end, a bin's error that is not weighed by its rows, 14 bins."""
    shares, labels = rows
    row = measures.of_bins(scored(shares, labels))
    confidence, hits = shares.max(axis=1), shares.argmax(axis=1) == labels
    error = 0.0
    for number in range(15):
        last = number == 14
        inside = (confidence >= number / 15) & ((confidence < (number + 1) / 15) | last)
        assert row["bin_samples"][number] == inside.sum()
        if inside.any():
            assert row["bin_confidence"][number] == pytest.approx(confidence[inside].mean())
            assert row["bin_accuracy"][number] == pytest.approx(hits[inside].mean())
            error += inside.mean() * abs(confidence[inside].mean() - hits[inside].mean())
        else:
            assert row["bin_confidence"][number] is row["bin_accuracy"][number] is None
    assert row["ece"] == pytest.approx(error)
    assert row["bin_samples"][0] == 0  # the largest of 9 shares is above 1 / 15


def test_the_ends_of_bins() -> None:
    """Kills: 1 in a bin of its own, or beyond the last; 2/15 in the bin below."""
    ends = np.array([1.0, 1 + 1e-16, 2 / 15, np.nextafter(2 / 15, 0)])
    found = scores_of(2, 0.0, 0.0, {}, np.zeros(4), ends).bins[0]
    assert found == [0, 1, 1, *[0] * 11, 2]


def test_blocks_add_up(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Kills: a block that takes another's place; counts that depend on how rows were cut."""
    shares, labels = rows
    whole, parts = scored(shares, labels), Scores()
    for start in range(0, len(labels), 700):
        parts.add(scored(shares[start : start + 700], labels[start : start + 700]))
    one, other = (measures.of_classes(scores) for scores in (whole, parts))
    assert one == other
    assert (parts.bins[0], parts.bins[2]) == (whole.bins[0], whole.bins[2])
    assert measures.of_rows(parts) == pytest.approx(measures.of_rows(whole))
    assert measures.of_bins(parts)["ece"] == pytest.approx(measures.of_bins(whole)["ece"])


def test_scores_that_are_not_finite() -> None:
    """Kills: NaN in a file whose nulls say that there is no number."""
    found = scores_of(3, float("nan"), float("inf"), {}, np.array([0.0, 4.0]), np.array([np.nan, 0.5]))
    row = measures.of_rows(found) | measures.of_bins(found)
    assert (row["loss"], row["brier"], row["ece"], row["bin_confidence"][14]) == (None, None, None, None)
    assert row["accuracy"] == 1


def test_many_classes_have_no_matrix() -> None:
    """Kills: a table that grows by a million numbers with each evaluation."""
    found = scores_of(101, 0.0, 0.0, {}, np.array([101.0 * 100 + 3]), np.ones(1))
    assert measures.of_classes(found)["confusion"] is None
    assert measures.confusion_matrix(found)[100, 3] == measures.confusion_matrix(found).sum() == 1
