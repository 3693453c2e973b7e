"""Accuracy of each class at the end: a table of all settings, bars side by side, the weak beside the strong."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from engine.analysis import statistics
from engine.analysis.drawing import INK, MUTED, STYLE, Drawing, Sketch
from engine.analysis.figures.colours import draw_cell, letter_size, room_for_cells
from engine.analysis.figures.lines import Line, panels_of_lines
from engine.analysis.figures.panels import MIDDLE, MOST_ROWS, PANEL, WIDE, limits, name_lines, row_names
from engine.analysis.quantities import quantity
from engine.analysis.scales import Setting, describe, ranked, spread_out
from engine.errors import FedskewError

if TYPE_CHECKING:
    from engine.analysis.tables import Results

MOST_BARS = 120  # of a panel
NAMED = re.compile(r"class_accuracy\[([\d,\s]+)\]")
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


def asks_by_class(results: Results) -> bool:
    """Whether the metric, a table or a claim is of single classes: then a report has the figures below, too."""
    return any(metric.startswith(("class_accuracy[", "class_std")) for metric in _metrics(results))


def _metrics(results: Results) -> list[str]:
    return [results.metric, *(one.metric for one in results.tables), *(one.metric for one in results.claims)]


@matplotlib.rc_context(STYLE)
def class_bars(results: Results, settings: list[Setting]) -> list[Drawing]:
    """A bar for each class and setting, with its interval over seeds."""
    if not asks_by_class(results):
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
    if not asks_by_class(results):
        return []
    groups = sorted({tuple(map(int, found[1].split(","))) for m in _metrics(results) if (found := NAMED.fullmatch(m))})
    places = [f"class{'es' if len(group) > 1 else ''} {', '.join(map(str, group))}" for group in groups]
    if len(groups) < 2:
        groups, places = [], [FEWEST, MOST]
    name, panels, note = panels_of_lines(results, settings)
    parts = [
        [
            (line, [statistics.summarise(values) for values in found.T])
            for line in lines
            if line.colour != MUTED and len(found := _of_groups(results, line.setting, groups))
        ]
        for _, lines in panels
    ]
    span = limits(100 * edge for lines in parts for _, ends in lines for s in ends for edge in (s.mean, s.low, s.high))
    if span is None:
        return []
    measured = quantity("accuracy")
    drawings = []
    for number, ((title, _), lines) in enumerate(zip(panels, parts, strict=True), start=1):
        sketch = Sketch(PANEL, 2.9)
        axes = sketch.figure.subplots()
        axes.set_ylim(*span)
        for place, (line, ends) in enumerate(lines):
            x = np.arange(len(places)) + 0.03 * (place - (len(lines) - 1) / 2)
            mean, low, high = (100 * np.array([(s.mean, s.low, s.high) for s in ends])).T
            axes.plot(x, mean, color=line.colour, linewidth=1.7)
            axes.vlines(x, low, high, color=line.colour, linewidth=1.0)
            marks = axes.scatter(x, mean, color=line.colour, s=22, linewidths=0, zorder=3)
            told = zip(places, ends, strict=True)
            texts = [f"{' '.join(where.split())}: {describe(s, measured)}" for where, s in told]
            sketch.tip(marks, [f"{line.setting.label}\n{text}" for text in texts])
        axes.set_xlim(-0.25, len(places) - 0.75)
        axes.set_xticks(range(len(places)), places)
        axes.set_ylabel("test accuracy (%)")
        axes.set_title(title)
        name_lines(axes, name, [(line.label, line.colour, 100 * ends[-1].mean) for line, ends in lines if line.label])
        suffix = f"-{number}" if len(panels) > 1 else ""
        caption = f"Weak and strong classes{', ' + title if title else ''}: mean accuracy over them. {note}"
        drawings.append(sketch.finish(f"class-slopes{suffix}", caption.strip()))
    return drawings


def _of_groups(results: Results, setting: Setting, groups: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The mean accuracy over each group of classes in each finished trial, [trials, groups].

    Without groups, over the classes that fewest clients hold, and over those that most do; a trial whose data are not
    there is left out.
    """
    rows = []
    for row in setting.finished:
        if _has_entries(row["class_accuracy"]):
            accuracy = np.array(row["class_accuracy"], dtype=float)
            chosen = groups or _by_holders(results, row["trial"], np.isfinite(accuracy))
            if chosen:
                parts = [accuracy[[one for one in group if one < len(accuracy)]] for group in chosen]
                rows.append([part.mean() if len(part) else math.nan for part in parts])
    return np.array(rows)


def _by_holders(results: Results, trial: str, tested: np.ndarray) -> list[tuple[int, ...]]:
    """The tested classes that fewest and that most clients hold, of those that any does; [] if nobody can tell."""
    try:
        holders = (results.class_counts(trial) > 0).sum(axis=0)
    except (FedskewError, OSError):  # the data are on another machine
        return []
    known = tested & (holders > 0)
    edges = (holders[known].min(), holders[known].max()) if known.any() else ()
    return [tuple(np.flatnonzero(known & (holders == edge)).tolist()) for edge in edges]


def by_class(setting: Setting) -> np.ndarray:
    """The accuracy of each class in each finished trial, [trials, classes]; empty if trials differ in their classes."""
    known = [row["class_accuracy"] for row in setting.finished if _has_entries(row["class_accuracy"])]
    return np.array(known, dtype=float) if len({len(row) for row in known}) == 1 else np.empty((0, 0))


def _has_entries(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) and len(row) > 0
