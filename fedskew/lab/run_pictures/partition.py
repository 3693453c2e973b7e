"""Pictures of a partition: how many samples of each class every client has, and what its local steps see of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

# Petroff 2021, "Accessible Color Sequences for Data Visualization": ten colours that stay apart with any
# colour vision. More classes than that get places on viridis, and are told apart by order.
_TEN = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
_INK, _FAINT = "#333333", "#e4e4e4"
_AS_IT_IS: Any = {"text.parse_math": False, "text.usetex": False}  # a class's name may have dollar signs
_MOST_BUBBLES = (50, 30)  # clients, classes; above this a bubble would be too small to read
_MOST_BARS = 3000  # twice the picture's width in pixels; 100,000 would take 5 GB


@matplotlib.rc_context(_AS_IT_IS)
def draw_partition(counts: np.ndarray, classes: Sequence[str], path: Path) -> None:
    """Write a PNG of ``counts`` int64 [K, C] (samples of each client and class) to ``path``.

    Up to 50 clients and 30 classes: a bubble for each client and class, its area proportional to the
    samples, with client sizes above. More: one stacked bar for each client, the largest first.
    """
    clients, num_classes = counts.shape
    bubbles = clients <= _MOST_BUBBLES[0] and num_classes <= _MOST_BUBBLES[1]
    figure = _bubbles(counts, classes) if bubbles else _bars(counts, classes)
    figure.suptitle(_summary(counts), x=0.01, ha="left", fontsize=10, color=_INK)
    FigureCanvasAgg(figure).print_png(str(path))


@matplotlib.rc_context(_AS_IT_IS)
def draw_steps(counts: np.ndarray, expected: np.ndarray, classes: Sequence[str], path: Path) -> None:
    """Write a PNG of class shares before and after: of clients' samples, and of what their local steps see.

    counts: int64 [K, C]. expected: float64 [K, C], rows of a local step; both of clients that hold data. A stacked bar
    for each client, the largest first.
    """
    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    order = _largest_first(counts)
    panels, colours = figure.subplots(2, 1, sharex=True), _colours(len(classes))
    for axes, values, what in zip(panels, (counts, expected), ("a client's samples", "a local step"), strict=True):
        _stacked(axes, _shares(values[order]), colours)
        axes.set_title(f"{what}: largest class {_largest_share(values):.0%} on average", loc="left", fontsize=9)
        axes.set_ylabel("share of classes, %")
    panels[-1].set_xlabel("clients, largest first")
    _class_key(figure, list(panels), classes, colours)
    FigureCanvasAgg(figure).print_png(str(path))


def _summary(counts: np.ndarray) -> str:
    sizes = counts.sum(axis=1)
    empty = int((sizes == 0).sum())
    parts = [
        f"{len(sizes):,} clients, {sizes.sum():,} samples",
        f"per client {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}",
        f"largest class {_largest_share(counts):.0%} on average",
    ]
    return "  |  ".join(parts + ([f"{empty} empty"] if empty else []))


def _largest_share(counts: np.ndarray) -> float:
    """Return the share of a client's largest class, the mean over clients that hold anything."""
    held = counts[counts.sum(axis=1) > 0]
    return float((held.max(axis=1) / held.sum(axis=1)).mean()) if len(held) else 0.0


def _shares(counts: np.ndarray) -> np.ndarray:
    """Return percents of a client's sum; 0 where that is 0."""
    return 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def _largest_first(counts: np.ndarray) -> np.ndarray:
    return np.argsort(-counts.sum(axis=1), kind="stable")


def _colours(num_classes: int) -> list:
    if num_classes <= len(_TEN):
        return list(_TEN[:num_classes])
    return list(matplotlib.colormaps["viridis"](np.linspace(0, 1, num_classes)))


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(length=0, labelcolor=_INK, labelsize=9)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=_INK, fontsize=9)
    axes.set_axisbelow(True)


def _bubbles(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    clients, num_classes = counts.shape
    step = 0.36 if clients <= 25 else 0.24  # inches from one client to the next; classes likewise
    margin = 0.3 + 0.075 * max(len(name) for name in classes)
    width = max(margin + clients * step + 0.9, 7.6)
    height = max(1.9 + num_classes * step, 3.2)
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[0.8, max(num_classes * step, 0.8)])
    top.bar(range(clients), counts.sum(axis=1), color="#9a9a9a", width=0.6)
    top.set_ylabel("samples")
    top.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    client, c = np.nonzero(counts)
    diameter = 0.95 * 72 * step  # points; the largest bubble just fits its cell
    area = diameter**2 * counts[client, c] / max(counts.max(), 1)
    colours = _colours(num_classes)
    main.scatter(client, c, s=np.maximum(area, 1.0), c=[colours[k] for k in c], linewidths=0)
    main.set_xlim(-0.7, clients - 0.3)
    main.set_ylim(num_classes - 0.4, -0.6)
    main.set_yticks(range(num_classes), classes)
    main.set_xlabel("client")
    main.set_xticks(range(0, clients, 1 if clients <= 25 else 5))
    main.grid(color=_FAINT, linewidth=0.6)
    for axes in (top, main):
        _tidy(axes)
    _bubble_legend(figure, main, int(counts.max()), diameter)
    return figure


def _bubble_legend(figure: Figure, axes: Axes, largest: int, diameter: float) -> None:
    """Draw up to three bubbles of round numbers (1, 2 or 5 times a power of ten), to read areas by."""
    round_numbers = [n * 10**power for power in range(12) for n in (1, 2, 5) if n * 10**power <= largest]
    handles = [
        axes.scatter([], [], s=diameter**2 * n / largest, c="#9a9a9a", linewidths=0, label=f"{n:,}")
        for n in round_numbers[-1::-2][:3]
    ]
    figure.legend(
        handles=handles[::-1],
        title="samples",
        loc="outside right center",
        frameon=False,
        labelspacing=1.2,
        fontsize=9,
        title_fontsize=9,
        labelcolor=_INK,
    )


def _bars(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    sizes_axes, shares_axes = figure.subplots(2, 1, sharex=True)
    ordered = counts[_largest_first(counts)]
    colours = _colours(len(classes))
    for axes, values in ((sizes_axes, ordered), (shares_axes, _shares(ordered))):
        _stacked(axes, values, colours)
    sizes_axes.set_ylabel("samples")
    shares_axes.set_ylabel("share of classes, %")
    shares_axes.set_xlabel("clients, largest first")
    _class_key(figure, [sizes_axes, shares_axes], classes, colours)
    return figure


def _stacked(axes: Axes, values: np.ndarray, colours: list) -> None:
    """A bar for each client, of ``values`` [K, C] on top of each other; for some of them where all have no room."""
    clients, num_classes = values.shape
    top = values.sum(axis=1).max()
    shown = values[np.linspace(0, clients - 1, min(clients, _MOST_BARS)).round().astype(int)]
    axes.imshow(
        np.ma.masked_equal(_stack(shown, top), num_classes),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=num_classes - 0.5,
        extent=(-0.5, clients - 0.5, 0, top),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    _tidy(axes)


def _stack(values: np.ndarray, top: float, rows: int = 600) -> np.ndarray:
    """Stacked bars as an image [rows, K] of class numbers (C above a bar): single bars take minutes."""
    heights = (np.arange(rows) + 0.5) / rows * top
    ends = np.cumsum(values, axis=1)
    ends[:, -1] = np.round(ends[:, -1], 9)  # shares that add up to 99.999... reach the top too
    return np.stack([np.searchsorted(column, heights, side="right") for column in ends], axis=1)


def _class_key(figure: Figure, axes: list[Axes], classes: Sequence[str], colours: list) -> None:
    """A legend for up to ten classes, a colour bar for more."""
    num_classes = len(classes)
    if num_classes <= len(_TEN):
        handles = [Patch(color=colour, label=name) for colour, name in zip(colours, classes, strict=True)]
        figure.legend(handles=handles[::-1], loc="outside right center", frameon=False, fontsize=9, labelcolor=_INK)
        return
    ticks = np.unique(np.linspace(0, num_classes - 1, 11).round().astype(int))
    bar = figure.colorbar(axes[0].images[0], ax=axes, ticks=ticks.tolist(), aspect=40, pad=0.01)
    bar.set_ticklabels([str(classes[t]) for t in ticks])
    bar.ax.tick_params(length=0, labelsize=9, labelcolor=_INK)
