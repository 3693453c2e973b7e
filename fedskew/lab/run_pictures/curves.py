"""The curves of one run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from engine.record.personal_metrics import by_round
from engine.record.run_folder import BREAKS_PRIVACY, RunFolder

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"  # of Okabe and Ito, told apart by everybody
GREEN, PURPLE = "#009e73", "#cc79a7"
SCOPES = {"global": ("global model", BLUE), "personal": ("personal models", GREEN)}


def draw_curves(folder: RunFolder, path: Path) -> None:
    """Write a picture of accuracy and loss over rounds to ``path``.

    Of the global model and of personal ones, beside the clients' objective in training.
    """
    rounds, evaluations = folder.frame("rounds"), folder.frame("evaluations")
    clients = by_round(folder.frame("personal"))
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    served, tuned = (clients.loc[clients["point"] == point] for point in ("post_server", "fine_tuned"))
    for scope, (name, colour) in SCOPES.items():
        own = evaluations.loc[evaluations["scope"] == scope]
        _over_rounds(left, served if scope == "personal" and len(served) else own, "accuracy", name, colour)
        _over_rounds(right, own, "loss", f"{name}, test", colour)
    _over_rounds(left, tuned, "accuracy", "personal models, fine-tuned", PURPLE)
    local = rounds.dropna(subset=["local_accuracy"])
    if len(local):
        left.plot(
            local["round"],
            100 * local["local_accuracy"],
            color=ORANGE,
            marker=".",
            label="local models, mean",
        )
    if len(evaluations):
        last = evaluations.iloc[-1]
        left.annotate(
            f"{100 * last['accuracy']:.1f}",
            (last["round"], 100 * last["accuracy"]),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=SCOPES[last["scope"]][1],
        )
    _label(left, "test accuracy (%)")
    measured = rounds.dropna(subset=["loss_before"])
    if len(measured):
        marker = "." if len(measured) == 1 else ""  # a line of one point is not seen
        for column, colour, when in (("loss_before", GREY, "before"), ("loss_after", ORANGE, "after")):
            name = f"clients, {when} training"
            right.plot(measured["round"], measured[column], color=colour, marker=marker, label=name)
    _label(right, "loss")
    summary = folder.summary()
    title = f"{summary.get('name', folder.path.name)}   {summary.get('algorithm', {}).get('name', '')}"
    if summary.get("breaks_privacy"):
        title += f" ({BREAKS_PRIVACY})"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)


def _over_rounds(axes: Axes, rows: pd.DataFrame, column: str, label: str, colour: str) -> None:
    """Draw what is evaluated, if anything is; accuracies in percent."""
    if len(rows):
        values = rows[column] * (100 if column == "accuracy" else 1)
        axes.plot(rows["round"], values, color=colour, marker="o", markersize=3, label=label)


def _label(axes: Axes, what: str) -> None:
    axes.set_xlabel("round")
    axes.set_ylabel(what)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
