"""Colours of lines and of values from worst to best, and the cells that are filled with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from fedskew.lab.drawing import CATEGORIES, HEAT, RAMP
from fedskew.lab.quantities import Quantity


def line_colours(count: int, ordered: bool) -> list[str]:
    if ordered and count > 1:
        return [RAMP[i] for i in np.linspace(0, len(RAMP) - 1, count).round().astype(int)]
    return [CATEGORIES[i % len(CATEGORIES)] for i in range(count)]


def worst_and_best(values: Sequence[float], mode: str) -> tuple[float, float]:
    return (min(values), max(values)) if mode == "max" else (max(values), min(values))


def fraction(value: float, start: float, end: float) -> float:
    """Return how far ``value`` is on the way from ``start`` to ``end``; in the middle if there is no way."""
    return (value - start) / (end - start) if start != end else 0.5


def ramp(values: Sequence[float], mode: str) -> list[str]:
    """A colour for each of ``values``."""
    shares = [fraction(value, *worst_and_best(values, mode)) for value in values]
    return [RAMP[min(int(share * len(RAMP)), len(RAMP) - 1)] for share in shares]


def heat(share: float) -> Any:
    """0 for the worst to 1 for the best."""
    return HEAT(0.08 + 0.87 * share)


def colour_key(
    axes: Axes, measured: Quantity, values: Sequence[float], mode: str, colours: Sequence[Any] = RAMP
) -> None:
    """The colours from worst to best as a column of patches to the right of the axes, its ends labelled."""
    height = 0.6 / len(colours)
    for number, colour in enumerate(colours):
        corner = (1.04, 0.2 + 0.6 * number / len(colours))
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "none", "clip_on": False}
        axes.add_artist(Rectangle(corner, 0.035, height, transform=axes.transAxes, **style))
    worst, best = (measured.text(value, unit=True) for value in worst_and_best(values, mode))
    axes.text(1.04, 0.82, best, transform=axes.transAxes, va="bottom", fontsize=8)
    axes.text(1.04, 0.18, worst, transform=axes.transAxes, va="top", fontsize=8)


def letter_size(columns: int, texts: Iterable[str], inches: float) -> float:
    """The size of the numbers in a row of so many cells; 0 if they would not fit."""
    longest = max(len(text) for text in texts)
    size = 72 * inches / columns / (0.68 * longest + 0.4)
    return min(size, 8.0) if size >= 6.5 else 0.0


def room_for_cells(axes: Axes, columns: int, rows: int) -> None:
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def draw_cell(
    axes: Axes, column: int, row: int, value: float, norm: Normalize, measured: Quantity, letters: float, better: str
) -> Rectangle:
    """A coloured cell, bright where the value is good, with the value on it in letters of that size (0: none)."""
    share = float(norm(value)) if norm.vmin != norm.vmax else 0.6
    colour = heat(share if better == "max" else 1 - share)
    cell = Rectangle((column - 0.48, row - 0.47), 0.96, 0.94, facecolor=colour, edgecolor="none")
    axes.add_patch(cell)
    if letters:
        style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": ink_on(colour)}
        axes.text(column, row, measured.text(value), fontsize=letters, **style)
    return cell


def ink_on(colour: Sequence[float]) -> str:
    """Return the colour of a text on ``colour`` (red, green, blue from 0 to 1), by its relative luminance."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
    return "#fdfdfd" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 else "#101010"
