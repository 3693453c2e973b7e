"""The figures of a trial as a reader meets them: what each is called, its unit, how its values are written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from engine.personal import FIGURES as PERSONAL


@dataclass(frozen=True)
class Quantity:
    """A column of the trials table: what it is called, its unit, and how its values are written."""

    column: str
    label: str
    unit: str = ""
    factor: float = 1.0

    @property
    def short(self) -> str:
        """For the head of a column."""
        return with_unit(_SHORT.get(self.column, self.label), self.unit)

    @property
    def title(self) -> str:
        return with_unit(self.label, self.unit)

    @property
    def unit_of_difference(self) -> str:
        return "points" if self.unit == "%" else self.unit

    def text(self, value: float, unit: bool = False) -> str:
        """A value as it is stored, a fraction for an accuracy."""
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "never" if value > 0 else "-∞"
        scaled = value * self.factor
        digits = 1 if self.unit in ("%", "MB") else 0 if self.column in _COUNTS and float(scaled).is_integer() else None
        written = f"{scaled:.{digits}f}" if digits is not None else f"{scaled:.4g}"
        written = "0" + written[2:] if re.fullmatch(r"-0(\.0*)?", written) else written
        return f"{written} {self.unit}" if unit and self.unit else written

    def difference(self, value: float, unit: bool = False) -> str:
        """A difference of two values: signed, of an accuracy in percentage points."""
        if value is None or math.isnan(value):
            return "–"
        written = self.text(value)
        sign = "+" if value > 0 and not written.startswith("+") else ""
        name = f" {self.unit_of_difference}" if unit and self.unit_of_difference else ""
        return f"{sign}{written.replace('-', '−')}{name}"


_COUNTS = ("rounds", "rounds_to_target", "best_round", "rounds_asked", "rounds_computed")
_SHARES = ("last10_std", "generated_agreement")  # of one, beside accuracies
_SHORT = {
    "accuracy": "final",
    "best_accuracy": "best",
    "last10_accuracy": "last 10 rounds",
    "last10_std": "last 10 rounds, std",
    "local_last10_accuracy": "local models, last 10",
    "worst_decile_accuracy": "worst tenth",
    "loss": "loss",
    "rounds_to_target": "rounds to target",
    "bytes_to_target": "to target",
    "client_floats_to_best": "a client's floats to best",
    "label_entropy": "class balance of data",
    "step_label_entropy": "class balance of a step",
    "rounds_computed": "computed",
    **{name: figure.short for name, figure in PERSONAL.items()},
}
_LOCAL = "test accuracy of local models before aggregation"
_LABELS = {
    "accuracy": "final test accuracy",
    "best_accuracy": "best test accuracy",
    "last10_accuracy": "test accuracy, mean of the last 10 rounds",
    "last10_std": "test accuracy, standard deviation over the last 10 rounds",
    "local_accuracy": _LOCAL,
    "local_last10_accuracy": f"{_LOCAL}, mean of the last 10 rounds",
    "worst_decile_accuracy": "accuracy of the worst tenth of clients",
    "loss": "test loss",
    "client_floats_to_best": "floats of one client up to the best round",
    "label_entropy": "class balance of clients' data",
    "step_label_entropy": "class balance of what a local step sees",
    "generated_agreement": "generated images taken for the class asked for",
    "nearest_distance": "distance of generated images to the nearest training image",
    "nearest_distance_test": "distance of test images to the nearest training image",
    "nearest_ratio": "the nearest training image's distance, generated images' by test images'",
    **{name: figure.label for name, figure in PERSONAL.items()},
}


def quantity(column: str, target: float | None = None) -> Quantity:
    if column.endswith("_to_target"):
        goal = f"{percent(target)} accuracy" if target is not None else "the target accuracy"
        in_bytes = column.startswith("bytes")
        label = f"traffic to {goal}" if in_bytes else f"rounds to {goal}"
        return Quantity(column, label, "MB" if in_bytes else "", 1e-6 if in_bytes else 1.0)
    label = _LABELS.get(column, column.replace("_", " "))
    if column.endswith("accuracy") or column in (*PERSONAL, *_SHARES):
        return Quantity(column, label, "%", 100.0)
    if column == "client_floats_to_best":
        return Quantity(column, label, "M", 1e-6)
    return Quantity(column, label, "s" if column == "seconds" else "")


def with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
