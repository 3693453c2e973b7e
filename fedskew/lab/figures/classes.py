"""Accuracy of each class at the end: a table of all settings, and bars side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from engine.results import statistics
from engine.results.class_figures import class_figures
from fedskew.lab.comparing.ranking import Setting, describe, ranked, spread_out
from fedskew.lab.drawing import INK, MIDDLE, MUTED, PANEL, STYLE, WIDE, Drawing, Sketch
from fedskew.lab.figures.colours import draw_cell, letter_size, room_for_cells
from fedskew.lab.figures.lines import Line, panels_of_lines
from fedskew.lab.figures.panels import MOST_ROWS, name_lines, row_names
from fedskew.lab.quantities import quantity

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_BARS = 120  # of a panel


@matplotlib.rc_context(STYLE)
def class_accuracy(results: Results, settings: list[Setting]) -> list[Drawing]:
    """Accuracy of each class at the end, a row for each setting."""
    finished = ranked(settings, results.mode)
    chosen = spread_out(finished, MOST_ROWS)
    rows = [(setting, stack) for setting in reversed(chosen) if (stack := by_class(setting)).size]
    if not rows:
        return []
    classes = max(stack.shape[1] for _, stack in rows)
    measured = quantity("accuracy")
    wide = classes > 12 or max(len(setting.label) for setting, _ in rows) > 16
    sketch = Sketch(WIDE if wide else PANEL, 0.9 + 0.32 * len(rows))
    axes = sketch.figure.subplots()
    letters = letter_size(classes, ["100.0"], WIDE - 2.5 if wide else PANEL - 0.8)
    for place, (setting, stack) in enumerate(rows):
        for number, values in enumerate(stack.T):
            if not np.isfinite(values).any():
                continue
            summary = statistics.summarise(values[np.isfinite(values)])
            cell = draw_cell(axes, number, place, summary.mean, Normalize(0, 1), measured, letters, better="max")
            if classes <= 30:
                sketch.tip(cell, [f"{setting.label}\nclass {number}: {describe(summary, measured)}"])
    room_for_cells(axes, classes, len(rows))
    axes.set_yticks(range(len(rows)), row_names(setting.label for setting, _ in rows))
    axes.set_xticks(range(0, classes, 1 if classes <= 30 else 10))
    axes.set_xlabel("class")
    count = len(finished)
    some = f"; {len(chosen)} of {count} settings, evenly spaced by rank" if len(chosen) < count else ""
    order = f", mean over seeds; the best setting on top{some}" if count > 1 else ""
    return [sketch.finish("classes", f"Final test accuracy of each class (%){order}.", wide)]


@matplotlib.rc_context(STYLE)
def class_bars(results: Results, settings: list[Setting]) -> list[Drawing]:
    """A bar for each class and setting with its interval; where the metric, a table or a claim is of a class."""
    if not class_figures(results.trials):
        return []
    name, panels, note = panels_of_lines(results, settings)
    measured = quantity("accuracy")
    drawings = []
    for number, (title, lines) in enumerate(panels, start=1):
        stacks = [(line, stack) for line in lines if line.colour != MUTED and (stack := by_class(line.setting)).size]
        classes = max((stack.shape[1] for _, stack in stacks), default=0)
        bars = classes * len(stacks)
        if not 0 < bars <= MOST_BARS:
            continue
        sketch = Sketch(PANEL if bars <= 30 else MIDDLE if bars <= 60 else WIDE, 2.9)
        axes = sketch.figure.subplots()
        axes.set_ylim(0, 100)
        width = 0.84 / len(stacks)
        for place, (line, stack) in enumerate(stacks):
            shift = (place - (len(stacks) - 1) / 2) * width
            for one, values in enumerate(stack.T):
                s = statistics.summarise(values)
                if not s.n:
                    continue
                (bar,) = axes.bar([one + shift], [100 * s.mean], width=0.92 * width, color=line.colour, linewidth=0)
                sketch.tip(bar, [f"{line.setting.label}\nclass {one}: {describe(s, measured)}"])
                if s.n > 1:
                    axes.vlines(one + shift, 100 * s.low, 100 * s.high, color=INK, linewidth=0.9)
        axes.set_xlim(-0.6, classes - 0.4)
        axes.set_xticks(range(0, classes, 1 if classes <= 30 else 10))
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("class")
        axes.set_ylabel("test accuracy (%)")
        axes.set_title(title)
        _legend(name, [line for line, _ in stacks], axes)
        suffix = f"-{number}" if len(panels) > 1 else ""
        seeds = ", mean and 95 % interval over seeds" if len(results.seeds) > 1 else ""
        caption = f"Final test accuracy of each class{', ' + title if title else ''}{seeds}. {note}"
        drawings.append(sketch.finish(f"class-bars{suffix}", caption.strip(), wide=bars > 60))
    return drawings


def _legend(name: str, lines: Sequence[Line], axes: Axes) -> None:
    """Lines from the top, in their order: bars have no ends to be named at."""
    named = [line for line in lines if line.label]
    low, high = axes.get_ylim()
    places = [low + (0.85 - 0.1 * k) * (high - low) for k in range(len(named))]
    name_lines(axes, name, [(line.label, line.colour, y) for line, y in zip(named, places, strict=True)])


def by_class(setting: Setting) -> np.ndarray:
    """The accuracy of each class in each finished trial, [trials, classes]; empty if trials differ in their classes."""
    known = [row["class_accuracy"] for row in setting.finished if _has_entries(row["class_accuracy"])]
    return np.array(known, dtype=float) if len({len(row) for row in known}) == 1 else np.empty((0, 0))


def _has_entries(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) and len(row) > 0
