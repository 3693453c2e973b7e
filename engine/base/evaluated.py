"""The figures of an evaluation of the global model, or of all clients' own: ours by name, and a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from engine.base.registry import Registry

Way = Literal["max", "min"]
# Columns of evaluations.parquet that are one number, and which way is better; engine/record/metrics.py says what
# each is.
BETTER: dict[str, Way] = {
    "accuracy": "max",
    "loss": "min",
    "balanced_accuracy": "max",
    "macro_f1": "max",
    "worst_class_accuracy": "max",
    "ece": "min",
    "brier": "min",
}


class OwnMetric(ABC):
    """A number of a user's own, taken at each evaluation of a run whose ``evaluation.metrics`` names it."""

    better: ClassVar[Way]
    given: ClassVar[tuple[str, ...]] = ("scores", "labels", "confusion")
    of_rows: ClassVar[bool]  # a mean over test rows, of scores and labels; else of the confusion matrix

    @abstractmethod
    def value(self, **given: Any) -> Any:
        """Return its numbers [n] for scores float64 [n, C] and labels int64 [n], or its number for a confusion matrix
        int64 [C, C], true by predicted class.
        """


METRICS = Registry("metric", OwnMetric, {}, defaults=True)


def way_of(name: str) -> Way | None:
    """Return which way of an evaluation's figure is better; None of one that is not known here."""
    return getattr(METRICS.get(name), "better", None) or BETTER.get(name)
