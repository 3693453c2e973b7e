"""The picture of a scaling study: rounds per second over actors, with the model of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter

from fedskew.lab.drawing import CATEGORIES, MUTED, Drawing, new_panel, styled
from fedskew.lab.scaling.model import Fit, Prediction
from fedskew.lab.scaling.study import Study, over_turns

BLUE, ORANGE = CATEGORIES[:2]
UNIT = "rounds per second"


def rate(value: float) -> str:
    """Three digits that count, in plain notation."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@styled
def over_actors(study: Study, fitted: Fit | None, predictions: Sequence[Prediction]) -> Drawing:
    """Draw what was measured, and what the model says of these actors and of further ones."""
    points = over_turns(study.measured())
    alone, points = [row for row in points if not row["actors"]], [row for row in points if row["actors"]]
    figure, axes = new_panel(5.6, 3.4)
    highest = 0.0
    if fitted is not None:
        most = fitted.most
        end = max([most, *(prediction.actors for prediction in predictions)])
        counts = np.unique(np.geomspace(points[0]["actors"], end, 100).round().astype(int)).tolist()
        curve = [fitted.predict(count) for count in counts]
        bounds = [one.low for one in curve], [one.high for one in curve]
        highest = max(one.value for one in curve)
        axes.fill_between(counts, *bounds, color=BLUE, alpha=0.15, linewidth=0, label="interval of the model")
        axes.plot(counts, [one.value for one in curve], color=BLUE, label="model of phases")
        if end > most:
            axes.axvline(most, linestyle=":", color=MUTED, linewidth=1.0, label="most actors measured")
    for row in alone:
        axes.axhline(row["mean"], color=ORANGE, linewidth=1.2, label="in process, without Ray")
    for row in points:
        axes.vlines(row["actors"], row["low"], row["high"], color=BLUE, linewidth=1.2)
        axes.scatter(row["actors"], row["mean"], s=34, color=BLUE, zorder=4)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,g}"))
    axes.set_ylim(0, 1.15 * max([highest, *(row["high"] for row in [*alone, *points])]))
    axes.set_xlabel("actors")
    axes.set_ylabel(UNIT)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower left", ncols=2)
    caption = "The same round on more actors. Bars from the slowest to the fastest turn, marks at the mean."
    return Drawing("scaling", caption, figure)
