"""Tables as the pages show them, as the CSV file has them, and in LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedskew.lab.comparing.ranks import Ranks
from fedskew.lab.quantities import Quantity
from fedskew.lab.wording import seeds_text, shown

MOST_ROWS_LATEX = 60
# Where the seeds of a sweep were looked at repeatedly.
NO_P = (
    "Seeds were added until claims were decided: the interval holds at every look (Wang and Ramdas 2024), and there is "
    "no p, which would be of one look."
)
# Brackets and stars are in braces: at the start of a row LaTeX takes them for an argument of the row before.
_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "%&#_{}$"}
    | {letter: f"{{{letter}}}" for letter in "[]*"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
    | {"±": r"$\pm$", "−": "$-$", "∞": r"$\infty$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\rightarrow$"}
)


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
    def latex(self) -> str:
        text = latex_text(self.text)
        text = rf"\textbf{{{text}}}" if "best" in self.style.split() else text
        return text + (rf" {{\scriptsize({latex_text(self.below)})}}" if self.below else "")


@dataclass(frozen=True, eq=False)
class Table:
    """A table: the cells that a page shows, and the frame that becomes its CSV file."""

    name: str
    title: str
    note: str
    head: Sequence[str]
    rows: list[list[Cell]]
    frame: pd.DataFrame
    labels: int = 1  # so many columns at the left name the row
    tall: bool = False

    def latex(self, label: str, about: str = "") -> str:
        """Write it as a LaTeX ``table`` for the packages array and booktabs, bold where the page is.

        about: what the title is of, where that does not say it. Columns of words are at the left, of sentences in
        paragraphs, of numbers at the right. Of more than 60 rows the caption says where the others are.
        """
        more = len(self.rows) - MOST_ROWS_LATEX
        note = f"{self.note} {more} more rows in {self.name}.csv." if more > 0 else self.note
        texts = pd.DataFrame([[cell.latex for cell in row] for row in self.rows[:MOST_ROWS_LATEX]])
        texts = texts.reindex(columns=range(len(self.head)))
        head = [latex_text(name) for name in self.head]
        styler: Any = texts.style.hide(axis="index")
        styler.format_index(head.__getitem__, axis="columns")
        return styler.to_latex(
            column_format=f"@{{}}{''.join(map(self._alignment, range(len(self.head))))}@{{}}",
            position="tbp",
            position_float="centering",
            hrules=True,
            caption=latex_text(f"{self.title}{f' ({about})' if about else ''}. {note}"),
            label=label,
        )

    def _alignment(self, column: int) -> str:
        styles = {style for row in self.rows for style in row[column].style.split()}
        paragraph = r">{\raggedright\arraybackslash}p{0.24\linewidth}"
        return paragraph if "long" in styles else "l" if "word" in styles else "r"


def ranks_table(ranks: Ranks, name: str, title: str, note: str) -> Table:
    """Make the table of settings by average rank."""
    by_setting = list(zip(ranks.settings, ranks.average, *ranks.of_block, strict=True))
    rows = [
        [word_cell(setting), Cell(f"{average:.2f}", average), *(Cell(f"{rank:g}", rank) for rank in by_block)]
        for setting, average, *by_block in by_setting
    ]
    frame = pd.DataFrame(by_setting, columns=["setting", "average_rank", *ranks.blocks])
    frame = frame.assign(critical_difference=ranks.critical, p=ranks.p)
    return Table(name, title, note, ("setting", "average rank", *ranks.blocks), rows, frame)


def latex_text(text: str) -> str:
    """Escape for LaTeX: one line in which nothing that users write is a command; other letters stay as they are."""
    # Hyphens side by side, which TeX would join to a dash, are kept apart.
    return "-{}-".join(part.translate(_LATEX) for part in " ".join(text.split()).split("--"))


# --- figures as text, and cells of them --------------------------------------------------------------------


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
    return [Cell(measured.difference(difference), difference), Cell(interval_text(measured, low, high), low)]


def seeds_cell(seeds: Sequence[int]) -> Cell:
    return Cell(seeds_text(seeds), float(len(seeds)))
