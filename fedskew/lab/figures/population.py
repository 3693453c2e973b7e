"""Clients: who is served how well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from engine.results import statistics
from fedskew.lab.comparing.ranking import Setting, describe, ranked, spread_out
from fedskew.lab.drawing import CATEGORIES, GRID, MIDDLE, MUTED, PANEL, STYLE, Drawing, Sketch
from fedskew.lab.figures.lines import Line, panels_of_lines
from fedskew.lab.figures.panels import MOST_ROWS, limits, name_lines, name_rows
from fedskew.lab.quantities import percent, quantity
from fedskew.lab.wording import counted

if TYPE_CHECKING:
    from engine.results.results import Results

POINTS = {"post_server": "personal model", "fine_tuned": "personal model after fine-tuning"}
MOST_STEPS = 200  # of a distribution


@matplotlib.rc_context(STYLE)
def worst_clients(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The worst tenth of clients beside the accuracy of the global model, a row for each setting."""
    column = "worst_decile_accuracy"
    known = [setting for setting in ranked(settings, results.mode) if setting.figures(column)]
    chosen: list[Setting] = spread_out(known, MOST_ROWS)[::-1]  # the best on top
    if not chosen:
        return []
    measured = quantity(column)
    wide = max(len(setting.label) for setting in chosen) > 16
    sketch = Sketch(MIDDLE if wide else PANEL, 1.2 + 0.27 * len(chosen))
    axes = sketch.figure.subplots()
    places = np.arange(len(chosen))
    worst, model = (
        [statistics.summarise(setting.figures(name)) for setting in chosen] for name in (column, "accuracy")
    )
    axes.hlines(places, [s.mean * 100 for s in worst], [s.mean * 100 for s in model], color=GRID, linewidth=3, zorder=1)
    parts = ((worst, CATEGORIES[1], "worst tenth of clients"), (model, CATEGORIES[0], "global model"))
    for summaries, colour, label in parts:
        mean, low, high = (100 * np.array([(s.mean, s.low, s.high) for s in summaries])).T
        axes.hlines(places, low, high, color=colour, linewidth=1.2)
        marks = axes.scatter(mean, places, color=colour, s=24, label=label, zorder=3, linewidths=0)
        pairs = zip(chosen, summaries, strict=True)
        sketch.tip(marks, [f"{setting.label}\n{label}: {describe(s, measured)}" for setting, s in pairs])
    name_rows(axes, [setting.label for setting in chosen])
    axes.set_xlabel("test accuracy (%)")
    sketch.figure.legend(loc="outside upper right", ncols=2, handletextpad=0.2)
    some = f"; {len(chosen)} of {len(known)} settings" if len(chosen) < len(known) else ""
    caption = f"The worst tenth of clients and the global model, mean and 95 % interval over seeds{some}."
    return [sketch.finish("clients", caption, wide)]


@matplotlib.rc_context(STYLE)
def client_accuracy(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The accuracies of clients' personal models at the end in rising order, the clients of all seeds together."""
    clients = results.personal_clients()
    name, panels, note = panels_of_lines(results, settings)
    seeds = ", the clients of all seeds together" if len(results.seeds) > 1 else ""
    drawings = []
    for point, words in POINTS.items():
        measured = clients.loc[clients["point"] == point]
        of_trial = {
            trial: measured["accuracy"].to_numpy()[rows] for trial, rows in measured.groupby("trial").indices.items()
        }
        parts = [
            [
                (line, np.concatenate(accuracies))
                for line in lines
                if (accuracies := _of_finished(line.setting, of_trial))
            ]
            for _, lines in panels
        ]
        span = limits(
            100 * value for lines in parts for _, accuracies in lines for value in (accuracies.min(), accuracies.max())
        )
        if span is None:
            continue
        for number, ((title, _), lines) in enumerate(zip(panels, parts, strict=True), start=1):
            sketch = Sketch(PANEL, 2.9)
            axes = sketch.figure.subplots()
            axes.set_xlim(0, 100)
            axes.set_ylim(*span)
            for line, accuracies in lines:
                _rising(sketch, axes, line, accuracies)
            ends = [(line.label, line.colour, 100 * float(accuracies.max())) for line, accuracies in lines]
            name_lines(axes, name, [end for end in ends if end[0]])
            axes.set_xlabel("clients, the worst-served first (%)")
            axes.set_ylabel("accuracy (%)")
            axes.set_title(title)
            suffix = f"-{number}" if len(panels) > 1 else ""
            caption = f"Accuracy of each client's {words} in rising order{seeds}{', ' + title if title else ''}. {note}"
            drawings.append(sketch.finish(f"client-accuracy-{point}{suffix}", caption.strip()))
    return drawings


def _of_finished(setting: Setting, of_trial: Mapping[Any, np.ndarray]) -> list[np.ndarray]:
    return [of_trial[row["trial"]] for row in setting.finished if row["trial"] in of_trial]


def _rising(sketch: Sketch, axes: Axes, line: Line, accuracies: np.ndarray) -> None:
    """Draw the empirical distribution, of many clients at evenly spaced quantiles."""
    faint = line.colour == MUTED
    shares = np.linspace(0, 1, min(len(accuracies), MOST_STEPS) + 1)
    steps = _quantiles(accuracies, (shares[:-1] + shares[1:]) / 2)
    style: dict[str, Any] = {"linewidth": 0.6, "alpha": 0.45} if faint else {"linewidth": 1.7}
    axes.stairs(100 * steps, 100 * shares, baseline=None, color=line.colour, **style)
    marked = np.array([0.5] if faint else [0.1, 0.25, 0.5, 0.75, 0.9])
    values = _quantiles(accuracies, marked)
    style = {"s": 4 if faint else 9, "linewidths": 0, "zorder": 3}
    marks = axes.scatter(100 * marked, 100 * values, color=line.colour, **style)
    measured, clients = quantity("accuracy"), counted(len(accuracies), "client")
    texts = [(percent(share), measured.text(value, unit=True)) for share, value in zip(marked, values, strict=True)]
    sketch.tip(marks, [f"{line.setting.label}\n{share} of {clients}: at most {value}" for share, value in texts])


def _quantiles(accuracies: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The smallest accuracy that so large a share of the clients does not exceed."""
    return np.quantile(accuracies, shares, method="inverted_cdf")
