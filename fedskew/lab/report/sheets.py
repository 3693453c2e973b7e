"""A table as the page and its Markdown twin show it, and how its cells are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedskew.lab.quantities import Quantity
from fedskew.lab.wording import escaped, seeds_text, shown

MOST_ROWS_MARKDOWN = 60


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what it is sorted by, if not by its text; NaN is last
    tip: str = ""
    style: str = ""  # CSS classes
    below: str = ""  # a second line
    below_style: str = ""

    @property
    def words(self) -> bool:
        """Aligned to the left."""
        return bool({"word", "long"} & set(self.style.split()))

    @property
    def sorted_by(self) -> str | None:
        if self.value is None:
            return None
        return "" if math.isnan(self.value) else repr(self.value)

    @property
    def markdown(self) -> str:
        text = escaped(" ".join(part for part in (self.text, f"({self.below})" if self.below else "") if part))
        return f"**{text}**" if "best" in self.style else text


@dataclass(frozen=True, eq=False)
class Sheet:
    """A table: as the page shows it, and as the CSV file has it."""

    name: str
    title: str
    note: str
    head: Sequence[str]
    rows: list[list[Cell]]
    frame: pd.DataFrame
    labels: int = 1  # so many columns at the left name the row
    tall: bool = False

    @property
    def markdown(self) -> str:
        lines = [[*map(escaped, self.head)], ["---"] * len(self.head)]
        lines += [[cell.markdown for cell in row] for row in self.rows[:MOST_ROWS_MARKDOWN]]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        more = len(self.rows) - MOST_ROWS_MARKDOWN
        return f"{text}\n\n{more} more rows in [{self.name}.csv]({self.name}.csv)." if more > 0 else text


# Where the seeds of a sweep were looked at repeatedly.
NO_P = (
    "Seeds were added until claims were decided: the interval holds at every look (Wang and Ramdas 2024), and there is "
    "no p, which would be of one look."
)


# --- figures as text ---------------------------------------------------------------------------------------


def p_text(value: float) -> str:
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3g}"


def spread_text(measured: Quantity, std: float, seeds: int) -> str:
    """Write what follows a mean over so many seeds."""
    return f" ± {measured.text(std)}" if seeds > 1 else ""


def interval_text(measured: Quantity, low: float, high: float, signed: bool = True) -> str:
    """Signed for an interval of differences."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    written = measured.difference if signed else measured.text
    return f"{written(low)} to {written(high)}"


# --- cells -------------------------------------------------------------------------------------------------


def word_cell(text: str) -> Cell:
    return Cell(text, style="word")


def long_cell(text: str) -> Cell:
    return Cell(text, style="long")


def count_cell(count: int) -> Cell:
    return Cell(str(count), float(count))


def value_cell(value: Any) -> Cell:
    """A hyper-parameter's value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:.6g}" if isinstance(value, float) else shown(value, 60), float(value))
    return word_cell(shown(value, 60))


def p_cell(value: float) -> Cell:
    return Cell(p_text(value), value)


def difference_cells(measured: Quantity, difference: float, low: float, high: float) -> list[Cell]:
    """A difference, and its interval."""
    return [
        Cell(measured.difference(difference), difference),
        Cell(interval_text(measured, low, high), low),
    ]


def seeds_cell(seeds: Sequence[int]) -> Cell:
    return Cell(seeds_text(seeds), float(len(seeds)))
