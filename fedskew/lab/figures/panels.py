"""The frame of a panel: its limits, its legend, the names along its sides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedskew.lab.comparing.scales import Scale
from fedskew.lab.drawing import MUTED
from fedskew.lab.wording import shortened

MOST_ROWS = 12
LONG = 16  # letters of a name that has no room beside a panel


def limits(values: Iterable[float]) -> tuple[float, float] | None:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def row_names(names: Iterable[str]) -> list[str]:
    """Short enough to stand at the left of a panel."""
    return [shortened(name, 44) for name in names]


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Rows at 0, 1, 2, ... from above."""
    axes.set_yticks(range(len(names)), row_names(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def legend(figure: Figure, title: str = "") -> None:
    """Name what is labelled at the right of the panels, or below where names are long; nothing without a label."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if not labels:
        return
    below = max(map(len, labels)) > LONG
    if below:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.17 * len(labels))
    place = "outside lower left" if below else "outside right upper"
    figure.legend(handles, labels, title=title, loc=place, alignment="left", handlelength=1)


def label_axis(axes: Axes, scale: Scale) -> None:
    """Draw ticks, limits and name of a hyper-parameter along x."""
    axes.set_xticks([place for place, _ in scale.ticks], [name for _, name in scale.ticks])
    if sum(len(name) for _, name in scale.ticks) > 40:
        slanted(axes)
    axes.set_xlim(*scale.limits)
    axes.set_xlabel(scale.name)
    if scale.zero is not None:  # 0 has no place on a logarithmic axis: a line says that the axis is cut
        others = [place for place in scale.places.values() if place != scale.zero]
        axes.axvline((scale.zero + min(others)) / 2, color=MUTED, linewidth=0.9, linestyle=":")


def slanted(axes: Axes) -> None:
    """Turn names along x that would touch each other if they stood level."""
    axes.tick_params(axis="x", labelrotation=30)
    for text in axes.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
