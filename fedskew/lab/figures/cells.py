"""A table as coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from fedskew.lab.drawing import HEAT, MUTED, Sketch
from fedskew.lab.figures.colours import ink_on

MOST_CELLS = 1600  # of all panels of a figure that can be asked for their value; above, a panel is one image
MOST_TICKS = 12


def coloured_cells(
    sketch: Sketch, axes: Axes, table: np.ndarray, tips: list[list[str]] | None, low: float, high: float
) -> Any:
    """A panel of coloured cells, the first row on top; with tips it is made of shapes, without it is an image.

    table: [rows, columns], NaN where a cell is empty. Returns what a colour bar is made of.
    """
    high = high if high > low else low + 1
    rows, columns = table.shape
    colours = HEAT.with_extremes(bad=MUTED)
    if tips is None:
        mesh: Any = axes.imshow(
            np.ma.masked_invalid(table), cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
        )
    else:
        cells = [Rectangle((j - 0.5, i - 0.5), 1, 1) for i in range(rows) for j in range(columns)]
        mesh = PatchCollection(cells, cmap=colours, linewidths=0, antialiaseds=False)
        mesh.set_array(np.ma.masked_invalid(table.ravel().astype(float)))
        mesh.set_clim(low, high)
        axes.add_collection(mesh)
        sketch.tip(mesh, [text for row in tips for text in row])
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return mesh


def write_in_cells(axes: Axes, mesh: Any, table: np.ndarray, texts: Sequence[Sequence[str]], size: float) -> None:
    """The text of each cell that has a value, dark on bright colours and bright on dark ones."""
    for row, column in np.argwhere(np.isfinite(table)).tolist():
        style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": size}
        axes.text(column, row, texts[row][column], color=ink_on(mesh.to_rgba(table[row, column])), **style)


def some_ticks(axes: Axes, names: Sequence[str], side: str) -> None:
    """The names of evenly spaced rows or columns, as many as there is room for."""
    step = max(1, math.ceil(len(names) / MOST_TICKS))
    places = range(0, len(names), step)
    (axes.set_xticks if side == "x" else axes.set_yticks)(list(places), [names[place] for place in places])
