"""The picture of a scaling study: throughput over actors with its law."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedskew.lab.drawing import CATEGORIES, MUTED, PAPER, Drawing, new_panel, styled
from fedskew.lab.scaling.study import LAWS, Fitted, Study, over_turns

BLUE, ORANGE = CATEGORIES[:2]
FAR = 4  # times the most actors measured: from there on their axis is logarithmic
UNITS = {"strong": "rounds per second", "weak": "clients per second"}


def rate(value: float) -> str:
    """Three digits that count, in plain notation."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@styled
def over_actors(study: Study, fitted: Fitted) -> Drawing:
    """Draw what was measured, the law through it, and what the law says of further actors."""
    sweep, unit = fitted.sweep, UNITS[fitted.sweep]
    points = over_turns(study.of(sweep), "actors", LAWS[sweep])
    alone, points = [row for row in points if not row["actors"]], [row for row in points if row["actors"]]
    figure, axes = new_panel(5.6, 3.4)
    far, further = False, []
    if fitted.fit is not None:
        law, most = fitted.fit.law, fitted.fit.most
        further = [prediction for prediction in fitted.predictions if prediction.beyond]  # others lie on the curve
        end = max([most, *(prediction.actors for prediction in further)])
        far = end > FAR * most
        proportional = np.geomspace(points[0]["actors"], end, 100) if far else np.array([0, end])
        straight = law.rate * proportional
        axes.plot(proportional, straight, ":", color=MUTED, linewidth=1.0, label="in proportion to actors")
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
            places, values = [guess.actors for guess in further], [guess.value for guess in further]
            axes.plot(places, values, "o", color=BLUE, markerfacecolor=PAPER, markeredgewidth=1.3, label="predicted")
    for row in alone:
        axes.axhline(row["mean"], color=ORANGE, linewidth=1.2, label="in process, without Ray")
    for row in points:
        axes.vlines(row["actors"], row["low"], row["high"], color=BLUE, linewidth=1.2)
        axes.scatter(row["actors"], row["mean"], s=34, color=BLUE, zorder=4)
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
        figure.legend(loc="outside lower left", ncols=2)
    what = "the same round on more actors" if sweep == "strong" else "a round that grows with the actors"
    caption = f"{sweep.capitalize()} scaling, {what}. Bars from the slowest to the fastest turn, marks at the mean"
    caption += "; at predictions, 95 % intervals." if any(math.isfinite(p.low) for p in further) else "."
    return Drawing(sweep, caption, figure)
