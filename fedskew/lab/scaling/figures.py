"""The picture of a scaling study: throughput over actors with its law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedskew.lab.drawing import CATEGORIES, MUTED, PAPER, STYLE, Drawing, Sketch
from fedskew.lab.scaling.study import LAWS, Fitted, Row, Study, over_turns

BLUE, ORANGE = CATEGORIES[:2]
FAR = 4  # times the most actors measured: from there on their axis is logarithmic
UNITS = {"strong": "rounds per second", "weak": "clients per second"}


def rate(value: float) -> str:
    """Three digits that count, in plain notation."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@matplotlib.rc_context(STYLE)
def over_actors(study: Study, fitted: Fitted) -> Drawing:
    """Draw what was measured, the law through it, and what the law says of further actors."""
    sweep, unit = fitted.sweep, UNITS[fitted.sweep]
    points = over_turns(study.of(sweep), "actors", LAWS[sweep])
    alone, points = [row for row in points if not row["actors"]], [row for row in points if row["actors"]]
    sketch = Sketch(5.6, 3.4)
    axes, far, further = sketch.figure.subplots(), False, []
    if fitted.fit is not None:
        law, most = fitted.fit.law, fitted.fit.most
        further = [prediction for prediction in fitted.predictions if prediction.beyond]  # others lie on the curve
        end = max([most, *(prediction.actors for prediction in further)])
        far = end > FAR * most
        proportional = np.geomspace(points[0]["actors"], end, 100) if far else np.array([0, end])
        axes.plot(
            proportional, law.rate * proportional, ":", color=MUTED, linewidth=1.0, label="in proportion to actors"
        )
        inside = np.linspace(points[0]["actors"], most, 100)
        axes.plot(inside, [law(count) for count in inside], color=BLUE, label=fitted.fit.name)
        if end > most:
            outside = np.geomspace(most, end, 100)
            curve = [law(count) for count in outside]
            axes.plot(outside, curve, color=BLUE, linestyle=(0, (4, 2)), label="the same, beyond what was measured")
        for prediction in further:
            if math.isfinite(prediction.low):
                axes.vlines(prediction.actors, prediction.low, prediction.high, color=BLUE, linewidth=1.0)
        if further:
            marks = axes.scatter(
                [prediction.actors for prediction in further],
                [prediction.value for prediction in further],
                s=34,
                facecolor=PAPER,
                edgecolor=BLUE,
                linewidths=1.3,
                zorder=3,
                label="predicted",
            )
            told = [
                f"{p.actors} actors, predicted: {rate(p.value)} {unit}\n"
                + (f"95 % interval {rate(p.low)} to {rate(p.high)}\n" if math.isfinite(p.low) else "")
                + p.note
                for p in further
            ]
            sketch.tip(marks, told)
    for row in alone:
        line = axes.axhline(row["mean"], color=ORANGE, linewidth=1.2, label="in process, without Ray")
        sketch.tip(line, [f"in process: {_spread(row)} {unit}"])
    _marks(sketch, axes, points, "actors", unit)
    if far:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    # What was measured fills the picture; proportion may leave it.
    shown = [row["high"] for row in [*alone, *points]]
    shown += [x for p in further for x in (p.value, p.high) if math.isfinite(x)]
    axes.set_ylim(0, 1.15 * max(shown))
    axes.set_xlabel("actors")
    axes.set_ylabel(unit)
    if axes.get_legend_handles_labels()[0]:
        sketch.figure.legend(loc="outside lower left", ncols=2)
    what = "the same round on more actors" if sweep == "strong" else "a round that grows with the actors"
    caption = f"{sweep.capitalize()} scaling, {what}. Bars from the slowest to the fastest turn, marks at the mean"
    return sketch.finish(
        sweep, caption + ("; at predictions, 95 % intervals." if any(math.isfinite(p.low) for p in further) else ".")
    )


def _marks(sketch: Sketch, axes: Axes, points: Sequence[Row], x: str, unit: str, name: str = "") -> None:
    """The mean of each point, with the range of its turns."""
    places = [row[x] for row in points]
    axes.vlines(places, [row["low"] for row in points], [row["high"] for row in points], color=BLUE, linewidth=1.2)
    marks = axes.scatter(places, [row["mean"] for row in points], s=34, color=BLUE, linewidths=0, zorder=4)
    label = name or x
    sketch.tip(marks, [f"{label} {row[label]}: {_spread(row)} {unit}" for row in points])


def _spread(row: Row) -> str:
    return f"{rate(row['mean'])} ({rate(row['low'])} to {rate(row['high'])})"
