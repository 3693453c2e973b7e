"""The metric over hyper-parameters: one at a time, two; and what each is worth."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from fedskew.lab.comparing.ranking import Setting, distinct, ranked, varied
from fedskew.lab.comparing.scales import Scale, scale_of
from fedskew.lab.drawing import CATEGORIES, HEAT, INK, PANEL, PAPER, Drawing, new_panel, styled
from fedskew.lab.figures.cells import heat_map
from fedskew.lab.figures.panels import label_axis, limits, slanted
from fedskew.lab.quantities import quantity_of
from fedskew.lab.wording import capitalised, shown

if TYPE_CHECKING:
    from engine.results.results import Results
    from fedskew.lab.comparing.importance import Importance

MOST_PAIRS = 3
MOST_CELLS = 14  # of a heat map's side


@styled
def sensitivity(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The metric over each hyper-parameter: a point for each trial, and the means, of numbers as a line."""
    measured, metric = quantity_of(results), results.metric
    seen = [setting for setting in settings if any(math.isfinite(row[metric]) for row in setting.trials)]
    span = limits(measured.factor * row[metric] for setting in seen for row in setting.trials)
    if span is None:
        return []
    names = varied(results, seen)
    drawings = []
    for number, name in enumerate(names, start=1):
        scale = scale_of(results, name, seen)
        rows = [
            (scale.place(setting), measured.factor * row[metric], row in setting.finished)
            for setting in seen
            for row in setting.trials
        ]
        points: Any = pd.DataFrame(rows, columns=["place", "value", "finished"]).dropna()
        figure, axes = new_panel(height=2.8)
        for finished, part in points.groupby("finished"):
            colours = (CATEGORIES[0], PAPER) if finished else (PAPER, CATEGORIES[0])
            style = {"facecolor": colours[0], "edgecolor": colours[1], "linewidths": 0.6, "alpha": 0.7}
            axes.scatter(part["place"], part["value"], s=16, zorder=3, **style)
        line = _means(points[points["finished"]], len(scale.places) if scale.ordered else 0)
        marks = {} if scale.ordered else {"linestyle": "none", "marker": "_", "markersize": 22, "markeredgewidth": 2}
        axes.plot(line["place"], line["value"], color=CATEGORIES[0], **marks)
        label_axis(axes, scale)
        axes.set(ylim=span, ylabel=textwrap.fill(measured.title, 36))
        what = "mean of neighbouring values" if scale.ordered and len(scale.places) > MOST_CELLS else "mean"
        over = " over all other hyper-parameters" if len(names) > 1 else ""
        drawn = "line" if scale.ordered else "bar"  # between names there is nothing
        hollow = "" if points["finished"].all() else " Hollow: stopped early, not in the mean."
        caption = f"{name}: a point for each trial, the {drawn} is the {what}{over}.{hollow}"
        drawings.append(Drawing(f"sensitivity-{number}", caption, figure))
    return drawings


def _means(points: Any, places: int) -> pd.DataFrame:
    """Means at each place; of many places, of up to eight groups of neighbours with equally many trials."""
    groups: Any = points["place"]
    if places > MOST_CELLS and len(points):
        groups = pd.qcut(points["place"].rank(method="first"), min(8, max(2, len(points) // 4)), labels=False)
    return points.groupby(groups.rename("group"))[["place", "value"]].mean()


@styled
def importance(measure: Importance) -> Drawing:
    """Bars of permutation importance with the spread over repetitions."""
    frame = measure.frame
    figure, axes = new_panel(height=0.9 + 0.34 * len(frame))
    error = {"ecolor": INK, "elinewidth": 1}
    bars = axes.barh(frame["axis"], 100 * frame["share"], xerr=100 * frame["std"], height=0.62, error_kw=error)
    axes.bar_label(bars, fmt="%.0f %%", padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.14)
    axes.set(xlabel="share of importance (%)", xlim=(0, None))
    caption = "What shuffling the values of each hyper-parameter costs a random forest; bars add up to 100 %."
    return Drawing("importance", caption, figure)


@styled
def heat_maps(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The metric over two hyper-parameters: cells where these fill a grid, else coloured points."""
    measured = quantity_of(results)
    finished = ranked(settings, results.mode)
    counts = varied(results, finished)
    colours = HEAT if results.mode == "max" else HEAT.reversed()  # bright is good
    drawings = []
    for number, (x, y) in enumerate([*combinations(counts, 2)][:MOST_PAIRS], start=1):
        columns, rows = scale_of(results, x, finished), scale_of(results, y, finished)
        places = [(columns.place(s), rows.place(s), measured.factor * s.mean) for s in finished[::-1]]
        frame = pd.DataFrame(places, columns=["x", "y", "value"])  # the best last, on top
        few = max(counts[x], counts[y]) <= MOST_CELLS and 2 * len(finished) >= counts[x] * counts[y]
        figure, axes = new_panel(PANEL, min(max(0.9 + 0.4 * counts[y], 1.8), 5.0) if few else 3.0)
        if few:
            _cells(axes, frame, columns, rows, finished, lambda value: measured.text(value / measured.factor), colours)
            marks = f"mean over seeds{' and all other hyper-parameters' if len(counts) > 2 else ''}"
        else:
            label_axis(axes, columns)
            axes.set_yticks([place for place, _ in rows.ticks], [name for _, name in rows.ticks])
            axes.set_ylim(*rows.limits)
            style = {"s": 30, "edgecolor": PAPER, "linewidths": 0.5}
            points = axes.scatter(frame["x"], frame["y"], c=frame["value"], cmap=colours, **style)
            figure.colorbar(points, ax=axes, shrink=0.8)
            marks = "a point for each setting"
        axes.set(xlabel=x, ylabel=y)
        drawings.append(Drawing(f"heat-{number}", capitalised(f"{measured.title} over {x} and {y}, {marks}."), figure))
    return drawings


def _cells(
    axes: Axes,
    frame: pd.DataFrame,
    columns: Scale,
    rows: Scale,
    settings: list[Setting],
    written: Callable[[float], str],
    colours: Colormap,
) -> None:
    """Draw the mean of each pair of values, the largest value of y on top."""
    table = frame.pivot_table(index="y", columns="x", values="value").iloc[::-1]
    across, down = _names(columns, settings), _names(rows, settings)[::-1]
    heat_map(axes, table.to_numpy(), down, across, np.nanmin(table), np.nanmax(table), written, colours)
    if sum(map(len, across)) > 44:
        slanted(axes)


def _names(scale: Scale, settings: list[Setting]) -> list[str]:
    """Return the names at the places of a scale."""
    values = distinct(setting.values[scale.name] for setting in settings)
    return [shown(value, 22) for value in sorted(values, key=lambda value: scale[value])]
