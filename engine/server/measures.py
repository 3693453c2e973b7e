"""What test rows come to, as columns of ``evaluations.parquet`` and ``personal.parquet``.

Each number is scikit-learn's or torchmetrics' of the same rows (``tests/record/test_measures.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from engine.base.errors import RunError
from engine.base.evaluated import METRICS
from engine.client.messages import Scores
from engine.record.columns import MOST_CLASSES, Row, finite


def of_rows(scores: Scores) -> Row:
    """Return the columns that both tables have."""
    correct, count, predicted = scores.by_class()
    samples, there = int(count.sum()), count + predicted > 0
    return {
        "samples": samples,
        "accuracy": float(correct.sum() / samples),
        "balanced_accuracy": float((correct[count > 0] / count[count > 0]).mean()),
        "macro_f1": float((2 * correct[there] / (count + predicted)[there]).mean()),
        "loss": finite(scores.loss / samples),
        "brier": finite(scores.brier / samples),
    }


def of_classes(scores: Scores) -> Row:
    """Return the columns that are of each class, or are taken from those."""
    correct, count, predicted = scores.by_class()
    is_small = scores.classes <= MOST_CLASSES
    return {
        "class_accuracy": _shares(correct, count),
        "class_samples": count.tolist(),
        "class_precision": _shares(correct, predicted),
        "worst_class_accuracy": float((correct[count > 0] / count[count > 0]).min()),
        "confusion": confusion_matrix(scores).ravel().tolist() if is_small else None,
    }


def confusion_matrix(scores: Scores) -> np.ndarray:
    """Return the rows by true and predicted class, int64 [C, C]."""
    matrix = np.zeros(scores.classes**2, dtype=np.int64)
    matrix[[*scores.confusion]] = [*scores.confusion.values()]
    return matrix.reshape(scores.classes, scores.classes)


def of_own(scores: Scores, names: Sequence[str]) -> dict[str, float | None]:
    """Return the metrics of a user's own, null where they are not finite; raises :class:`RunError` for one that fails.

    names: all of the experiment, those that are means over rows among them.
    """
    found = {}
    for name in names:
        if name in scores.own:
            found[name] = finite(scores.own[name] / sum(scores.confusion.values()))
            continue
        try:
            found[name] = finite(float(METRICS.find(name)().value(confusion=confusion_matrix(scores))))
        except Exception as error:
            raise RunError(f"metric {name} fails for a confusion matrix ({type(error).__name__}: {error})") from error
    return found


def of_bins(scores: Scores) -> Row:
    """Return the columns that are of each bin of confidence, and the calibration error (Guo et al. 2017, eq. 3)."""
    rows, confidence, hits = np.array(scores.bins)
    return {
        "ece": finite(float(np.abs(hits - confidence).sum() / rows.sum())),
        "bin_samples": rows.astype(int).tolist(),
        "bin_confidence": [value and finite(value) for value in _shares(confidence, rows)],
        "bin_accuracy": _shares(hits, rows),
    }


def _shares(part: Iterable[Any], whole: Iterable[Any]) -> list[float | None]:
    return [float(one / of) if of else None for one, of in zip(part, whole, strict=True)]
