"""The pictures of one run, written beside its tables.

partition.png     which client holds how much of which class
sampler.png       class shares before and after, where local steps see others than clients hold
curves.png        accuracy and loss over rounds
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.base.files import write_atomically
from engine.experiment import Experiment
from engine.record.personal_metrics import by_round
from engine.record.run_folder import BREAKS_PRIVACY, RunFolder
from engine.server.class_balance import changes_classes, last_trained, step_classes
from fedskew.lab.drawing import CATEGORIES, MUTED, Drawing, new_figure, styled
from fedskew.lab.partitions import draw_partition, draw_steps

BLUE, ORANGE, GREEN, PURPLE, *_ = CATEGORIES
SCOPES = {"global": ("global model", BLUE), "personal": ("personal models", GREEN)}


def draw_pictures(experiment: Experiment, folder: RunFolder, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Write all pictures of the run in ``folder``.

    counts: int64 [K, C], training samples of each client and class. classes: the names of the C classes.
    """
    if changes_classes(experiment):
        held, stage = counts[counts.sum(axis=1) > 0], last_trained(experiment)
        draw_steps(held, step_classes(stage.algorithm, stage.local, held), classes, folder.path / "sampler.png")
    draw_partition(counts, classes, folder.path / "partition.png")
    write_atomically(folder.path / "curves.png", curves(folder).png)


@styled
def curves(folder: RunFolder) -> Drawing:
    """Draw accuracy and loss over rounds: of the global model and of personal ones, beside the clients' objective."""
    rounds, evaluations = folder.frame("rounds"), folder.frame("evaluations")
    clients = by_round(folder.frame("personal"))
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    served, tuned = (clients.loc[clients["point"] == point] for point in ("post_server", "fine_tuned"))
    for scope, (name, colour) in SCOPES.items():
        evaluated = evaluations.loc[evaluations["scope"] == scope]
        _line(left, served if scope == "personal" and len(served) else evaluated, "accuracy", name, colour)
        _line(right, evaluated, "loss", f"{name}, test", colour)
    _line(left, tuned, "accuracy", "personal models, fine-tuned", PURPLE)
    _line(left, rounds.dropna(subset=["local_accuracy"]), "local_accuracy", "local models, mean", ORANGE)
    trained = rounds.dropna(subset=["loss_before"])
    _line(right, trained, "loss_before", "clients, before training", MUTED)
    _line(right, trained, "loss_after", "clients, after training", ORANGE)
    if len(evaluations):
        last = evaluations.iloc[-1]
        place, colour = (last["round"], 100 * last["accuracy"]), SCOPES[last["scope"]][1]
        beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        left.annotate(f"{100 * last['accuracy']:.1f}", place, color=colour, **beside)
    for axes, what in ((left, "test accuracy (%)"), (right, "loss")):
        axes.set_xlabel("round")
        axes.set_ylabel(what)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if axes.lines:
            axes.legend()
    summary = folder.summary()
    title = f"{summary.get('name', folder.path.name)}   {summary.get('algorithm', {}).get('name', '')}"
    figure.suptitle(f"{title} ({BREAKS_PRIVACY})" if summary.get("breaks_privacy") else title, fontsize=10)
    return Drawing("curves", title, figure)


def _line(axes: Axes, rows: pd.DataFrame, column: str, label: str, colour: str) -> None:
    """Draw a column over rounds, if it has any rows; accuracies in percent."""
    if len(rows):
        values = rows[column] * (100 if column.endswith("accuracy") else 1)
        axes.plot(rows["round"], values, color=colour, marker="o", markersize=3, label=label)
