"""Curves over rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.record.metrics import PERSONAL
from engine.results import statistics
from engine.results.settings import setting_frame
from fedskew.lab.comparing.ranking import Setting, spread_out
from fedskew.lab.drawing import MUTED, PANEL, STYLE, Drawing, Sketch
from fedskew.lab.figures.lines import Line, panels_of_lines
from fedskew.lab.figures.panels import limits, name_lines
from fedskew.lab.quantities import Quantity, quantity, with_unit
from fedskew.lab.wording import capitalised, counted

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_ROUNDS, MOST_MARKS = 60, 16  # of a curve; more are thinned out

LOCAL = "Each local model of a round's participants on the whole test set, where that was measured; mean over them."
LEFT_OUT = (
    "Stages whose accuracies are of other models (global, or clients' own) than those at a run's end are left out."
)


@dataclass(frozen=True)
class _Series:
    """A quantity over rounds."""

    name: str  # of the figure's files
    words: str
    axis: str  # what stands along y
    column: str
    measured: Quantity
    frame: pd.DataFrame = field(repr=False)  # one row for each trial and round that has it
    note: str = ""  # what a caption adds
    if_room: bool = False  # drawn only where there is a single panel


@matplotlib.rc_context(STYLE)
def curves(results: Results, settings: list[Setting]) -> tuple[list[Drawing], pd.DataFrame]:
    """Accuracy over rounds, a panel for each value of the second hyper-parameter; the loss too if there is room.

    Where the metric is of personal models, the curve that it is taken from; otherwise the evaluations of the scope that
    a trial ends with and, beside them on the same scale, the accuracy of local models where that was measured; nothing
    of a single round. With the means and intervals that are drawn: a row for each setting, quantity and round.
    """
    name, panels, settings_note = panels_of_lines(results, settings)
    shown = [curve for curve in _shown(results) if len(panels) == 1 or not curve.if_room]
    if len(shown[0].frame["round"].drop_duplicates()) < 2:  # one point is no curve
        return [], pd.DataFrame()
    parts_of = {
        curve.name: [
            [
                (line, part)
                for line in lines
                if len(part := _curve_of(curve.frame, line.setting, curve.column, line.colour != MUTED))
            ]
            for _, lines in panels
        ]
        for curve in shown
    }
    drawings, drawn = [], []
    for curve in shown:
        measured, parts = curve.measured, parts_of[curve.name]
        every = [pair for lines in parts for pair in lines]
        alike = [one.name for one in shown if one.measured.unit == measured.unit]
        span = limits(
            value * measured.factor
            for one in alike
            for lines in parts_of[one]
            for _, part in lines
            for value in part[["mean", "low", "high"]].to_numpy().flat
        )
        if span is None or not every:
            continue
        note = f"{settings_note} {curve.note}".strip()
        for number, ((title, _), lines) in enumerate(zip(panels, parts, strict=True), start=1):
            sketch = Sketch(PANEL, 2.9)
            axes = sketch.figure.subplots()
            axes.set_ylim(*span)
            for line, part in lines:
                _curve(sketch, axes, line, part, measured)
            ends = [(line.label, line.colour, part["mean"].iloc[-1] * measured.factor) for line, part in lines]
            name_lines(axes, name, [end for end in ends if end[0]])
            _stage_borders(curve.frame, axes)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("round")
            axes.set_ylabel(with_unit(curve.axis, measured.unit))
            axes.set_title(title)
            suffix = f"-{number}" if len(panels) > 1 else ""
            caption = f"{capitalised(curve.words)} over rounds{', ' + title if title else ''}. {note}".strip()
            drawings.append(sketch.finish(f"curves-{curve.name}{suffix}", caption))
        for line, part in every:
            same = setting_frame([line.setting.values] * len(part), line.setting.values, ())
            drawn.append(same.assign(quantity=curve.name).join(part[["round", "mean", "low", "high", "seeds"]]))
    return drawings, pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame()


def _shown(results: Results) -> list[_Series]:
    """Return what is drawn, and in a note what of a run's evaluations is not, if anything."""
    curve = PERSONAL.get(results.metric)
    if curve is not None:
        frame = results.personal_curves()
        frame = _once_a_round(frame.loc[frame["point"] == curve.point])
        return [_Series(curve.point, curve.label, "accuracy", curve.column, quantity("accuracy"), frame)]
    every = results.curves()
    frame = every.loc[every["scope"] == every.groupby("trial")["scope"].transform("last")]
    note = "" if len(frame) == len(every) else LEFT_OUT
    frame = _once_a_round(frame)
    local = quantity("local_accuracy")
    return [
        _Series("accuracy", "test accuracy", "test accuracy", "accuracy", quantity("accuracy"), frame, note),
        _Series("local", local.label, "accuracy of local models", local.column, local, results.local_curves(), LOCAL),
        _Series("loss", "test loss", "test loss", "loss", quantity("loss"), frame, note, if_room=True),
    ]


def _once_a_round(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep what a stage without rounds comes to, in place of the round that it goes on from."""
    return frame.drop_duplicates(["trial", "round"], keep="last")


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


def _curve(sketch: Sketch, axes: Axes, line: Line, part: pd.DataFrame, measured: Quantity) -> None:
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
    """Mark where a later stage begins, if it begins in the same round in all trials."""
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
