"""Accuracy of each class at the end: a table of all settings, bars side by side, the weak beside the strong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from engine.base.errors import FedskewError
from engine.results import statistics
from engine.results.class_figures import class_figures, class_short, classes_of
from engine.results.statistics import Summary
from fedskew.lab.comparing.ranking import Setting, describe, ranked, spread_out
from fedskew.lab.drawing import INK, MIDDLE, MUTED, PANEL, STYLE, WIDE, Drawing, Sketch
from fedskew.lab.figures.colours import draw_cell, letter_size, room_for_cells
from fedskew.lab.figures.lines import Line, panels_of_lines
from fedskew.lab.figures.panels import MOST_ROWS, limits, name_lines, row_names
from fedskew.lab.quantities import quantity

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_BARS = 120  # of a panel
FEWEST, MOST = "those that fewest\nclients hold", "those that most\nclients hold"


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


def _asked(results: Results) -> tuple[str, ...]:
    """The figures of single classes that the metric, a table or a claim is of; without any none of those below."""
    return class_figures(results.trials)


@matplotlib.rc_context(STYLE)
def class_bars(results: Results, settings: list[Setting]) -> list[Drawing]:
    """A bar for each class and setting, with its interval over seeds."""
    if not _asked(results):
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


@matplotlib.rc_context(STYLE)
def class_slopes(results: Results, settings: list[Setting]) -> list[Drawing]:
    """A line for each setting from its weak to its strong classes.

    The classes that the metric, tables and claims name, if there are at least two of them (``class_accuracy[1]``,
    ``class_accuracy[2,4,6]``); otherwise those that fewest clients hold, and those that most do.
    """
    asked = _asked(results)
    named = sorted((name for name in asked if classes_of(name)), key=classes_of)
    if not asked:
        return []
    places = [class_short(column) for column in named] if len(named) > 1 else [FEWEST, MOST]
    name, panels, note = panels_of_lines(results, settings)
    parts: list[list[tuple[Line, list[Summary]]]] = []
    for _, lines in panels:
        shown = [(line, line.setting) for line in lines if line.colour != MUTED]
        ends = [(line, _of_named(s, named) if len(named) > 1 else _by_holders(results, s)) for line, s in shown]
        parts.append([(line, found) for line, found in ends if all(s.n for s in found)])
    every = [found for lines in parts for _, found in lines]
    span = limits(100 * edge for found in every for s in found for edge in (s.mean, s.low, s.high))
    if span is None or all(found[0].mean == found[-1].mean for found in every):  # no class is weaker than another
        return []
    measured = quantity("accuracy")
    drawings = []
    for number, ((title, _), lines) in enumerate(zip(panels, parts, strict=True), start=1):
        sketch = Sketch(PANEL, 2.9)
        axes = sketch.figure.subplots()
        axes.set_ylim(*span)
        for place, (line, found) in enumerate(lines):
            x = np.arange(len(places)) + 0.03 * (place - (len(lines) - 1) / 2)
            mean, low, high = (100 * np.array([(s.mean, s.low, s.high) for s in found])).T
            axes.plot(x, mean, color=line.colour, linewidth=1.7)
            axes.vlines(x, low, high, color=line.colour, linewidth=1.0)
            marks = axes.scatter(x, mean, color=line.colour, s=22, linewidths=0, zorder=3)
            told = [
                f"{' '.join(where.split())}: {describe(s, measured)}" for where, s in zip(places, found, strict=True)
            ]
            sketch.tip(marks, [f"{line.setting.label}\n{text}" for text in told])
        axes.set_xlim(-0.25, len(places) - 0.75)
        axes.set_xticks(range(len(places)), places)
        axes.set_ylabel("test accuracy (%)")
        axes.set_title(title)
        name_lines(axes, name, [(line.label, line.colour, 100 * s[-1].mean) for line, s in lines if line.label])
        suffix = f"-{number}" if len(panels) > 1 else ""
        seeds = " and its 95 % interval over seeds" if len(results.seeds) > 1 else ""
        caption = f"Weak and strong classes{', ' + title if title else ''}: mean accuracy over them{seeds}. {note}"
        drawings.append(sketch.finish(f"class-slopes{suffix}", caption.strip()))
    return drawings


def _of_named(setting: Setting, names: Sequence[str]) -> list[Summary]:
    return [statistics.summarise(setting.figures(name)) for name in names]


def _by_holders(results: Results, setting: Setting) -> list[Summary]:
    """Summarise the mean accuracy over the classes that fewest clients hold, and over those that most do.

    In each trial by its own partition; one whose data are not there is left out.
    """
    ends: tuple[list[float], list[float]] = [], []
    for row in setting.finished:
        if not _has_entries(row["class_accuracy"]):
            continue
        try:
            holders = (results.class_counts(row["trial"]) > 0).sum(axis=0)
        except (FedskewError, OSError):  # the data are on another machine
            continue
        accuracy = np.array(row["class_accuracy"], dtype=float)
        known = np.isfinite(accuracy) & (holders > 0)
        if known.any():
            for values, edge in zip(ends, (holders[known].min(), holders[known].max()), strict=True):
                values.append(float(accuracy[known & (holders == edge)].mean()))
    return [statistics.summarise(values) for values in ends]


def by_class(setting: Setting) -> np.ndarray:
    """The accuracy of each class in each finished trial, [trials, classes]; empty if trials differ in their classes."""
    known = [row["class_accuracy"] for row in setting.finished if _has_entries(row["class_accuracy"])]
    return np.array(known, dtype=float) if len({len(row) for row in known}) == 1 else np.empty((0, 0))


def _has_entries(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) and len(row) > 0
