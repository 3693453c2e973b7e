"""The effects behind a claim."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.ticker import MaxNLocator

from engine.results.settings import setting_label
from fedskew.lab.comparing.ranking import spread_out
from fedskew.lab.drawing import CATEGORIES, MUTED, PANEL, STYLE, Drawing, Sketch
from fedskew.lab.figures.panels import name_rows
from fedskew.lab.quantities import quantity
from fedskew.lab.wording import counted

if TYPE_CHECKING:
    from fedskew.lab.comparing.verdicts import CellVerdict, Verdict

MOST_CELLS = 24
VERDICT_COLOURS = {"held": CATEGORIES[2], "not held": CATEGORIES[1], "undecided": MUTED}


@matplotlib.rc_context(STYLE)
def forest(number: int, verdict: Verdict, interval: str) -> Drawing | None:
    """The effect of a claim in each cell with its intervals, against the margin; ``interval``: what they are called."""
    measured, claim = quantity(verdict.claim.metric), verdict.claim
    known = [cell for cell in verdict.cells if math.isfinite(cell.effect)]
    cells: list[CellVerdict] = spread_out(known, MOST_CELLS)[::-1]  # the first on top
    if len(verdict.cells) < 2 or not cells:
        return None
    sketch = Sketch(PANEL, 0.8 + 0.27 * len(cells))
    axes = sketch.figure.subplots()
    axes.axvline(0, color=MUTED, linewidth=0.9)
    for border in {claim.margin, -claim.margin if claim.kind == "equal" else claim.margin} - {0.0}:
        axes.axvline(border * measured.factor, color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
    names = [setting_label(cell.cell) or "all seeds" for cell in cells]
    for place, (name, cell) in enumerate(zip(names, cells, strict=True)):
        colour = VERDICT_COLOURS[cell.verdict]
        for low, high, width in ((cell.wide_low, cell.wide_high, 0.8), (cell.low, cell.high, 2.2)):
            if math.isfinite(low) and math.isfinite(high):
                axes.hlines(place, low * measured.factor, high * measured.factor, color=colour, linewidth=width)
        mark = axes.scatter([cell.effect * measured.factor], [place], s=30, color=colour, linewidths=0, zorder=3)
        tip = f"{name}: {measured.difference(cell.effect, unit=True)}"
        if math.isfinite(cell.low):
            tip += f", 95 % interval {measured.difference(cell.low)} to {measured.difference(cell.high)}"
        sketch.tip(mark, [f"{tip}\n{cell.verdict}, {counted(len(cell.seeds), 'seed')}"])
    name_rows(axes, names)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    unit = "percentage points" if measured.unit == "%" else measured.title
    axes.set_xlabel(f"effect in favour of the claim ({unit})")
    caption = f"Claim {number}: effect and 95 % {interval} in each cell. Thin: the interval at the level of all cells "
    return sketch.finish(f"claim-{number}", f"{caption}together.")
