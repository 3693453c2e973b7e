"""Claims with their verdicts: as sentences, on a line, cell by cell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from engine.record.metrics import SIMULATED
from engine.record.run_folder import BREAKS_PRIVACY
from engine.results.completeness import lacks
from engine.results.results import Results
from engine.results.settings import names_oracle, setting_label
from fedskew.lab import figures
from fedskew.lab.comparing.effects import ROPE, ClaimEffects, claim_values, effects_of
from fedskew.lab.comparing.intervals import INTERVALS
from fedskew.lab.comparing.verdicts import Verdict, judge, rests_on
from fedskew.lab.drawing import Drawing, drawn
from fedskew.lab.pages.tables import (
    Cell,
    Table,
    difference_cells,
    interval_text,
    long_cell,
    p_cell,
    p_text,
    seeds_cell,
    seeds_text,
    word_cell,
)
from fedskew.lab.quantities import Quantity, quantity_of, with_unit


@dataclass(frozen=True)
class ClaimView:
    number: int
    verdict: Verdict
    effects: ClaimEffects
    numbers: tuple[str, ...]
    beside: str  # the verdict: how large and how sure the effect is; "" where nothing is known
    places: Mapping[str, float] | None  # of the small picture, in percent of its width
    cells: Table | None
    drawing: Drawing | None
    lacks: str  # of the trials that it rests on; "" if all are there

    @property
    def style(self) -> str:
        return _style(self.verdict.verdict)


def claim_views(results: Results, rope: float = ROPE) -> list[ClaimView]:
    """Judge the claims; ``rope``: half the width of the region of practical equivalence, of metrics that are shares."""
    return [_view(number, verdict, results, rope) for number, verdict in enumerate(judge(results), start=1)]


def claims_frame(views: Sequence[ClaimView]) -> pd.DataFrame:
    return pd.DataFrame(
        {"claim": view.number} | claim_values(view.verdict, view.effects) | {"lacks": view.lacks} for view in views
    )


def _view(number: int, verdict: Verdict, results: Results, rope: float) -> ClaimView:
    measured = quantity_of(results, verdict.claim.metric)
    name = INTERVALS[results.looks]
    cells = _cells(number, verdict, measured, name) if verdict.cells else None
    drawing = drawn(f"claim {number}", lambda: figures.forest(number, verdict, name), None)
    trials = rests_on(results, verdict.claim)
    oracle = names_oracle(verdict.claim.sides) or any(row["breaks_privacy"] == 1 for row in trials)
    supposed = results.devices is not None and verdict.claim.metric in SIMULATED
    numbers = _numbers(verdict, measured) + (f"on {results.devices}",) * supposed + (BREAKS_PRIVACY,) * oracle
    lacking = lacks(trials, len(results.completeness.nameless))
    effects = effects_of(results, verdict.claim, rope)
    beside = _beside(effects, measured, len(verdict.cells) > 1)
    return ClaimView(number, verdict, effects, numbers, beside, _places(verdict), cells, drawing, lacking)


def _beside(effects: ClaimEffects, measured: Quantity, several: bool) -> str:
    if not math.isfinite(effects.weakest.within):
        return ""
    width = measured.text(effects.rope, unit=True).replace(" %", " points")
    where = " in the weakest cell" if several else ""
    above, within, below = effects.weakest.above, effects.weakest.within, effects.weakest.below
    return (
        f"The mean difference{where} is above +{width} with probability {above:.2f}, "
        f"within ±{width} {within:.2f}, below −{width} {below:.2f}"
    )


def _numbers(verdict: Verdict, measured: Quantity) -> tuple[str, ...]:
    claim, numbers = verdict.claim, []
    if math.isfinite(verdict.effect):
        where = " in the weakest cell" if len(verdict.cells) > 1 else ""
        effect = f"Effect{where} {measured.difference(verdict.effect, unit=True)}"
        if math.isfinite(verdict.low):
            effect += f", 95 % interval {interval_text(measured, verdict.low, verdict.high)}"
        numbers.append(effect)
    if claim.margin:
        kind = "within ±" if claim.kind == "equal" else "more than "
        numbers.append(f"asked for {kind}{measured.difference(claim.margin, unit=True).lstrip('+')}")
    if not math.isnan(verdict.p):
        numbers.append(f"p {p_text(verdict.p)} (Holm {p_text(verdict.p_holm)})")
    numbers.append(f"seeds {seeds_text(verdict.seeds)}" if verdict.seeds else "no common seed")
    if verdict.seeds_to_decide is not None:
        numbers.append(f"about {verdict.seeds_to_decide} seeds would decide it")
    return tuple(numbers)


def _places(verdict: Verdict) -> dict[str, float] | None:
    """Return where zero, margin, interval and effect of the weakest cell lie along a line."""
    marks = {"zero": 0.0, "margin": verdict.claim.margin, "effect": verdict.effect}
    if math.isfinite(verdict.low) and math.isfinite(verdict.high):
        marks |= {"low": verdict.low, "high": verdict.high}
    if verdict.claim.kind == "equal":
        marks["other_margin"] = -verdict.claim.margin
    if not all(map(math.isfinite, marks.values())):
        return None
    low, high = min(marks.values()), max(marks.values())
    if low == high:
        return None
    return {name: round(4 + 92 * (value - low) / (high - low), 2) for name, value in marks.items()}


def _cells(number: int, verdict: Verdict, measured: Quantity, interval: str) -> Table:
    effect = with_unit("effect", measured.unit_of_difference)
    wanted = [cell.seeds_to_decide if cell.verdict == "undecided" else None for cell in verdict.cells]
    decide = ["would decide it"] * any(wanted)
    head = ("cell", "verdict", effect, f"95 % {interval}", "p", "seeds", *decide, "why")
    rows = []
    for cell, seeds in zip(verdict.cells, wanted, strict=True):
        row = [word_cell(setting_label(cell.cell) or "all"), Cell(cell.verdict, style=f"word {_style(cell.verdict)}")]
        row += [*difference_cells(measured, cell.effect, cell.low, cell.high), p_cell(cell.p), seeds_cell(cell.seeds)]
        if decide:
            row.append(Cell(f"{seeds} seeds" if seeds else "", float(seeds or math.nan)))
        rows.append([*row, long_cell(cell.why)])
    frame = pd.DataFrame({"claim": number, **dataclasses.asdict(cell)} for cell in verdict.cells)
    return Table(f"claim-{number}-cells", "Cells", "", head, rows, frame, tall=len(rows) > 14)


def _style(verdict: str) -> str:
    return verdict.replace(" ", "-")
