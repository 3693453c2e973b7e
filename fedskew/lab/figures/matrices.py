"""Numbers of pairs of classes that servers end with, as heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from engine.record.matrices import COST, least_on_diagonal
from engine.results.settings import setting_label
from fedskew.lab.comparing.ranking import Setting, distinct
from fedskew.lab.drawing import CATEGORIES, PANEL, STYLE, Drawing, Sketch
from fedskew.lab.figures.cells import MOST_CELLS, coloured_cells, some_ticks, write_in_cells
from fedskew.lab.figures.colours import letter_size
from fedskew.lab.wording import capitalised, counted, shortened

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_MATRICES = 12  # of a report
NOTE = "What servers end with for each pair of classes, with the same colours in all pictures of one name."
MOST_TITLE = 54  # letters


@dataclass(frozen=True)
class Panel:
    """A matrix to be drawn. Colours go from ``low`` to ``high``, numbers are written where they can be read."""

    name: str
    title: str
    mean: np.ndarray  # [C, C]
    std: np.ndarray  # [C, C] over seeds; NaN with one
    seeds: int
    low: float
    high: float

    @classmethod
    def of_run(cls, name: str, matrix: np.ndarray) -> Panel:
        """Make a panel with the colours of this matrix alone."""
        known = matrix[np.isfinite(matrix)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        return cls(name, name, matrix, np.full_like(matrix, math.nan), 1, low, high)

    def draw(self, sketch: Sketch, axes: Axes, rows: Sequence[str], inches: float) -> None:
        """``rows``: the classes' names. ``inches``: of the cells' width."""
        classes, digits = len(self.mean), _digits(self.mean)
        places = range(classes) if self.small else ()
        texts = [[_text(self.mean[row, column], digits) for column in places] for row in places]
        tips = [[self._tip(rows[row], rows[column], row, column, digits) for column in places] for row in places]
        mesh = coloured_cells(sketch, axes, self.mean, tips or None, self.low, self.high)
        size = letter_size(classes, (text for row in texts for text in row), inches) if texts else 0.0
        if size:
            write_in_cells(axes, mesh, self.mean, texts, size)
        else:
            bar = axes.figure.colorbar(mesh, ax=axes, shrink=0.8)
            bar.outline.set_visible(False)  # type: ignore[operator]
        if self.name == COST and self.small:
            for number in np.flatnonzero(least_on_diagonal(self.mean)):
                style = {"fill": False, "edgecolor": CATEGORIES[1], "linewidth": 1.8, "clip_on": False}
                axes.add_patch(Rectangle((number - 0.44, number - 0.44), 0.88, 0.88, **style))
        some_ticks(axes, [str(number) for number in range(classes)], "x")
        some_ticks(axes, rows, "y")
        axes.set_xlabel("other class")
        axes.set_ylabel("class")
        axes.set_title(shortened(self.title, MOST_TITLE))

    def _tip(self, one: str, other: str, row: int, column: int, digits: int) -> str:
        text = f"{self.title}\nclass {one}, other class {other}: {_text(self.mean[row, column], digits)}"
        if math.isfinite(self.std[row, column]):
            text += f" ± {_text(self.std[row, column], digits)}, {counted(self.seeds, 'seed')}"
        return text

    @property
    def note(self) -> str:
        """Say of costs in how many rows the diagonal is least."""
        if self.name != COST:
            return ""
        least, rows = int(least_on_diagonal(self.mean).sum()), counted(len(self.mean), "row")
        outlined = ", outlined" if self.small else ""
        return f"The diagonal is the row's strict minimum in {least} of {rows}{outlined}."

    @property
    def small(self) -> bool:
        """True if its cells are told apart."""
        return self.mean.size <= MOST_CELLS


def _digits(matrix: np.ndarray) -> int:
    """Decimals for three significant digits of the largest number."""
    largest = float(np.abs(matrix[np.isfinite(matrix)]).max(initial=0.0))
    return min(max(2 - math.floor(math.log10(largest)), 0), 2) if largest > 0 else 2


def _text(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


@dataclass
class _Same:
    """Settings whose servers end with the same matrix."""

    mean: np.ndarray
    std: np.ndarray
    seeds: int
    settings: list[Setting] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The hyper-parameters that all of them have in common."""
        first, *others = self.settings
        if not others:
            return first.label
        values = first.values.items()
        shared = {name: value for name, value in values if len(distinct(s.values[name] for s in self.settings)) == 1}
        return setting_label(shared) or "all settings"


@matplotlib.rc_context(STYLE)
def matrix_maps(results: Results, settings: list[Setting]) -> tuple[list[Drawing], str]:
    """Each matrix of each setting, mean over seeds; of settings that end with the same one, a single picture.

    Those of one name have the same colours. With a note on what they are.
    """
    drawings: list[Drawing] = []
    by_name = _by_name(results, settings)
    for name, groups in by_name.items():
        known = np.concatenate([group.mean.ravel() for group in groups])
        known = known[np.isfinite(known)]
        if not len(known):
            continue
        for group in groups[: MOST_MATRICES - len(drawings)]:
            title = f"{name}: {group.label}" if results.axes else name
            panel = Panel(name, title, group.mean, group.std, group.seeds, float(known.min()), float(known.max()))
            classes = len(panel.mean)
            sketch = Sketch(PANEL, min(max(0.9 + 0.26 * classes, 2.2), 3.6))
            panel.draw(sketch, sketch.figure.subplots(), [str(number) for number in range(classes)], PANEL - 0.7)
            over = ", mean over seeds" if group.seeds > 1 else ""
            same = f"; the same in {len(group.settings)} settings" if len(group.settings) > 1 else ""
            caption = f"{capitalised(title)}{over}{same}. {panel.note}".strip()
            drawings.append(sketch.finish(f"matrix-{len(drawings) + 1}", caption))
    count = sum(map(len, by_name.values()))
    some = f"The first {len(drawings)} of {count} matrices. " if len(drawings) < count else ""
    return drawings, f"{some}{NOTE}"


def _by_name(results: Results, settings: list[Setting]) -> dict[str, list[_Same]]:
    same_by_name: dict[str, list[_Same]] = {}
    for setting in settings:
        by_name: dict[str, list[np.ndarray]] = {}
        for row in setting.finished:
            for name, matrix in results.matrices(row["trial"]).items():
                by_name.setdefault(name, []).append(matrix)
        for name, parts in by_name.items():
            stack = np.stack(parts)
            with np.errstate(invalid="ignore"):  # of what is infinite
                std = stack.std(axis=0, ddof=1) if len(stack) > 1 else np.full_like(stack[0], math.nan)
            groups = same_by_name.setdefault(name, [])
            fresh = _Same(stack.mean(axis=0), std, len(stack))
            same = (group for group in groups if np.array_equal(group.mean, fresh.mean, equal_nan=True))
            group = next(same, None)
            if group is None:
                groups.append(group := fresh)
            group.settings.append(setting)
    return same_by_name
