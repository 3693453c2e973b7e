"""Who holds what: a partition as a picture, the same in the folder of a run and in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.base.files import write_atomically
from engine.server.class_balance import skew
from fedskew.lab.drawing import CATEGORIES, HEAT, MIDDLE, PANEL, Drawing, new_figure, new_panel, styled
from fedskew.lab.quantities import percent

MOST_NAMED = 12  # classes


@styled
def partition(name: str, title: str, counts: np.ndarray) -> Drawing:
    """Draw samples of each class on every client, int [K, C]: bubbles, or a picture of shades for many clients."""
    figure, axes = new_panel(PANEL, _height(counts))
    about = _held(axes, counts)
    axes.set_title(title)
    return Drawing(name, f"{title}: {about}".removeprefix(": "), figure)


@styled
def draw_partition(counts: np.ndarray, classes: Sequence[str], path: Path) -> None:
    """Write the PNG of a run's partition; counts: int64 [K, C], classes: the names of the C classes."""
    figure, axes = new_panel(MIDDLE, _height(counts) + 0.6)
    about = _held(axes, counts, classes)
    figure.suptitle(about.replace(". ", ".\n"), fontsize=9, x=0.01, ha="left")
    write_atomically(path, Drawing("partition", about, figure).png)


@styled
def draw_steps(counts: np.ndarray, expected: np.ndarray, classes: Sequence[str], path: Path) -> None:
    """Write a PNG of class shares before and after: of clients' samples, and of what their local steps see.

    counts: int64 [K, C]. expected: float64 [K, C], rows of a local step; both of clients that hold data, which stand in
    the same order in both panels.
    """
    figure, order = new_figure(MIDDLE, 2 * _height(counts)), _by_largest_class(counts)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, values, what in zip(panels, (counts, expected), ("a client's samples", "a local step"), strict=True):
        _shades(axes, _shares(values[order]))
        _name_classes(axes, counts.shape[1], classes)
        axes.set_title(f"{what}: largest class {percent(_largest_share(values))} on average")
    panels[-1].set_xlabel("clients, by their largest class")
    write_atomically(path, Drawing("sampler", "", figure).png)


def _height(counts: np.ndarray) -> float:
    return min(max(1.0 + 0.19 * counts.shape[1], 2.2), 3.4)


def _held(axes: Axes, counts: np.ndarray, classes: Sequence[str] = ()) -> str:
    """Draw who holds what, and return a caption."""
    clients, num_classes = counts.shape
    if clients <= 50 and num_classes <= 30 and np.count_nonzero(counts) <= 600:
        _bubbles(axes, counts)
        drawn = "The area of a bubble is the number of samples."
    else:
        _shades(axes, _shares(counts[_by_largest_class(counts)]))
        axes.set_xlabel("clients, by their largest class")
        drawn = "The shade is a class's share of a client's samples."
    _name_classes(axes, num_classes, classes)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    sizes = counts.sum(axis=1)
    held = f"{clients:,} clients of {sizes.min():,} to {sizes.max():,} samples"
    hellinger, jensen_shannon, variation, effective = skew(counts).values()
    held += f", largest class {percent(_largest_share(counts))} on average, {effective:.1f} effective classes. From the"
    held += f" classes of all samples: Hellinger {hellinger:.2f}, Jensen-Shannon {jensen_shannon:.2f}, total variation"
    return f"{held} {variation:.2f}. {drawn}"


def _name_classes(axes: Axes, num_classes: int, classes: Sequence[str]) -> None:
    places = range(0, num_classes, max(1, math.ceil(num_classes / MOST_NAMED)))
    axes.set_yticks(places, [classes[place] if classes else str(place) for place in places])
    axes.set_ylabel("class")
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _largest_share(counts: np.ndarray) -> float:
    """Return the share of a client's largest class, the mean over clients that hold anything."""
    sizes = counts.sum(axis=1)
    return float((counts[sizes > 0].max(axis=1) / sizes[sizes > 0]).mean()) if sizes.any() else 0.0


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def _by_largest_class(counts: np.ndarray) -> np.ndarray:
    return np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))


def _bubbles(axes: Axes, counts: np.ndarray) -> None:
    clients, classes = counts.shape
    holders, held = np.nonzero(counts)
    amounts = counts[holders, held]
    width, height = axes.get_figure(root=True).get_size_inches()  # type: ignore[union-attr]
    step = min(72 * (width - 0.7) / clients, 72 * (height - 0.8) / classes)
    area = (0.92 * step) ** 2 * amounts / max(counts.max(), 1)
    axes.scatter(holders, held, s=np.maximum(area, 0.8), color=CATEGORIES[0], linewidths=0, clip_on=False)
    axes.set_xlim(-0.8, clients - 0.2)
    axes.set_ylim(classes - 0.3, -0.7)
    axes.set_xlabel("client")


def _shades(axes: Axes, shares: np.ndarray) -> None:
    """Draw shares [K, C] of clients' samples, a column for each client."""
    image = axes.imshow(
        np.ma.masked_equal(shares.T, 0), HEAT.resampled(8), aspect="auto", interpolation="nearest", vmin=0, vmax=1
    )
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    bar.outline.set_visible(False)  # type: ignore[operator]
    axes.grid(False)
