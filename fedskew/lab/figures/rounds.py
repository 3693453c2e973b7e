"""Curves over rounds, and over simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.record.metrics import PERSONAL
from engine.results import statistics
from engine.results.settings import setting_frame
from engine.results.simulated_time import CLOCK
from fedskew.lab.comparing.ranking import Setting, spread_out
from fedskew.lab.drawing import MUTED, Drawing, styled
from fedskew.lab.figures.lines import Line, panels_of_lines
from fedskew.lab.figures.panels import limits
from fedskew.lab.quantities import Quantity, quantity, with_unit
from fedskew.lab.wording import capitalised

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_ROUNDS = 60  # of a curve; more are thinned out
DRAWN = ["mean", "low", "high"]

LOCAL = "Each local model of a round's participants on the whole test set, where that was measured; mean over them."
LEFT_OUT = (
    "Stages whose accuracies are of other models (global, or clients' own) than those at a run's end are left out."
)


@dataclass(frozen=True)
class _Series:
    """A quantity over rounds."""

    name: str  # of the figure's files
    words: str
    measured: Quantity
    column: str
    frame: pd.DataFrame = field(repr=False)  # one row for each trial and round that has it
    note: str = ""  # what a caption adds

    def of(self, line: Line) -> pd.DataFrame | None:
        """Mean of one setting over its seeds, with its interval: round, mean, low, high, seeds; mean simulated seconds.

        A trial that failed does not count; one that was stopped counts as far as it went.
        """
        trials = [row["trial"] for row in line.setting.trials if row["status"] != "failed"]
        rows = self.frame[self.frame["trial"].isin(trials)]
        wide = rows.pivot(index="round", columns="trial", values=self.column).dropna(how="all")
        wide = wide.loc[spread_out(list(wide.index), MOST_ROUNDS)]
        summaries = [statistics.summarise(row) for row in wide.to_numpy(float)]
        curve = pd.DataFrame([(s.mean, s.low, s.high, s.n) for s in summaries], columns=[*DRAWN, "seeds"])
        curve.insert(0, "round", wide.index.astype(int))
        if CLOCK in rows:
            clock = rows.pivot(index="round", columns="trial", values=CLOCK).loc[wide.index]
            curve[CLOCK] = clock.where(wide.notna()).mean(axis=1).to_numpy()
        return curve if summaries else None

    def draw(self, axes: Axes, line: Line, curve: pd.DataFrame, over: str = "round") -> None:
        """Draw a line, its band, and with the first of a panel over rounds where stages begin."""
        if not axes.lines and over == "round":
            _mark_stages(axes, self.frame)
        mean, low, high = (self.measured.factor * curve[name].to_numpy() for name in DRAWN)
        axes.fill_between(curve[over], low, high, color=line.colour, alpha=0.2, linewidth=0)
        axes.plot(curve[over], mean, color=line.colour, label=line.label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=over == "round"))


@styled
def curves(results: Results, settings: list[Setting]) -> tuple[list[Drawing], pd.DataFrame]:
    """Accuracy over rounds and, if devices are supposed, over simulated time; the loss too if there is room.

    A panel for each value of the second hyper-parameter.

    Where the metric is of personal models, the curve that it is taken from; otherwise the evaluations of the scope that
    a trial ends with and, beside them on the same scale, the accuracy of local models where that was measured; nothing
    of a single round. With the means and intervals that are drawn: a row for each setting, quantity and round.
    """
    panels = panels_of_lines(results, settings)
    shown = _shown(results)
    if len(panels.lines) > 1:
        shown = [series for series in shown if series.name != "loss"]
    if len(shown[0].frame["round"].drop_duplicates()) < 2:  # one point is no curve
        return [], pd.DataFrame()
    every = [line for lines in panels.lines.values() for line in lines]
    found = {series.name: {line: series.of(line) for line in every} for series in shown}
    drawings, drawn = [], []
    for series in shown:
        unit, factor = series.measured.unit, series.measured.factor
        alike = [curve for one in shown if one.measured.unit == unit for curve in found[one.name].values()]
        span = limits(factor * value for curve in alike if curve is not None for value in curve[DRAWN].to_numpy().flat)
        if span is None:
            continue
        overs = [("", "round", "rounds", "round", series.note)]
        if series.name == "accuracy" and results.devices is not None:
            note = f"A round stands at the mean over seeds of its end, on {results.devices}. {series.note}"
            overs.append(("-seconds", CLOCK, "simulated time", "simulated time (s)", note))
        for suffix, over, words, xlabel, note in overs:
            drawings += panels.draw(
                f"curves-{series.name}{suffix}",
                f"{capitalised(series.words)} over {words}",
                note,
                found[series.name].get,
                partial(series.draw, over=over),
                ylim=span,
                xlabel=xlabel,
                ylabel=with_unit("accuracy" if unit == "%" else series.name, unit),
            )
        for line, curve in found[series.name].items():
            if curve is not None:
                same = setting_frame([line.setting.values] * len(curve), line.setting.values, ())
                drawn.append(same.assign(quantity=series.name).join(curve))
    return drawings, pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame()


def _shown(results: Results) -> list[_Series]:
    """Return what is drawn, and in a note what of a run's evaluations is not, if anything."""
    curve = PERSONAL.get(results.metric)
    if curve is not None:
        frame = results.personal_curves()
        frame = _once_a_round(frame.loc[frame["point"] == curve.point])
        return [_Series(curve.point, curve.label, quantity("accuracy"), curve.column, frame)]
    every = results.curves()
    frame = every.loc[every["scope"] == every.groupby("trial")["scope"].transform("last")]
    note = "" if len(frame) == len(every) else LEFT_OUT
    frame, local = _once_a_round(frame), quantity("local_accuracy")
    return [
        _Series("accuracy", "test accuracy", quantity("accuracy"), "accuracy", frame, note),
        _Series("local", local.label, local, local.column, results.local_curves(), LOCAL),
        _Series("loss", "test loss", quantity("loss"), "loss", frame, note),
    ]


def _once_a_round(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep what a stage without rounds comes to, in place of the round that it goes on from."""
    return frame.drop_duplicates(["trial", "round"], keep="last")


def _mark_stages(axes: Axes, frame: Any) -> None:
    """Mark where a later stage begins, if it begins in the same round in all trials."""
    begins = frame.groupby(["stage", "trial"])["round"].min().groupby("stage").agg(["min", "max"])
    later = begins[(begins["min"] == begins["max"]) & (begins["min"] > frame["round"].min())]
    for stage, number in later["min"].items():
        axes.axvline(number - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        axes.text(number - 0.3, 0.03, str(stage), transform=axes.get_xaxis_transform(), fontsize=7.5, color=MUTED)
