"""What is compared: the effects behind a claim, and average ranks with what cannot be told apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from engine.results.settings import setting_label
from fedskew.lab.comparing.ranking import spread_out
from fedskew.lab.drawing import CATEGORIES, INK, MIDDLE, MUTED, PANEL, Drawing, new_figure, new_panel, styled
from fedskew.lab.figures.panels import name_rows
from fedskew.lab.quantities import quantity
from fedskew.lab.wording import counted, shortened

if TYPE_CHECKING:
    from fedskew.lab.comparing.ranks import Ranks
    from fedskew.lab.comparing.verdicts import CellVerdict, Verdict

MOST_CELLS = 24
VERDICT_COLOURS = {"held": CATEGORIES[2], "not held": CATEGORIES[1], "undecided": MUTED}
MOST_RANKED, LONGEST_NAME = 20, 30  # names, and letters of one, that have room at both sides
SCALE = 3.2  # inches from the first rank to the last


@styled
def forest(number: int, verdict: Verdict, interval: str) -> Drawing | None:
    """The effect of a claim in each cell with its intervals, against the margin; ``interval``: what they are called."""
    measured, claim = quantity(verdict.claim.metric), verdict.claim
    known = [cell for cell in verdict.cells if math.isfinite(cell.effect)]
    cells: list[CellVerdict] = spread_out(known, MOST_CELLS)
    if len(verdict.cells) < 2 or not cells:
        return None
    figure, axes = new_panel(PANEL, 0.8 + 0.27 * len(cells))
    axes.axvline(0, color=MUTED, linewidth=0.9)
    for border in {claim.margin, -claim.margin if claim.kind == "equal" else claim.margin} - {0.0}:
        axes.axvline(border * measured.factor, color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
    for place, cell in enumerate(cells):
        colour = VERDICT_COLOURS[cell.verdict]
        for low, high, width in ((cell.wide_low, cell.wide_high, 0.8), (cell.low, cell.high, 2.2)):
            if math.isfinite(low) and math.isfinite(high):
                axes.hlines(place, low * measured.factor, high * measured.factor, color=colour, linewidth=width)
        axes.scatter([cell.effect * measured.factor], [place], s=30, color=colour, zorder=3)
    name_rows(axes, [setting_label(cell.cell) or "all seeds" for cell in cells])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    unit = "percentage points" if measured.unit == "%" else measured.title
    axes.set_xlabel(f"effect in favour of the claim ({unit})")
    caption = f"Claim {number}: effect and 95 % {interval} in each cell. Thin: the interval at the level of all cells "
    return Drawing(f"claim-{number}", f"{caption}together.", figure)


@styled
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
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # names stand beside the axes, where room is kept for them
    axes = figure.add_axes((sides[0] / width, 0, SCALE / width, 1))
    axes.set_axis_off()
    axes.set(xlim=(1, count), ylim=(rows - 0.4, -2.9))
    axes.hlines(0, 1, count, color=INK, linewidth=0.9)
    axes.vlines(np.arange(1, count + 1), -0.25, 0, color=INK, linewidth=0.9)
    for rank in range(1, count + 1):
        axes.text(rank, -0.4, f"{rank}", ha="center", va="bottom", fontsize=8)
    axes.hlines(-1.7, 1, 1 + ranks.critical, color=MUTED, linewidth=2, clip_on=False)
    axes.text(1, -1.85, f"critical difference {ranks.critical:.2f}", ha="left", va="bottom", fontsize=8, color=MUTED)
    axes.scatter(ranks.average, [0] * count, s=16, color=INK, zorder=3, clip_on=False)
    for number, (name, rank) in enumerate(zip(names, ranks.average, strict=True)):
        at_left = number < left
        row = first_row + (number if at_left else count - 1 - number)
        end = 1 - 0.04 * (count - 1) if at_left else count + 0.04 * (count - 1)
        axes.plot([rank, rank, end], [0, row, row], color=MUTED, linewidth=0.8, clip_on=False)
        text = f"{name}  {rank:.2f}" if at_left else f"{rank:.2f}  {name}"
        axes.text(end, row, f" {text} ", ha="right" if at_left else "left", va="center", fontsize=8)
    for number, (first, last) in enumerate(alike):
        ends = (max(ranks.average[first] - 0.05, 1), min(ranks.average[last] + 0.05, count))
        axes.hlines(0.3 + 0.22 * number, *ends, color=INK, linewidth=3)
    caption = f"Average ranks over {counted(len(ranks.blocks), 'block')}, 1 the best. "
    caption += "Settings that a thick line joins are not told apart by Nemenyi's test (5 %)."
    return Drawing(file, caption, figure, wide=width > MIDDLE)
