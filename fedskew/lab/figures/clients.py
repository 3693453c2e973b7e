"""Clients with models of their own: who is served how well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from fedskew.lab.comparing.ranking import Setting
from fedskew.lab.drawing import Drawing, styled
from fedskew.lab.figures.lines import Line, panels_of_lines
from fedskew.lab.figures.panels import limits

if TYPE_CHECKING:
    from engine.results.results import Results

POINTS = {"post_server": "personal model", "fine_tuned": "personal model after fine-tuning"}
MOST_STEPS = 200  # of a distribution


@styled
def client_accuracy(results: Results, settings: list[Setting]) -> list[Drawing]:
    """The accuracies of clients' personal models at the end in rising order, the clients of all seeds together."""
    clients: Any = results.personal_clients()
    panels = panels_of_lines(results, settings)
    seeds = ", the clients of all seeds together" if len(results.seeds) > 1 else ""
    drawings = []
    for point, words in POINTS.items():
        at_point = clients[clients["point"] == point]
        found: dict[Line, np.ndarray] = {}
        for line in (line for lines in panels.lines.values() for line in lines):
            trials = [row["trial"] for row in line.setting.finished]
            accuracies = at_point.loc[at_point["trial"].isin(trials), "accuracy"].to_numpy()
            if len(accuracies):
                found[line] = 100 * np.sort(accuracies)
        drawings += panels.draw(
            f"client-accuracy-{point}",
            f"Accuracy of each client's {words} in rising order{seeds}",
            "",
            found.get,
            _rising,
            xlim=(0, 100),
            ylim=limits(value for accuracies in found.values() for value in accuracies[[0, -1]]),
            xlabel="clients, the worst-served first (%)",
            ylabel="accuracy (%)",
        )
    return drawings


def _rising(axes: Axes, line: Line, accuracies: np.ndarray) -> None:
    """Draw the empirical distribution, of many clients at evenly spaced quantiles."""
    shares = np.linspace(0, 1, min(len(accuracies), MOST_STEPS) + 1)
    steps = np.quantile(accuracies, (shares[:-1] + shares[1:]) / 2, method="inverted_cdf")
    axes.stairs(steps, 100 * shares, baseline=None, color=line.colour, label=line.label, linewidth=1.6)
