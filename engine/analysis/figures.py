"""The figures of a report.

Each is small enough for a phone, and a page that has room sets several side by side; only those marked wide scroll.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from engine.analysis import statistics
from engine.analysis.drawing import CATEGORIES, GRID, INK, MUTED, PAPER, RAMP, STYLE, Drawing, Sketch
from engine.analysis.scales import (
    Quantity,
    Scale,
    Setting,
    describe,
    distinct,
    quantity,
    ranked,
    scale_of,
    shown,
    slanted,
    spread_out,
)
from engine.analysis.settings import key, setting_frame, setting_label

if TYPE_CHECKING:
    from engine.analysis.claims import CellVerdict, Verdict
    from engine.analysis.importance import Importance
    from engine.analysis.tables import Results

HEAT = "viridis"  # of cells with a number written on them: the same in light and dark
PANEL, MIDDLE, WIDE = 4.2, 6.4, 8.8  # inches
MOST_LINES, MOST_ROWS, MOST_PAIRS, MOST_PARTITIONS = 6, 12, 3, 6
MOST_ROUNDS = 60  # of a curve; more are thinned out
MOST_STRINGS = 120  # of parallel coordinates
MOST_CELLS = 14  # of a heat map's side


def _colours(count: int, ordered: bool) -> list[str]:
    if ordered and count > 1:
        return [RAMP[i] for i in np.linspace(0, len(RAMP) - 1, count).round().astype(int)]
    return [CATEGORIES[i % len(CATEGORIES)] for i in range(count)]


def _limits(values: Iterable[float], margin: float = 0.06) -> tuple[float, float] | None:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    room = margin * (high - low) or 0.5
    return low - room, high + room


def _key(axes: Axes, title: str, entries: Sequence[tuple[str, str, float]]) -> None:
    """A legend of entries (text, colour, y): to the right, each beside the end of its line; long ones below."""
    if max((len(text) for text, _, _ in entries), default=0) > 16:
        figure = axes.get_figure(root=True)
        assert figure is not None
        handles = [Line2D([], [], color=colour, linewidth=2.2) for _, colour, _ in entries]
        figure.legend(handles, [text for text, _, _ in entries], title=title, loc="outside lower left", handlelength=1)
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.17 * len(entries))
        return
    low, high = axes.get_ylim()
    top = 0.9 if title else 1.0
    gap = 0.07
    wanted = sorted((min(max((y - low) / (high - low), 0.0), top), number) for number, (_, _, y) in enumerate(entries))
    places = [place for place, _ in wanted]
    for i in range(1, len(places)):  # upwards, so that none touches the one below
        places[i] = max(places[i], places[i - 1] + gap)
    for i in range(len(places) - 1, -1, -1):  # and back below the top
        places[i] = min(places[i], top - gap * (len(places) - 1 - i))
    for place, (_, number) in zip(places, wanted, strict=True):
        text, colour, _ = entries[number]
        stroke = Line2D([1.02, 1.06], [place, place], transform=axes.transAxes, color=colour, lw=2.2, clip_on=False)
        axes.add_artist(stroke)
        axes.text(1.075, place, text, transform=axes.transAxes, va="center_baseline", fontsize=8)
    if title:
        axes.text(1.02, 0.985, title, transform=axes.transAxes, va="top", fontsize=8, color=MUTED)


# --- curves ----------------------------------------------------------------------------------------------


def _curve_of(frame: pd.DataFrame, setting: Setting, column: str, interval: bool) -> pd.DataFrame:
    """Mean of one setting over its seeds, with its interval: round, mean, low, high, seeds.

    A trial that failed does not count; one that was stopped counts as far as it went.
    """
    counted = [row["trial"] for row in setting.trials if row["status"] != "failed"]
    rows = frame[frame["trial"].isin(counted)]
    wide = rows.pivot(index="round", columns="trial", values=column).dropna(how="all")
    wide = wide.loc[spread_out(list(wide.index), MOST_ROUNDS)]
    values = wide.to_numpy(dtype=float)
    if interval:
        summaries = [statistics.summarise(row) for row in values]
        edges = np.array([(one.mean, one.low, one.high) for one in summaries]).reshape(-1, 3)
    else:
        edges = np.column_stack([np.nanmean(values, axis=1), *(np.full(len(values), math.nan),) * 2])
    curve = pd.DataFrame(edges, columns=["mean", "low", "high"])
    return curve.assign(round=wide.index.astype(int), seeds=np.isfinite(values).sum(axis=1))


@dataclass(frozen=True)
class _Line:
    setting: Setting
    label: str
    colour: str


def _panels(results: Results, settings: list[Setting]) -> tuple[str, list[tuple[str, list[_Line]]], str]:
    """What the lines are called, the panels (title, lines), and a sentence on what is not drawn."""
    finished = ranked(settings, results.mode)
    varied = {
        axis.name: values
        for axis in results.axes
        if len(values := distinct(setting.values[axis.name] for setting in settings)) > 1
    }
    if len(varied) == 1 and len(settings) <= len(RAMP):
        (name,) = varied
        return name, [("", _lines(results, name, settings, settings))], ""
    few = [name for name, values in varied.items() if len(values) <= MOST_LINES]
    if len(few) >= 2 and finished:
        line, panel, *_ = few
        fixed = {name: key(value) for name, value in finished[0].values.items() if name not in (line, panel)}
        within = [s for s in settings if all(key(s.values[name]) == value for name, value in fixed.items())]
        panels: dict[str, list[Setting]] = {}
        scale = scale_of(results, panel, within)
        for setting in sorted(within, key=lambda setting: scale[setting.values[panel]]):
            panels.setdefault(f"{panel}={shown(setting.values[panel])}", []).append(setting)
        note = ""
        if fixed:
            others = ", ".join(f"{name}={shown(finished[0].values[name])}" for name in fixed)
            note = f"All other hyper-parameters as in the best setting: {others}."
        return line, [(title, _lines(results, line, chosen, settings)) for title, chosen in panels.items()], note
    if len(settings) <= MOST_LINES:
        colours = _colours(len(settings), ordered=False)
        lines = [_Line(s, s.label if varied else "", colour) for s, colour in zip(settings, colours, strict=True)]
        return "", [("", lines)], ""
    best = finished[:5]
    others = finished[5:] + [setting for setting in settings if math.isnan(setting.mean)]
    rest = spread_out(others, 40)
    lines = [_Line(setting, "", MUTED) for setting in reversed(rest)]
    lines += [_Line(s, s.label, colour) for s, colour in zip(best, _colours(len(best), False), strict=True)]
    return "", [("", lines)], f"In colour the best {len(best)} settings; in grey {len(rest)} of {len(others)} others."


def _lines(results: Results, name: str, chosen: list[Setting], settings: list[Setting]) -> list[_Line]:
    """A line for each of ``chosen``; a value has the same colour wherever it appears among ``settings``."""
    scale = scale_of(results, name, settings)
    colours = dict(zip(sorted(scale.places.values()), _colours(len(scale.places), scale.ordered), strict=True))
    placed = sorted(((scale[setting.values[name]], setting) for setting in chosen), key=lambda pair: pair[0])
    return [_Line(setting, shown(setting.values[name]), colours[place]) for place, setting in placed]


@matplotlib.rc_context(STYLE)
def curves(results: Results, settings: list[Setting]) -> tuple[list[Drawing], pd.DataFrame]:
    """Accuracy over rounds, a panel for each value of the second hyper-parameter; the loss too if there is room.

    With the means and intervals that are drawn: a row for each setting, quantity and round.
    """
    frame = results.curves().drop_duplicates(["trial", "round"], keep="last")
    name, panels, note = _panels(results, settings)
    drawings, drawn = [], []
    for column in ("accuracy", "loss") if len(panels) == 1 else ("accuracy",):
        measured = quantity(column)
        parts = [
            [(line, _curve_of(frame, line.setting, column, line.colour != MUTED)) for line in lines]
            for _, lines in panels
        ]
        pairs = [(line, part) for lines in parts for line, part in lines if len(part)]
        limits = _limits(
            [v * measured.factor for _, part in pairs for v in part[["mean", "low", "high"]].to_numpy().flat]
        )
        if limits is None:
            continue
        for number, ((title, _), lines) in enumerate(zip(panels, parts, strict=True)):
            sketch = Sketch(PANEL, 2.9)
            axes = sketch.figure.subplots()
            axes.set_ylim(*limits)
            entries = []
            for line, part in lines:
                if len(part):
                    _curve(sketch, axes, line, part, measured)
                    entries.append((line.label, line.colour, float(part["mean"].iloc[-1]) * measured.factor))
            _key(axes, name, [entry for entry in entries if entry[0]])
            _stage_borders(frame, axes)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("round")
            axes.set_ylabel("test accuracy (%)" if column == "accuracy" else measured.title)
            axes.set_title(title)
            suffix = f"-{number + 1}" if len(panels) > 1 else ""
            what = "Test accuracy" if column == "accuracy" else "Test loss"
            caption = " ".join(part for part in (f"{what} over rounds{', ' + title if title else ''}.", note) if part)
            drawings.append(sketch.finish(f"curves-{column}{suffix}", caption))
        for line, part in pairs:
            same = setting_frame([line.setting.values] * len(part), line.setting.values, ())
            drawn.append(same.assign(quantity=column).join(part[["round", "mean", "low", "high", "seeds"]]))
    return drawings, pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame()


def _curve(sketch: Sketch, axes: Axes, line: _Line, part: pd.DataFrame, measured: Quantity) -> None:
    rounds = part["round"].tolist()
    mean, low, high = (np.array(part[name].tolist()) * measured.factor for name in ("mean", "low", "high"))
    faint = line.colour == MUTED
    if np.isfinite(low).any():
        axes.fill_between(rounds, low, high, color=line.colour, alpha=0.2, linewidth=0)
    axes.plot(rounds, mean, color=line.colour, linewidth=0.6 if faint else 1.7, alpha=0.45 if faint else 1.0)
    rows = part.iloc[spread_out(range(len(part)), 16)] if not faint else part.iloc[-1:]
    marks = axes.scatter(
        rows["round"], rows["mean"] * measured.factor, s=4 if faint else 9, color=line.colour, linewidths=0, zorder=3
    )
    tips = []
    for row in rows.to_dict("records"):
        text = f"{line.setting.label}\nround {row['round']}: {measured.text(row['mean'], unit=True)}"
        if math.isfinite(row["low"]):
            text += f" ({measured.text(row['low'])} to {measured.text(row['high'])})"
        tips.append(f"{text}, {row['seeds']} seed{'s' if row['seeds'] != 1 else ''}")
    sketch.tip(marks, tips)


def _stage_borders(frame: pd.DataFrame, axes: Axes) -> None:
    """Where a later stage begins, if it begins in the same round in all trials."""
    first: dict[tuple[str, str], int] = {}
    for trial, stage, number in zip(*(frame[name].tolist() for name in ("trial", "stage", "round")), strict=True):
        first[stage, trial] = min(number, first.get((stage, trial), number))
    for stage in dict.fromkeys(stage for stage, _ in first):
        begins = {number for (name, _), number in first.items() if name == stage}
        border = min(begins) - 0.5
        if len(begins) == 1 and border > min(first.values()):
            axes.axvline(border, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
            axes.annotate(
                stage,
                (border, 0.03),
                xycoords=axes.get_xaxis_transform(),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=7.5,
                color=MUTED,
            )


# --- one hyper-parameter, two, all ------------------------------------------------------------------------


@matplotlib.rc_context(STYLE)
def sensitivity(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The metric over each hyper-parameter: a point for each trial, a line through the means."""
    measured = quantity(results.metric, results.target_accuracy)
    seen = [setting for setting in settings if any(math.isfinite(row[results.metric]) for row in setting.trials)]
    limits = _limits(measured.factor * row[results.metric] for setting in seen for row in setting.trials)
    varied = [axis.name for axis in results.axes if len(distinct(s.values[axis.name] for s in seen)) > 1]
    if limits is None:
        return []
    drawings = []
    for number, name in enumerate(varied):
        others = [other for other in varied if other != name]
        split = _strongest(others, seen)
        sketch = Sketch(PANEL, 2.8)
        axes = sketch.figure.subplots()
        axes.set_ylim(*limits)
        scale = scale_of(results, name, seen)
        groups = _split(results, split, seen)
        width = min(0.22 * float(np.diff(sorted(scale.places.values())).min()), 0.08 * float(np.ptp(scale.limits)))
        entries = []
        for place, (label, colour, members) in enumerate(groups):
            shift = 0.0 if len(groups) == 1 else (place / (len(groups) - 1) - 0.5) * width
            line = _means(members, name, scale, results.metric)
            if len(line):
                axes.plot(line[:, 0] + shift, line[:, 1] * measured.factor, color=colour, linewidth=1.6)
                entries.append((label, colour, float(line[-1, 1]) * measured.factor))
            _trial_points(sketch, axes, [(scale[s.values[name]] + shift, s) for s in members], colour, measured)
        scale.label(axes)
        axes.set_ylabel(_wrapped(measured.title))
        if split:
            _key(axes, split, entries)
        over = f" for each value of {split}" if split else ""
        over += " over all other hyper-parameters" if len(others) > (split is not None) else ""
        what = "mean of neighbouring values" if len(scale.places) > MOST_CELLS else "mean"
        hollow = " Hollow: stopped early, not in the mean." if "stopped" in set(results.trials["status"]) else ""
        caption = f"{name}: a point for each trial, the line is the {what}{over}.{hollow}"
        drawings.append(sketch.finish(f"sensitivity-{number + 1}", caption))
    return drawings


def _strongest(names: Sequence[str], settings: Sequence[Setting]) -> str | None:
    """Of the hyper-parameters with few values the one whose values are furthest apart on average."""
    spreads: dict[str, float] = {}
    for name in names:
        groups: dict[Any, list[float]] = {}
        for setting in settings:
            if math.isfinite(setting.mean):
                groups.setdefault(key(setting.values[name]), []).append(setting.mean)
        if 1 < len(groups) <= MOST_LINES:
            spreads[name] = float(np.ptp([np.mean(values) for values in groups.values()]))
    return max(spreads, key=lambda name: spreads[name], default=None)


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
            told = f"{setting.label}, seed {row['seed']}" if setting.values else f"seed {row['seed']}"
            tips.append(f"{told}\n{measured.text(row[measured.column], unit=True)}{stopped}")
        sketch.tip(marks, tips)


def _split(results: Results, name: str | None, settings: list[Setting]) -> list[tuple[str, str, list[Setting]]]:
    if name is None:
        return [("", CATEGORIES[0], settings)]
    scale = scale_of(results, name, settings)
    groups: dict[str, list[Setting]] = {}
    for setting in sorted(settings, key=lambda setting: scale[setting.values[name]]):
        groups.setdefault(shown(setting.values[name]), []).append(setting)
    colours = _colours(len(groups), scale.ordered)
    return [(label, colour, members) for (label, members), colour in zip(groups.items(), colours, strict=True)]


def _means(settings: list[Setting], name: str, scale: Scale, metric: str) -> np.ndarray:
    """Place and mean over all finished trials there, [n, 2]; of many places, of up to eight groups of neighbours."""
    rows = [(scale[s.values[name]], value) for s in settings for value in s.figures(metric)]
    points = np.array(sorted(rows)).reshape(-1, 2)
    if len(scale.places) > MOST_CELLS:
        parts = np.array_split(points, min(8, max(2, len(points) // 4)))
    else:
        parts = [points[points[:, 0] == place] for place in sorted(scale.places.values())]
    return np.array([part.mean(axis=0) for part in parts if len(part)]).reshape(-1, 2)


def _wrapped(text: str, longest: int = 34) -> str:
    """In two lines if it is too long for the side of a panel."""
    if len(text) <= longest:
        return text
    head, _, tail = text.partition(", ")
    return f"{head},\n{tail}" if tail else text


@matplotlib.rc_context(STYLE)
def heat_maps(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The metric over two hyper-parameters: cells where both have few values, coloured points otherwise."""
    measured = quantity(results.metric, results.target_accuracy)
    finished = ranked(settings, results.mode)
    counts = {axis.name: len(distinct(s.values[axis.name] for s in finished)) for axis in results.axes}
    names = [name for name, count in counts.items() if count > 1]
    pairs = [(first, second) for number, first in enumerate(names) for second in names[number + 1 :]][:MOST_PAIRS]
    drawings = []
    for number, (x, y) in enumerate(pairs):
        others = len(names) > 2
        over = f", mean over seeds{' and all other hyper-parameters' if others else ''}"
        if max(counts[x], counts[y]) <= MOST_CELLS:
            sketch = _cells(results, finished, x, y, measured)
            caption = f"{measured.title} over {x} and {y}{over}."
        else:
            sketch = _cloud(results, finished, x, y, measured)
            caption = f"{measured.title} over {x} and {y}, a point for each setting."
        drawings.append(sketch.finish(f"heat-{number + 1}", caption[0].upper() + caption[1:]))
    return drawings


def _cells(results: Results, settings: list[Setting], x: str, y: str, measured: Quantity) -> Sketch:
    columns, rows = scale_of(results, x, settings), scale_of(results, y, settings)
    groups: dict[tuple[float, float], list[Setting]] = {}
    for setting in settings:
        groups.setdefault((columns[setting.values[x]], rows[setting.values[y]]), []).append(setting)
    xs, ys = sorted(columns.places.values()), sorted(rows.places.values())
    means = {place: float(np.mean([setting.mean for setting in group])) for place, group in groups.items()}
    sketch = Sketch(PANEL, min(max(0.9 + 0.4 * len(ys), 1.8), 5.0))
    axes = sketch.figure.subplots()
    norm = Normalize(min(means.values()), max(means.values()))
    letters = _letters(len(xs), (measured.text(mean) for mean in means.values()), PANEL - 0.8)
    for (place_x, place_y), mean in means.items():
        column, row = xs.index(place_x), ys.index(place_y)
        cell = _cell(axes, column, row, mean, norm, measured, letters, better=results.mode)
        group = groups[place_x, place_y]
        first = group[0].values
        if len(group) == 1:
            sketch.tip(cell, [group[0].describe(measured)])
        else:
            where = f"{x}={shown(first[x])}, {y}={shown(first[y])}"
            sketch.tip(cell, [f"{where}\n{measured.text(mean, unit=True)}, mean of {len(group)} settings"])
    names_x, names_y = _names(x, settings), _names(y, settings)
    places = {key(value): place for value, place in ((v, columns[v]) for v in names_x)}
    axes.set_xticks(range(len(xs)), [shown(v, 22) for v in sorted(names_x, key=lambda v: places[key(v)])])
    axes.set_yticks(range(len(ys)), [shown(v, 22) for v in sorted(names_y, key=lambda v: rows[v])])
    if sum(len(text.get_text()) for text in axes.get_xticklabels()) > 44:
        slanted(axes)
    _bare(axes, len(xs), len(ys))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if not letters:
        _ramp_key(axes, measured, list(means.values()), results.mode, [_heat(share) for share in np.linspace(0, 1, 9)])
    return sketch


def _letters(columns: int, texts: Iterable[str], inches: float) -> float:
    """The size of the numbers in a row of so many cells; 0 if they would not fit."""
    longest = max(len(text) for text in texts)
    size = 72 * inches / columns / (0.68 * longest + 0.4)
    return min(size, 8.0) if size >= 6.5 else 0.0


def _heat(share: float) -> Any:
    """0 for the worst to 1 for the best."""
    return matplotlib.colormaps[HEAT](0.08 + 0.87 * share)


def _names(name: str, settings: list[Setting]) -> list[Any]:
    return distinct(setting.values[name] for setting in settings)


def _bare(axes: Axes, columns: int, rows: int) -> None:
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def _cell(
    axes: Axes, column: int, row: int, value: float, norm: Normalize, measured: Quantity, letters: float, better: str
) -> Rectangle:
    """A coloured cell, bright where the value is good, with the value on it in letters of that size (0: none)."""
    share = float(norm(value)) if norm.vmin != norm.vmax else 0.6
    colour = _heat(share if better == "max" else 1 - share)
    cell = Rectangle((column - 0.48, row - 0.47), 0.96, 0.94, facecolor=colour, edgecolor="none")
    axes.add_patch(cell)
    if letters:
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18
        axes.text(
            column,
            row,
            measured.text(value),
            ha="center",
            va="center_baseline",
            fontsize=letters,
            color="#fdfdfd" if dark else "#101010",
        )
    return cell


def _cloud(results: Results, settings: list[Setting], x: str, y: str, measured: Quantity) -> Sketch:
    columns, rows = scale_of(results, x, settings), scale_of(results, y, settings)
    sketch = Sketch(PANEL, 3.0)
    axes = sketch.figure.subplots()
    drawn = list(reversed(settings))  # the best on top
    shares = _shares([setting.mean for setting in drawn], results.mode)
    marks = axes.scatter(
        [columns[s.values[x]] for s in drawn],
        [rows[s.values[y]] for s in drawn],
        c=[_ramp(share) for share in shares],
        s=30,
        edgecolor=PAPER,
        linewidths=0.5,
    )
    sketch.tip(marks, [setting.describe(measured) for setting in drawn])
    columns.label(axes)
    axes.set_yticks([place for place, _ in rows.ticks], [name for _, name in rows.ticks])
    axes.set_ylim(*rows.limits)
    axes.set_ylabel(y)
    _ramp_key(axes, measured, [setting.mean for setting in drawn], results.mode)
    return sketch


def _shares(values: Sequence[float], mode: str) -> list[float]:
    """0 for the worst to 1 for the best."""
    low, high = min(values), max(values)
    if high == low:
        return [0.5] * len(values)
    return [(value - low) / (high - low) if mode == "max" else (high - value) / (high - low) for value in values]


def _ramp(share: float) -> str:
    return RAMP[min(int(share * len(RAMP)), len(RAMP) - 1)]


def _ramp_key(
    axes: Axes, measured: Quantity, values: Sequence[float], mode: str, colours: Sequence[Any] = RAMP
) -> None:
    """The colours from worst to best as a column of patches to the right of the axes, its ends labelled."""
    worst, best = (min(values), max(values)) if mode == "max" else (max(values), min(values))
    for number, colour in enumerate(colours):
        axes.add_artist(
            Rectangle(
                (1.04, 0.2 + 0.6 * number / len(colours)),
                0.035,
                0.6 / len(colours),
                transform=axes.transAxes,
                facecolor=colour,
                edgecolor="none",
                clip_on=False,
            )
        )
    unit = f" {measured.unit}" if measured.unit else ""
    axes.text(1.04, 0.82, measured.text(best) + unit, transform=axes.transAxes, va="bottom", fontsize=8)
    axes.text(1.04, 0.18, measured.text(worst) + unit, transform=axes.transAxes, va="top", fontsize=8)


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
        axes.annotate(
            f"{shares[place]:.0f} %",
            (shares[place] + spread[place], place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=8,
        )
    axes.set_yticks(range(len(frame)), frame["axis"])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.margins(x=0.14)
    axes.set_xlabel("share of importance (%)")
    return [
        sketch.finish(
            "importance",
            "What shuffling the values of each hyper-parameter costs a random forest; bars add up to 100 %.",
        )
    ]


@matplotlib.rc_context(STYLE)
def parallel_coordinates(results: Results, settings: list[Setting]) -> list[Drawing]:
    """A line for each setting across all hyper-parameters to the metric; the best one is thick."""
    finished = ranked(settings, results.mode)
    names = [axis.name for axis in results.axes if len(distinct(s.values[axis.name] for s in finished)) > 1]
    if len(names) < 2 or len(finished) < 3:
        return []
    measured = quantity(results.metric, results.target_accuracy)
    scales = {name: scale_of(results, name, finished) for name in names}
    drawn = list(reversed(spread_out(finished, MOST_STRINGS)))
    values = [setting.mean for setting in drawn]
    low, high = min(values), max(values)
    heights = [(value - low) / (high - low) if high > low else 0.5 for value in values]
    sketch = Sketch(WIDE if len(names) > 3 else MIDDLE, 3.5)
    axes = sketch.figure.subplots()
    lines = []
    for setting, height in zip(drawn, heights, strict=True):
        at = [_within(scales[name], scales[name][setting.values[name]]) for name in names]
        lines.append(np.column_stack([np.arange(len(names) + 1), [*at, height]]))
    widths = [1.1] * (len(drawn) - 1) + [2.8]
    strings = LineCollection(lines, colors=[_ramp(share) for share in _shares(values, results.mode)], linewidths=widths)
    axes.add_collection(strings)
    sketch.tip(strings, [setting.describe(measured) for setting in drawn])
    for place, name in enumerate(names):
        axes.axvline(place, color=MUTED, linewidth=0.8)
        for tick, text in scales[name].ticks:
            _beside(axes, place, _within(scales[name], tick), text, "right")
    axes.axvline(len(names), color=MUTED, linewidth=0.8)
    for share in (0.0, 0.5, 1.0) if high > low else (0.5,):
        _beside(axes, len(names), share, measured.text(low + share * (high - low)), "left")
    axes.set_xticks(range(len(names) + 1), [*names, _wrapped(measured.title, 24)])
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0, labelsize=8.5)
    axes.set_yticks([])
    axes.set_xlim(-0.3, len(names) + 0.25)
    axes.set_ylim(-0.06, 1.06)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    omitted = f", {len(drawn)} of {len(finished)} settings, evenly spaced by rank" if len(drawn) < len(finished) else ""
    return [
        sketch.finish(
            "parallel", f"A line for each setting, mean over seeds; the thick one is the best{omitted}.", True
        )
    ]


def _within(scale: Scale, place: float) -> float:
    low, high = min(scale.places.values()), max(scale.places.values())
    return (place - low) / (high - low) if high > low else 0.5


def _beside(axes: Axes, x: float, y: float, text: str, side: str) -> None:
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    axes.annotate(
        text,
        (x, y),
        xytext=(-4 if side == "right" else 4, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=8,
        bbox=box,
    )


# --- classes, clients, partitions -----------------------------------------------------------------------


@matplotlib.rc_context(STYLE)
def class_accuracy(results: Results, settings: list[Setting]) -> list[Drawing]:
    """Accuracy of each class at the end, a row for each setting."""
    finished = spread_out(ranked(settings, results.mode), MOST_ROWS)
    rows = []
    for setting in finished:
        known = [
            np.asarray(row["class_accuracy"], dtype=float)
            for row in setting.finished
            if _has_entries(row["class_accuracy"])
        ]
        if known and len({len(row) for row in known}) == 1:
            rows.append((setting, np.stack(known)))
    classes = max((stack.shape[1] for _, stack in rows), default=0)
    if not classes:
        return []
    measured = quantity("accuracy")
    wide = classes > 12 or max(len(setting.label) for setting, _ in rows) > 16
    sketch = Sketch(WIDE if wide else PANEL, 0.9 + 0.32 * len(rows))
    axes = sketch.figure.subplots()
    norm = Normalize(0, 1)
    letters = _letters(classes, ["100.0"], WIDE - 2.5 if wide else PANEL - 0.8)
    for place, (setting, stack) in enumerate(reversed(rows)):
        known = np.isfinite(stack)
        for number in range(stack.shape[1]):
            if not known[:, number].any():
                continue
            summary = statistics.summarise(stack[known[:, number], number])
            cell = _cell(axes, number, place, summary.mean, norm, measured, letters, better="max")
            if classes <= 30:
                sketch.tip(cell, [f"{setting.label}\nclass {number}: {describe(summary, measured)}"])
    _bare(axes, classes, len(rows))
    axes.set_yticks(range(len(rows)), [_short(setting.label) for setting, _ in reversed(rows)])
    axes.set_xticks(range(0, classes, 1 if classes <= 30 else 10))
    axes.set_xlabel("class")
    count = len(ranked(settings, results.mode))
    some = f"; {len(finished)} of {count} settings, evenly spaced by rank" if len(finished) < count else ""
    order = f", mean over seeds; the best setting on top{some}" if count > 1 else ""
    caption = f"Final test accuracy of each class (%){order}."
    return [sketch.finish("classes", caption, wide)]


def _short(text: str, longest: int = 44) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _has_entries(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) and len(row) > 0


@matplotlib.rc_context(STYLE)
def worst_clients(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The worst tenth of clients beside the accuracy of the global model, a row for each setting."""
    column = "worst_decile_accuracy"
    measured_there = [setting for setting in ranked(settings, results.mode) if setting.figures(column)]
    finished = spread_out(measured_there, MOST_ROWS)
    if not finished:
        return []
    measured = quantity(column)
    wide = max(len(setting.label) for setting in finished) > 16
    sketch = Sketch(MIDDLE if wide else PANEL, 1.2 + 0.27 * len(finished))
    axes = sketch.figure.subplots()
    parts = ((column, CATEGORIES[1], "worst tenth of clients"), ("accuracy", CATEGORIES[0], "global model"))
    summaries = {
        name: [statistics.summarise(setting.figures(name)) for setting in reversed(finished)] for name, _, _ in parts
    }
    places = np.arange(len(finished))
    ends = [[summary.mean * 100 for summary in summaries[name]] for name, _, _ in parts]
    axes.hlines(places, ends[0], ends[1], color=GRID, linewidth=3, zorder=1)
    for name, colour, label in parts:
        chosen = summaries[name]
        axes.hlines(places, [s.low * 100 for s in chosen], [s.high * 100 for s in chosen], color=colour, linewidth=1.2)
        marks = axes.scatter(
            [s.mean * 100 for s in chosen], places, color=colour, s=24, label=label, zorder=3, linewidths=0
        )
        sketch.tip(
            marks,
            [
                f"{setting.label}\n{label}: {describe(s, measured)}"
                for setting, s in zip(reversed(finished), chosen, strict=True)
            ],
        )
    axes.set_yticks(places, [_short(setting.label) for setting in reversed(finished)])
    axes.set_ylim(-0.6, len(finished) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("test accuracy (%)")
    sketch.figure.legend(loc="outside upper right", ncols=2, handletextpad=0.2)
    some = f"; {len(finished)} of {len(measured_there)} settings" if len(finished) < len(measured_there) else ""
    caption = f"The worst tenth of clients and the global model, mean and 95 % interval over seeds{some}."
    return [sketch.finish("clients", caption, wide)]


@matplotlib.rc_context(STYLE)
def partition(name: str, title: str, counts: np.ndarray) -> Drawing:
    """Samples of each class on every client: bubbles, or a picture of shades for many clients."""
    clients, classes = counts.shape
    sketch = Sketch(PANEL, min(max(1.0 + 0.19 * classes, 2.2), 3.4))
    axes = sketch.figure.subplots()
    holders, held = np.nonzero(counts)
    if clients <= 50 and classes <= 30 and len(holders) <= 600:
        step = min(72 * (PANEL - 0.7) / clients, 72 * (sketch.figure.get_size_inches()[1] - 0.8) / classes)
        area = (0.92 * step) ** 2 * counts[holders, held] / max(counts.max(), 1)
        marks = axes.scatter(holders, held, s=np.maximum(area, 0.8), color=CATEGORIES[0], linewidths=0, clip_on=False)
        amounts = counts[holders, held]
        told = [f"{n:,} sample{'s' if n > 1 else ''}" for n in amounts]
        sketch.tip(marks, [f"client {k}, class {c}: {n}" for k, c, n in zip(holders, held, told, strict=True)])
        axes.set_xlim(-0.8, clients - 0.2)
        axes.set_ylim(classes - 0.3, -0.7)
        axes.set_xlabel("client")
        drawn = "The area of a bubble is the number of samples."
    else:
        order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
        shares = counts[order] / np.maximum(counts[order].sum(axis=1, keepdims=True), 1)
        image = axes.imshow(
            np.ma.masked_equal(shares.T, 0),
            aspect="auto",
            interpolation="nearest",
            cmap=matplotlib.colormaps[HEAT].resampled(8),
            vmin=0,
            vmax=1,
        )
        bar = sketch.figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 0.5, 1])
        bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
        bar.outline.set_visible(False)  # type: ignore[operator]
        axes.grid(False)
        axes.set_xlabel("clients, by their largest class")
        drawn = "The shade is a class's share of a client's samples."
    axes.set_yticks(range(0, classes, max(1, math.ceil(classes / 12))))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_ylabel("class")
    axes.set_title(title)
    sizes = counts.sum(axis=1)
    largest = (counts[sizes > 0].max(axis=1) / sizes[sizes > 0]).mean() if sizes.any() else 0.0
    facts = f"{clients:,} clients of {sizes.min():,} to {sizes.max():,} samples, largest class {largest:.0%} on average"
    return sketch.finish(name, f"{title}: {facts.replace('%', ' %')}. {drawn}".removeprefix(": "))


# --- claims -------------------------------------------------------------------------------------------------

VERDICT_COLOURS = {"held": CATEGORIES[2], "not held": CATEGORIES[1], "undecided": MUTED}


@matplotlib.rc_context(STYLE)
def forest(number: int, verdict: Verdict) -> Drawing | None:
    """The effect of a claim in each cell with its intervals, against the margin."""
    measured, claim = quantity(verdict.claim.metric), verdict.claim
    cells: list[CellVerdict] = spread_out([cell for cell in verdict.cells if math.isfinite(cell.effect)], 24)
    if len(verdict.cells) < 2 or not cells:
        return None
    sketch = Sketch(PANEL, 0.8 + 0.27 * len(cells))
    axes = sketch.figure.subplots()
    axes.axvline(0, color=MUTED, linewidth=0.9)
    for border in {claim.margin, -claim.margin if claim.kind == "equal" else claim.margin} - {0.0}:
        axes.axvline(border * measured.factor, color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
    names = [setting_label(cell.cell) or "all seeds" for cell in cells]
    for place, (name, cell) in enumerate(zip(reversed(names), reversed(cells), strict=True)):
        colour = VERDICT_COLOURS[cell.verdict]
        for low, high, width in ((cell.wide_low, cell.wide_high, 0.8), (cell.low, cell.high, 2.2)):
            if math.isfinite(low) and math.isfinite(high):
                axes.hlines(place, low * measured.factor, high * measured.factor, color=colour, linewidth=width)
        mark = axes.scatter([cell.effect * measured.factor], [place], s=30, color=colour, linewidths=0, zorder=3)
        told = f"{name}: {measured.difference(cell.effect, unit=True)}"
        if math.isfinite(cell.low):
            told += f", 95 % interval {measured.difference(cell.low)} to {measured.difference(cell.high)}"
        sketch.tip(mark, [f"{told}\n{cell.verdict}, {len(cell.seeds)} seed{'s' if len(cell.seeds) != 1 else ''}"])
    axes.set_yticks(range(len(cells)), [_short(name) for name in reversed(names)])
    axes.set_ylim(-0.6, len(cells) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    unit = "percentage points" if measured.unit == "%" else measured.title
    axes.set_xlabel(f"effect in favour of the claim ({unit})")
    wide = " Thin: the interval at the level of all cells together." if len(verdict.cells) > 1 else ""
    return sketch.finish(f"claim-{number}", f"Claim {number}: effect and 95 % t interval in each cell.{wide}")
