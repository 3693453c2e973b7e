"""The curves of one run."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from engine.results import BREAKS_PRIVACY, RunFolder

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"  # of Okabe and Ito, told apart by everybody


def draw_curves(folder: RunFolder, path: Path) -> None:
    """Accuracy and loss of the global model over rounds, beside the clients' objective in training."""
    rounds, evaluations = folder.frame("rounds"), folder.frame("evaluations")
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(
        evaluations["round"],
        100 * evaluations["accuracy"],
        color=BLUE,
        marker="o",
        markersize=3,
        label="global model",
    )
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
            color=BLUE,
        )
    _label(left, "test accuracy (%)")
    right.plot(
        evaluations["round"],
        evaluations["loss"],
        color=BLUE,
        marker="o",
        markersize=3,
        label="global model, test",
    )
    measured = rounds.dropna(subset=["loss_before"])
    if len(measured):
        right.plot(measured["round"], measured["loss_before"], color=GREY, label="clients, before training")
        right.plot(measured["round"], measured["loss_after"], color=ORANGE, label="clients, after training")
    _label(right, "loss")
    summary = folder.summary()
    title = f"{summary.get('name', folder.path.name)}   {summary.get('algorithm', {}).get('name', '')}"
    if summary.get("breaks_privacy"):
        title += f" ({BREAKS_PRIVACY})"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)


def _label(axes: Axes, what: str) -> None:
    axes.set_xlabel("round")
    axes.set_ylabel(what)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
