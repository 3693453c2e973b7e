"""Average ranks of settings, and which of them cannot be told apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib

from engine.analysis.comparing.ranking import counted, shortened
from engine.analysis.drawing import INK, MUTED, STYLE, Drawing, Sketch
from engine.analysis.figures.panels import MIDDLE

if TYPE_CHECKING:
    from engine.analysis.comparing.ranks import Ranks

MOST_RANKED = 20  # names that have room at both sides


@matplotlib.rc_context(STYLE)
def critical_differences(name: str, ranks: Ranks) -> Drawing | None:
    """Draw Demsar's diagram: settings along their average rank, thick lines join those that cannot be told apart."""
    count = len(ranks.settings)
    if count > MOST_RANKED:
        return None
    left, alike = math.ceil(count / 2), ranks.alike
    first_row = 0.5 + 0.22 * len(alike)  # in rows below the scale
    rows = first_row + left
    sketch = Sketch(MIDDLE, 0.75 + 0.2 * rows)
    axes = sketch.figure.subplots()
    axes.set_axis_off()
    axes.set_ylim(rows - 0.4, -2.3)
    axes.hlines(0, 1, count, color=INK, linewidth=0.9)
    for rank in range(1, count + 1):
        axes.vlines(rank, -0.25, 0, color=INK, linewidth=0.9)
        axes.text(rank, -0.4, f"{rank}", ha="center", va="bottom", fontsize=8)
    axes.hlines(-1.7, 1, 1 + ranks.critical, color=MUTED, linewidth=2)
    axes.text(1, -1.85, f"critical difference {ranks.critical:.2f}", ha="left", va="bottom", fontsize=8, color=MUTED)
    for number, (setting, rank) in enumerate(zip(ranks.settings, ranks.average, strict=True)):
        at_left = number < left
        row = first_row + (number if at_left else count - 1 - number)
        end = 0.85 if at_left else count + 0.15
        axes.plot([rank, rank, end], [0, row, row], color=MUTED, linewidth=0.8)
        text = f"{shortened(setting, 30)}  {rank:.2f}" if at_left else f"{rank:.2f}  {shortened(setting, 30)}"
        axes.text(end, row, f" {text} ", ha="right" if at_left else "left", va="center", fontsize=8)
        mark = axes.scatter([rank], [0], s=16, color=INK, linewidths=0, zorder=3)
        sketch.tip(mark, [f"{setting}\naverage rank {rank:.2f}"])
    for number, (first, last) in enumerate(alike):
        place = 0.3 + 0.22 * number
        axes.hlines(place, ranks.average[first] - 0.05, ranks.average[last] + 0.05, color=INK, linewidth=3)
    caption = f"Average ranks over {counted(len(ranks.blocks), 'block')}, 1 the best. "
    return sketch.finish(name, f"{caption}Settings that a thick line joins are not told apart by Nemenyi's test (5 %).")
