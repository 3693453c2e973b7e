"""The curves of one run."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.base.files import write_atomically
from engine.record.personal_metrics import by_round
from engine.record.run_folder import BREAKS_PRIVACY, RunFolder
from fedskew.lab.drawing import CATEGORIES, MUTED, STYLE, Sketch

BLUE, ORANGE, GREEN, PURPLE, *_ = CATEGORIES
SCOPES = {"global": ("global model", BLUE), "personal": ("personal models", GREEN)}


@matplotlib.rc_context(STYLE)
def draw_curves(folder: RunFolder, path: Path) -> None:
    """Write a picture of accuracy and loss over rounds to ``path``.

    Of the global model and of personal ones, beside the clients' objective in training.
    """
    rounds, evaluations = folder.frame("rounds"), folder.frame("evaluations")
    clients = by_round(folder.frame("personal"))
    sketch = Sketch(9, 3.6)
    left, right = sketch.figure.subplots(1, 2)
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
    sketch.figure.suptitle(title_of(folder), fontsize=10)
    write_atomically(path, sketch.png())


def _line(axes: Axes, rows: pd.DataFrame, column: str, label: str, colour: str) -> None:
    """Draw a column over rounds, if it has any rows; accuracies in percent."""
    if len(rows):
        values = rows[column] * (100 if column.endswith("accuracy") else 1)
        axes.plot(rows["round"], values, color=colour, marker="o", markersize=3, label=label)


def title_of(folder: RunFolder) -> str:
    """Name a run and its algorithm, and say where it breaks privacy."""
    summary = folder.summary()
    title = f"{summary.get('name', folder.path.name)}   {summary.get('algorithm', {}).get('name', '')}"
    return f"{title} ({BREAKS_PRIVACY})" if summary.get("breaks_privacy") else title
