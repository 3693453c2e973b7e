"""A table as coloured cells: every heat map is drawn here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize

from fedskew.lab.drawing import GRID, HEAT, PAPER

MOST_CELLS = 1600  # of a panel in lines; above, it is an image
MOST_TICKS = 14
SMALLEST, LARGEST = 6.0, 8.0  # points: letters on a cell


def heat_map(
    axes: Axes,
    table: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    low: float,
    high: float,
    written: Callable[[float], str] | None = None,
    colours: Colormap = HEAT,
) -> None:
    """Colour the cells of ``table``, the first row on top; a cell without a number is grey.

    rows, columns: their names, which stand at as many as there is room for. written: the number as it is written on its
    cell; where that has no room, or is not asked for, a bar of colours stands beside the panel.
    """
    small = table.size <= MOST_CELLS
    places = [np.arange(count + 1) - 0.5 for count in (table.shape[1], table.shape[0])]
    norm = Normalize(low, high if high > low else low + 1)
    lines: Any = {"edgecolors": PAPER, "linewidth": 0.6} if small else {"rasterized": True}
    mesh = axes.pcolormesh(
        *places, np.ma.masked_invalid(table), cmap=colours.with_extremes(bad=GRID), norm=norm, **lines
    )
    axes.set_ylim(table.shape[0] - 0.5, -0.5)
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    for set_ticks, names in ((axes.set_xticks, columns), (axes.set_yticks, rows)):
        some = range(0, len(names), max(1, math.ceil(len(names) / MOST_TICKS)))
        set_ticks(list(some), [names[place] for place in some])
    known = np.argwhere(np.isfinite(table)).tolist()
    texts = [written(float(table[row, column])) for row, column in known] if written and small else []
    inches = axes.get_figure(root=True).get_size_inches()[0] - 0.8  # type: ignore[union-attr]
    size = 72 * inches / table.shape[1] / (0.68 * max(map(len, texts), default=0) + 0.4)
    if not texts or size < SMALLEST:
        axes.figure.colorbar(mesh, ax=axes, shrink=0.8).outline.set_visible(False)  # type: ignore[operator]
        return
    for (row, column), text in zip(known, texts, strict=True):
        ink = ink_on(colours(norm(table[row, column])))
        axes.text(column, row, text, ha="center", va="center_baseline", fontsize=min(size, LARGEST), color=ink)


def ink_on(colour: Sequence[float]) -> str:
    """Return the colour of a text on ``colour`` (red, green, blue from 0 to 1), by its relative luminance."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
    return "#fdfdfd" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 else "#101010"
