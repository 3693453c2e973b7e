"""The frame of a panel: its size, its limits, the names of its lines and rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedskew.lab.comparing.scales import Scale
from fedskew.lab.drawing import MUTED
from fedskew.lab.wording import shortened

MOST_LINES, MOST_ROWS = 6, 12


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
    """Rows at 0, 1, 2, ... from below."""
    axes.set_yticks(range(len(names)), row_names(names))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def name_lines(axes: Axes, title: str, entries: Sequence[tuple[str, str, float]]) -> None:
    """A legend of entries (text, colour, y): to the right, each beside the end of its line; long ones below."""
    if max((len(text) for text, _, _ in entries), default=0) > 16:
        figure = axes.get_figure(root=True)
        assert figure is not None
        handles = [Line2D([], [], color=colour, linewidth=2.2) for _, colour, _ in entries]
        figure.legend(handles, [text for text, _, _ in entries], title=title, loc="outside lower left", handlelength=1)
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.17 * len(entries))
        return
    low, high = axes.get_ylim()
    top = 0.9 if title else 1.0
    wanted = sorted((min(max((y - low) / (high - low), 0.0), top), number) for number, (_, _, y) in enumerate(entries))
    places = _apart([place for place, _ in wanted], 0.07, top)
    for place, (_, number) in zip(places, wanted, strict=True):
        text, colour, _ = entries[number]
        stroke = Line2D([1.02, 1.06], [place, place], transform=axes.transAxes, color=colour, lw=2.2, clip_on=False)
        axes.add_artist(stroke)
        axes.text(1.075, place, text, transform=axes.transAxes, va="center_baseline", fontsize=8)
    if title:
        axes.text(1.02, 0.985, title, transform=axes.transAxes, va="top", fontsize=8, color=MUTED)


def _apart(places: list[float], gap: float, top: float) -> list[float]:
    """Rising ``places`` moved as little as it takes for none to touch the next or to lie above ``top``."""
    for i in range(1, len(places)):  # upwards, so that none touches the one below
        places[i] = max(places[i], places[i - 1] + gap)
    for i in range(len(places) - 1, -1, -1):  # and back below the top
        places[i] = min(places[i], top - gap * (len(places) - 1 - i))
    return places


def label_axis(axes: Axes, scale: Scale) -> None:
    """Draw ticks, limits and name of a hyper-parameter along x."""
    crowded = sum(len(name) for _, name in scale.ticks) > 40
    axes.set_xticks([place for place, _ in scale.ticks], [name for _, name in scale.ticks])
    if crowded:
        slanted(axes)
    axes.set_xlim(*scale.limits)
    axes.set_xlabel(scale.name)
    if scale.zero is not None:  # 0 has no place on a logarithmic axis: two strokes say that the axis is cut
        others = [place for place in scale.places.values() if place != scale.zero]
        middle = (scale.zero + min(others)) / 2
        axes.plot(
            [middle],
            [0],
            transform=axes.get_xaxis_transform(),
            marker=[(-0.6, -1), (0.2, 1)],
            markersize=7,
            color=MUTED,
            clip_on=False,
            linestyle="none",
            markeredgewidth=0.9,
        )


def slanted(axes: Axes) -> None:
    """Turn names along x that would touch each other if they stood level."""
    for text in axes.get_xticklabels():
        text.set(rotation=30, ha="right", rotation_mode="anchor")
