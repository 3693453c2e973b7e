"""The numbers of a trial as a reader meets them: their labels and units, and how values and differences are written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.record.metrics import METRICS, TARGET
from engine.results.class_figures import class_label, class_short, is_class_figure

if TYPE_CHECKING:
    from engine.results.results import Results

LAST = 10  # rounds of the metrics that are means over the last ones


@dataclass(frozen=True)
class Quantity:
    """A column of the trials table: its label, its unit, and the way its values are written."""

    column: str
    label: str
    unit: str = ""
    factor: float = 1.0
    last: int = LAST  # rounds that "the last 10" are

    @property
    def short(self) -> str:
        """The words for the head of a column."""
        if is_class_figure(self.column):
            return with_unit(class_short(self.column), self.unit)
        known = METRICS.get(self.column)
        words = (known.short if known else "") or self.label
        return with_unit(words.replace(f"last {LAST}", f"last {self.last}"), self.unit)

    @property
    def title(self) -> str:
        return with_unit(self.label, self.unit)

    @property
    def unit_of_difference(self) -> str:
        return "points" if self.unit == "%" else self.unit

    def text(self, value: float, unit: bool = False) -> str:
        """Write a value that is given as it is stored, for an accuracy as a fraction."""
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "never" if value > 0 else "-∞"
        scaled = value * self.factor
        whole = self.column in METRICS and METRICS[self.column].whole and float(scaled).is_integer()
        digits = 1 if self.unit in ("%", "MB") else 0 if whole else None
        written = f"{scaled:.{digits}f}" if digits is not None else f"{scaled:.4g}"
        written = "0" + written[2:] if re.fullmatch(r"-0(\.0*)?", written) else written
        return f"{written} {self.unit}" if unit and self.unit else written

    def difference(self, value: float, unit: bool = False) -> str:
        """Write a difference of two values: signed, of an accuracy in percentage points."""
        if value is None or math.isnan(value):
            return "–"
        written = self.text(value)
        sign = "+" if value > 0 and not written.startswith("+") else ""
        name = f" {self.unit_of_difference}" if unit and self.unit_of_difference else ""
        return f"{sign}{written.replace('-', '−')}{name}"


def quantity_of(results: Results, column: str | None = None) -> Quantity:
    """Give the quantity of a column, or of the metric, in words that fit the target and the rounds of its trials."""
    found = quantity(column or results.metric, results.target_accuracy)
    last = int(min(LAST, max(results.trials["rounds"].dropna(), default=LAST))) or LAST  # NaN: missing
    return replace(found, last=last, label=found.label.replace(f"last {LAST}", f"last {last}"))


def quantity(column: str, target: float | None = None) -> Quantity:
    """Give the quantity of a column; its name is its label where it is none of the metrics.

    target: the accuracy that labels name in the place of "the target accuracy".
    """
    metric = METRICS.get(column)
    if metric is not None:
        goal = f"{100 * target:g} % accuracy" if target is not None else TARGET
        return Quantity(column, metric.label.replace(TARGET, goal), metric.unit, metric.scale)
    is_share = column.endswith("accuracy") or is_class_figure(column)
    label = class_label(column) if is_class_figure(column) else column.replace("_", " ")
    return Quantity(column, label, "%", 100.0) if is_share else Quantity(column, label)


def with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
