"""Curves over rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.analysis import statistics
from engine.analysis.drawing import MUTED, RAMP, STYLE, Drawing, Sketch
from engine.analysis.figures.colours import line_colours
from engine.analysis.figures.panels import MOST_LINES, PANEL, limits, name_lines
from engine.analysis.quantities import Quantity, quantity, with_unit
from engine.analysis.scales import Setting, by_value, counted, ranked, scale_of, shown, spread_out, varied
from engine.analysis.settings import key, setting_frame

if TYPE_CHECKING:
    from engine.analysis.tables import Results

MOST_ROUNDS, MOST_MARKS = 60, 16  # of a curve; more are thinned out
MOST_COLOURED, MOST_GREY = 5, 40  # of settings too many for a line each


@dataclass(frozen=True)
class _Line:
    setting: Setting
    label: str
    colour: str


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
            [
                (line, part)
                for line in lines
                if len(part := _curve_of(frame, line.setting, column, line.colour != MUTED))
            ]
            for _, lines in panels
        ]
        every = [pair for lines in parts for pair in lines]
        span = limits(v * measured.factor for _, part in every for v in part[["mean", "low", "high"]].to_numpy().flat)
        if span is None:
            continue
        for number, ((title, _), lines) in enumerate(zip(panels, parts, strict=True), start=1):
            sketch = Sketch(PANEL, 2.9)
            axes = sketch.figure.subplots()
            axes.set_ylim(*span)
            for line, part in lines:
                _curve(sketch, axes, line, part, measured)
            ends = [(line.label, line.colour, part["mean"].iloc[-1] * measured.factor) for line, part in lines]
            name_lines(axes, name, [end for end in ends if end[0]])
            _stage_borders(frame, axes)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("round")
            axes.set_ylabel(with_unit(f"test {column}", measured.unit))
            axes.set_title(title)
            suffix = f"-{number}" if len(panels) > 1 else ""
            caption = f"Test {column} over rounds{', ' + title if title else ''}. {note}".strip()
            drawings.append(sketch.finish(f"curves-{column}{suffix}", caption))
        for line, part in every:
            same = setting_frame([line.setting.values] * len(part), line.setting.values, ())
            drawn.append(same.assign(quantity=column).join(part[["round", "mean", "low", "high", "seeds"]]))
    return drawings, pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame()


def _panels(results: Results, settings: list[Setting]) -> tuple[str, list[tuple[str, list[_Line]]], str]:
    """What the lines are called, the panels (title, lines), and a sentence on what is not drawn."""
    finished = ranked(settings, results.mode)
    counts = varied(results, settings)
    if len(counts) == 1 and len(settings) <= len(RAMP):
        (name,) = counts
        return name, [("", _lines(results, name, settings, settings))], ""
    few = [name for name, count in counts.items() if count <= MOST_LINES]
    if len(few) >= 2 and finished:
        line, panel, *_ = few
        fixed = {name: value for name, value in finished[0].values.items() if name not in (line, panel)}
        within = [s for s in settings if all(key(s.values[name]) == key(value) for name, value in fixed.items())]
        others = ", ".join(f"{name}={shown(value)}" for name, value in fixed.items())
        return (
            line,
            [
                (f"{panel}={value}", _lines(results, line, chosen, settings))
                for value, chosen in by_value(scale_of(results, panel, within), within).items()
            ],
            f"All other hyper-parameters as in the best setting: {others}." if fixed else "",
        )
    if len(settings) <= MOST_LINES:
        colours = line_colours(len(settings), ordered=False)
        lines = [_Line(s, s.label if counts else "", colour) for s, colour in zip(settings, colours, strict=True)]
        return "", [("", lines)], ""
    best = finished[:MOST_COLOURED]
    others = finished[MOST_COLOURED:] + [setting for setting in settings if math.isnan(setting.mean)]
    rest = spread_out(others, MOST_GREY)
    lines = [_Line(setting, "", MUTED) for setting in reversed(rest)]
    lines += [_Line(s, s.label, colour) for s, colour in zip(best, line_colours(len(best), False), strict=True)]
    return "", [("", lines)], f"In colour the best {len(best)} settings; in grey {len(rest)} of {len(others)} others."


def _lines(results: Results, name: str, chosen: list[Setting], settings: list[Setting]) -> list[_Line]:
    """A line for each of ``chosen``; a value has the same colour wherever it appears among ``settings``."""
    scale = scale_of(results, name, settings)
    colours = dict(zip(sorted(scale.places.values()), line_colours(len(scale.places), scale.ordered), strict=True))
    return [
        _Line(setting, shown(setting.values[name]), colours[scale.place(setting)])
        for setting in sorted(chosen, key=scale.place)
    ]


def _curve_of(frame: pd.DataFrame, setting: Setting, column: str, interval: bool) -> pd.DataFrame:
    """Mean of one setting over its seeds, with its interval: round, mean, low, high, seeds.

    A trial that failed does not count; one that was stopped counts as far as it went.
    """
    trials = [row["trial"] for row in setting.trials if row["status"] != "failed"]
    rows = frame[frame["trial"].isin(trials)]
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


def _curve(sketch: Sketch, axes: Axes, line: _Line, part: pd.DataFrame, measured: Quantity) -> None:
    rounds = part["round"].tolist()
    mean, low, high = (np.array(part[name].tolist()) * measured.factor for name in ("mean", "low", "high"))
    faint = line.colour == MUTED
    if np.isfinite(low).any():
        axes.fill_between(rounds, low, high, color=line.colour, alpha=0.2, linewidth=0)
    axes.plot(rounds, mean, color=line.colour, linewidth=0.6 if faint else 1.7, alpha=0.45 if faint else 1.0)
    rows = part.iloc[-1:] if faint else part.iloc[spread_out(range(len(part)), MOST_MARKS)]
    marks = axes.scatter(
        rows["round"], rows["mean"] * measured.factor, s=4 if faint else 9, color=line.colour, linewidths=0, zorder=3
    )
    tips = []
    for row in rows.to_dict("records"):
        text = f"{line.setting.label}\nround {row['round']}: {measured.text(row['mean'], unit=True)}"
        if math.isfinite(row["low"]):
            text += f" ({measured.text(row['low'])} to {measured.text(row['high'])})"
        tips.append(f"{text}, {counted(row['seeds'], 'seed')}")
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
