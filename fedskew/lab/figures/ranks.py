"""Average ranks of settings, and which of them cannot be told apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib

from fedskew.lab.drawing import INK, MIDDLE, MUTED, STYLE, Drawing, Sketch
from fedskew.lab.wording import counted, shortened

if TYPE_CHECKING:
    from fedskew.lab.comparing.ranks import Ranks

MOST_RANKED, LONGEST_NAME = 20, 30  # names, and letters of one, that have room at both sides
SCALE = 3.2  # inches from the first rank to the last


@matplotlib.rc_context(STYLE)
def critical_differences(file: str, ranks: Ranks) -> Drawing | None:
    """Draw Demsar's diagram: settings along their average rank, thick lines join those that cannot be told apart."""
    count = len(ranks.settings)
    if count > MOST_RANKED:
        return None
    left, alike = math.ceil(count / 2), ranks.alike
    first_row = 0.5 + 0.22 * len(alike)  # in rows below the scale
    rows = first_row + left
    names = [shortened(setting, LONGEST_NAME) for setting in ranks.settings]
    sides = [0.75 + 0.07 * max(map(len, half)) for half in (names[:left], names[left:])]  # inches: a name and its rank
    width, height = SCALE + sum(sides), 0.75 + 0.2 * rows
    sketch = Sketch(width, height)
    sketch.figure.set_layout_engine("none")  # names stand beside the axes, where room is kept for them
    axes = sketch.figure.add_axes((sides[0] / width, 0, SCALE / width, 1))
    axes.set_axis_off()
    axes.set_ylim(rows - 0.4, -2.9)
    axes.hlines(0, 1, count, color=INK, linewidth=0.9)
    for rank in range(1, count + 1):
        axes.vlines(rank, -0.25, 0, color=INK, linewidth=0.9)
        axes.text(rank, -0.4, f"{rank}", ha="center", va="bottom", fontsize=8)
    axes.hlines(-1.7, 1, 1 + ranks.critical, color=MUTED, linewidth=2, clip_on=False)
    axes.text(1, -1.85, f"critical difference {ranks.critical:.2f}", ha="left", va="bottom", fontsize=8, color=MUTED)
    axes.set_xlim(1, count)
    for number, (setting, name, rank) in enumerate(zip(ranks.settings, names, ranks.average, strict=True)):
        at_left = number < left
        row = first_row + (number if at_left else count - 1 - number)
        end = 1 - 0.04 * (count - 1) if at_left else count + 0.04 * (count - 1)
        axes.plot([rank, rank, end], [0, row, row], color=MUTED, linewidth=0.8, clip_on=False)
        text = f"{name}  {rank:.2f}" if at_left else f"{rank:.2f}  {name}"
        axes.text(end, row, f" {text} ", ha="right" if at_left else "left", va="center", fontsize=8)
        mark = axes.scatter([rank], [0], s=16, color=INK, linewidths=0, zorder=3, clip_on=False)
        sketch.tip(mark, [f"{setting}\naverage rank {rank:.2f}"])
    for number, (first, last) in enumerate(alike):
        place = 0.3 + 0.22 * number
        ends = (max(ranks.average[first] - 0.05, 1), min(ranks.average[last] + 0.05, count))
        axes.hlines(place, *ends, color=INK, linewidth=3)
    caption = f"Average ranks over {counted(len(ranks.blocks), 'block')}, 1 the best. "
    caption += "Settings that a thick line joins are not told apart by Nemenyi's test (5 %)."
    return sketch.finish(file, caption, wide=width > MIDDLE)
