"""The metric over hyper-parameters: one at a time, two; and what each is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from engine.results.settings import key
from fedskew.lab.comparing.ranking import Setting, distinct, ranked, varied
from fedskew.lab.comparing.scales import Scale, by_value, scale_of
from fedskew.lab.drawing import CATEGORIES, INK, PANEL, PAPER, STYLE, Drawing, Sketch
from fedskew.lab.figures.colours import (
    colour_key,
    draw_cell,
    heat,
    letter_size,
    line_colours,
    ramp,
    room_for_cells,
)
from fedskew.lab.figures.panels import MOST_LINES, label_axis, limits, name_lines, slanted
from fedskew.lab.quantities import Quantity, quantity
from fedskew.lab.wording import capitalised, shown

if TYPE_CHECKING:
    from engine.results.results import Results
    from fedskew.lab.comparing.importance import Importance

MOST_PAIRS = 3
MOST_CELLS = 14  # of a heat map's side


# --- one -------------------------------------------------------------------------------------------------


@matplotlib.rc_context(STYLE)
def sensitivity(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The metric over each hyper-parameter: a point for each trial, a line through the means."""
    measured = quantity(results.metric, results.target_accuracy)
    seen = [setting for setting in settings if any(math.isfinite(row[results.metric]) for row in setting.trials)]
    span = limits(measured.factor * row[results.metric] for setting in seen for row in setting.trials)
    names = list(varied(results, seen))
    if span is None:
        return []
    drawings = []
    for number, name in enumerate(names, start=1):
        others = [other for other in names if other != name]
        split = _strongest(others, seen)
        sketch = Sketch(PANEL, 2.8)
        axes = sketch.figure.subplots()
        axes.set_ylim(*span)
        scale = scale_of(results, name, seen)
        groups = _split(results, split, seen)
        width = min(0.22 * float(np.diff(sorted(scale.places.values())).min()), 0.08 * float(np.ptp(scale.limits)))
        entries = []
        for place, (label, colour, members) in enumerate(groups):
            shift = 0.0 if len(groups) == 1 else (place / (len(groups) - 1) - 0.5) * width
            line = _means(members, scale, results.metric)
            if len(line):
                axes.plot(line[:, 0] + shift, line[:, 1] * measured.factor, color=colour, linewidth=1.6)
                entries.append((label, colour, line[-1, 1] * measured.factor))
            _trial_points(sketch, axes, [(scale.place(s) + shift, s) for s in members], colour, measured)
        label_axis(axes, scale)
        axes.set_ylabel(measured.title if len(measured.title) <= 34 else measured.title.replace(", ", ",\n", 1))
        if split:
            name_lines(axes, split, entries)
        over = f" for each value of {split}" if split else ""
        over += " over all other hyper-parameters" if len(others) > (split is not None) else ""
        what = "mean of neighbouring values" if len(scale.places) > MOST_CELLS else "mean"
        hollow = " Hollow: stopped early, not in the mean." if "stopped" in set(results.trials["status"]) else ""
        caption = f"{name}: a point for each trial, the line is the {what}{over}.{hollow}"
        drawings.append(sketch.finish(f"sensitivity-{number}", caption))
    return drawings


def _strongest(names: Sequence[str], settings: Sequence[Setting]) -> str | None:
    """Return, of the hyper-parameters with few values, the one whose values are furthest apart on average."""
    spreads: dict[str, float] = {}
    for name in names:
        groups: dict[Any, list[float]] = {}
        for setting in settings:
            if math.isfinite(setting.mean):
                groups.setdefault(key(setting.values[name]), []).append(setting.mean)
        if 1 < len(groups) <= MOST_LINES:
            spreads[name] = float(np.ptp([np.mean(values) for values in groups.values()]))
    return max(spreads, key=lambda name: spreads[name], default=None)


def _split(results: Results, name: str | None, settings: list[Setting]) -> list[tuple[str, str, list[Setting]]]:
    """Label, colour and settings of each line; one line for all without a hyper-parameter to tell them apart."""
    if name is None:
        return [("", CATEGORIES[0], settings)]
    scale = scale_of(results, name, settings)
    groups = by_value(scale, settings)
    colours = line_colours(len(groups), scale.ordered)
    return [(label, colour, members) for (label, members), colour in zip(groups.items(), colours, strict=True)]


def _means(settings: list[Setting], scale: Scale, metric: str) -> np.ndarray:
    """Place and mean over all finished trials there, [n, 2]; of many places, of up to eight groups of neighbours."""
    rows = [(scale.place(setting), value) for setting in settings for value in setting.figures(metric)]
    points = np.array(sorted(rows)).reshape(-1, 2)
    if len(scale.places) > MOST_CELLS:
        parts = np.array_split(points, min(8, max(2, len(points) // 4)))
    else:
        parts = [points[points[:, 0] == place] for place in sorted(scale.places.values())]
    return np.array([part.mean(axis=0) for part in parts if len(part)]).reshape(-1, 2)


def _trial_points(
    sketch: Sketch, axes: Axes, placed: list[tuple[float, Setting]], colour: str, measured: Quantity
) -> None:
    """A dot for each trial, hollow if it was stopped early."""
    rows = [(x, setting, row) for x, setting in placed for row in setting.trials]
    rows = [row for row in rows if math.isfinite(row[2][measured.column])]
    for full in (False, True):
        chosen = [row for row in rows if (row[2]["status"] == "finished") == full]
        if not chosen:
            continue
        marks = axes.scatter(
            [x for x, _, _ in chosen],
            [row[measured.column] * measured.factor for _, _, row in chosen],
            s=14,
            facecolor=colour if full else PAPER,
            alpha=0.75 if len(rows) < 150 else 0.5,
            edgecolor=PAPER if full else colour,
            linewidths=0.4 if full else 0.8,
            zorder=3,
        )
        tips = []
        for _, setting, row in chosen:
            stopped = "" if full else f", {row['status']} after {row['rounds']} rounds"
            whose = f"{setting.label}, seed {row['seed']}" if setting.values else f"seed {row['seed']}"
            tips.append(f"{whose}\n{measured.text(row[measured.column], unit=True)}{stopped}")
        sketch.tip(marks, tips)


@matplotlib.rc_context(STYLE)
def importance(measure: Importance) -> list[Drawing]:
    """Bars of permutation importance with the spread over repetitions."""
    frame = measure.frame[::-1]
    sketch = Sketch(PANEL, 0.9 + 0.34 * len(frame))
    axes = sketch.figure.subplots()
    shares, spread = (100 * np.array(frame[name].tolist()) for name in ("share", "std"))
    bars = axes.barh(range(len(frame)), shares, color=CATEGORIES[0], height=0.62)
    axes.hlines(range(len(frame)), np.maximum(shares - spread, 0), shares + spread, color=INK, linewidth=1)
    for place, (bar, name) in enumerate(zip(bars, frame["axis"], strict=True)):
        sketch.tip(bar, [f"{name}: {shares[place]:.1f} ± {spread[place]:.1f} %"])
        beside = {"textcoords": "offset points", "va": "center_baseline", "fontsize": 8}
        axes.annotate(f"{shares[place]:.0f} %", (shares[place] + spread[place], place), (4, 0), **beside)
    axes.set_yticks(range(len(frame)), frame["axis"])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.margins(x=0.14)
    axes.set_xlabel("share of importance (%)")
    caption = "What shuffling the values of each hyper-parameter costs a random forest; bars add up to 100 %."
    return [sketch.finish("importance", caption)]


# --- two -------------------------------------------------------------------------------------------------


@matplotlib.rc_context(STYLE)
def heat_maps(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The metric over two hyper-parameters: cells where both have few values, coloured points otherwise."""
    measured = quantity(results.metric, results.target_accuracy)
    finished = ranked(settings, results.mode)
    counts = varied(results, finished)
    drawings = []
    for number, (x, y) in enumerate([*combinations(counts, 2)][:MOST_PAIRS], start=1):
        columns, rows = scale_of(results, x, finished), scale_of(results, y, finished)
        if max(counts[x], counts[y]) <= MOST_CELLS:
            sketch = _cells(columns, rows, finished, measured, results.mode)
            marks = f"mean over seeds{' and all other hyper-parameters' if len(counts) > 2 else ''}"
        else:
            sketch = _cloud(columns, rows, finished, measured, results.mode)
            marks = "a point for each setting"
        drawings.append(sketch.finish(f"heat-{number}", capitalised(f"{measured.title} over {x} and {y}, {marks}.")))
    return drawings


def _cells(columns: Scale, rows: Scale, settings: list[Setting], measured: Quantity, mode: str) -> Sketch:
    groups: dict[tuple[float, float], list[Setting]] = {}
    for setting in settings:
        groups.setdefault((columns.place(setting), rows.place(setting)), []).append(setting)
    means = {place: float(np.mean([setting.mean for setting in group])) for place, group in groups.items()}
    xs, ys = sorted(columns.places.values()), sorted(rows.places.values())
    sketch = Sketch(PANEL, min(max(0.9 + 0.4 * len(ys), 1.8), 5.0))
    axes = sketch.figure.subplots()
    norm = Normalize(min(means.values()), max(means.values()))
    letters = letter_size(len(xs), (measured.text(mean) for mean in means.values()), PANEL - 0.8)
    for (x, y), group in groups.items():
        mean = means[x, y]
        cell = draw_cell(axes, xs.index(x), ys.index(y), mean, norm, measured, letters, better=mode)
        tip = group[0].describe(measured)
        if len(group) > 1:
            where = ", ".join(f"{scale.name}={shown(group[0].values[scale.name])}" for scale in (columns, rows))
            tip = f"{where}\n{measured.text(mean, unit=True)}, mean of {len(group)} settings"
        sketch.tip(cell, [tip])
    axes.set_xticks(range(len(xs)), _names(columns, settings))
    axes.set_yticks(range(len(ys)), _names(rows, settings))
    if sum(len(text.get_text()) for text in axes.get_xticklabels()) > 44:
        slanted(axes)
    room_for_cells(axes, len(xs), len(ys))
    axes.set_xlabel(columns.name)
    axes.set_ylabel(rows.name)
    if not letters:
        colour_key(axes, measured, list(means.values()), mode, [heat(share) for share in np.linspace(0, 1, 9)])
    return sketch


def _names(scale: Scale, settings: list[Setting]) -> list[str]:
    """Return the names at the places of a scale."""
    values = distinct(setting.values[scale.name] for setting in settings)
    return [shown(value, 22) for value in sorted(values, key=lambda value: scale[value])]


def _cloud(columns: Scale, rows: Scale, settings: list[Setting], measured: Quantity, mode: str) -> Sketch:
    sketch = Sketch(PANEL, 3.0)
    axes = sketch.figure.subplots()
    drawn = settings[::-1]  # the best on top
    means = [setting.mean for setting in drawn]
    marks = axes.scatter(
        [columns.place(setting) for setting in drawn],
        [rows.place(setting) for setting in drawn],
        c=ramp(means, mode),
        s=30,
        edgecolor=PAPER,
        linewidths=0.5,
    )
    sketch.tip(marks, [setting.describe(measured) for setting in drawn])
    label_axis(axes, columns)
    axes.set_yticks([place for place, _ in rows.ticks], [name for _, name in rows.ticks])
    axes.set_ylim(*rows.limits)
    axes.set_ylabel(rows.name)
    colour_key(axes, measured, means, mode)
    return sketch
