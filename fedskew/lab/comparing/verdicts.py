"""Claims of papers as executable checks: each is held, not held or undecided by the seeds at hand.

A claim says "``better`` exceeds ``worse`` by more than the margin", in every cell of a sweep or on average over its
cells; or, with ``kind="equal"``, "the two differ by no more than the margin"; or, with ``kind="above"``, "the metric
of ``better`` itself exceeds the margin", for a metric that is a difference already. A cell is one combination of the
values of all other axes; in it the two settings are compared seed by seed, on the seeds that both have finished.

The rule. Each cell has the 95 % interval of its paired differences, effects counted so that positive speaks for the
claim: the t interval where the seeds were chosen before looking, and one that holds at every look where they were added
until claims were decided. (Why t and neither the bootstrap nor the p-value, and which one for many looks:
intervals.py.)

- held: the interval of every cell lies above the margin (equal: within plus and minus the margin). No correction for
  the number of cells is due: a false "held" needs a cell in which the claim is wrong, and that cell alone lets it
  through with 2.5 % at most (an intersection-union test).
- not held: the interval of some cell lies at or below the margin (equal: outside of plus and minus the margin), so the
  claim as it stands is contradicted. Here many cells are many chances to be wrong, so these intervals have the
  level 1 - 0.05 / cells (Bonferroni): ``wide_low`` and ``wide_high``.
- undecided: all else, and whatever rests on too little: a cell with fewer than two common seeds, or one in which a
  finished trial lacks the metric (a target that it never reached), for leaving it out would flatter its setting.

A trial that failed (its training diverged) has no figure either, and speaks against its setting, whichever way the
metric is better. So a failure of ``better`` forbids "held" in its cell, and one of ``worse`` forbids "not held". Two
settings of which one failed are not equal: of kind="equal" a failure of either forbids "held". A seed on which both
failed says nothing, and forbids both words. Effect, interval and p are of the pairs that ended; p, which is small for
what speaks for the claim, is NaN where "held" is forbidden.

A claim with ``than`` is about two leads: the sample is the difference of the two paired differences, seed by seed, and
a failure in any of the four settings forbids both words.

A claim on average (``every=False``) has one interval: of the mean over the cells for each seed that has all of them.

Other trials that have not finished are left out, and ``why`` says how many. Each claim is judged by itself: among forty
wrong ones, one is "held" by luck, and ``p_holm`` is there to say which would survive. Both p are of one look, and NaN
after many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from engine.base.errors import ConfigError, require
from engine.results.claims import Claim
from engine.results.results import Group, Results, check_axes, check_metric, grouped
from engine.results.settings import key, matches, setting_label
from engine.results.statistics import CONFIDENCE
from fedskew.lab.comparing.intervals import (
    INTERVAL_RULES,
    all_equal,
    difference,
    holm,
    interval,
    seeds_needed,
    sign_flip,
)
from fedskew.lab.quantities import Quantity, quantity
from fedskew.lab.wording import numbered

Word = Literal["held", "not held", "undecided"]
AGAIN = "mend the setting, or run fedskew resume FOLDER --retry-failed"  # of a sweep with failed trials


@dataclass(frozen=True)
class CellVerdict:
    """A claim in one cell, or averaged over all; effects are positive in favour of the claim."""

    cell: dict[str, Any]  # values of the other axes; {} if there are none, or if this is the average
    verdict: Word
    effect: float  # mean paired difference; NaN without a common seed
    low: float  # 95 % interval; NaN below two common seeds, or four that are looked at one by one
    high: float
    wide_low: float  # at the level for all cells together
    wide_high: float
    p: float  # of "the claim is wrong here": exact sign-flip test, one-sided, against the margin; NaN after many looks
    seeds: tuple[int, ...]
    seeds_to_decide: int | None
    why: str


@dataclass(frozen=True)
class Verdict:
    """A claim over all its cells.

    effect, low, high: of the cell that stands worst for the claim among those that the verdict rests on. p: of
    "the claim is wrong", small only where all speaks for the claim: the largest of the cells, since all must hold;
    p_holm is adjusted for the number of claims. With n seeds no p is below 1 / 2^n: it is shown beside the verdict,
    which does not depend on it.

    seeds_to_decide: how many seeds would decide if effects and spreads stay as they are now; see
    :func:`~fedskew.lab.comparing.intervals.seeds_needed`. None for a claim that is decided, has no cell with two
    seeds, or would be on the margin.
    """

    claim: Claim
    verdict: Word
    effect: float
    low: float
    high: float
    p: float
    p_holm: float
    seeds: tuple[int, ...]  # that count in some cell
    seeds_to_decide: int | None
    cells: tuple[CellVerdict, ...]
    why: str


@dataclass(frozen=True)
class Sample:
    """The paired differences of a cell, or of the mean over cells, positive in favour of the claim."""

    place: str  # for the reader
    cell: dict[str, Any]
    differences: dict[int, float]  # by seed; NaN where a finished trial has no such figure
    left_out: int  # trials that were stopped or are running
    failed: tuple[frozenset[int], frozenset[int]]  # the seeds on which better failed, and on which worse did


def judge(results: Results) -> list[Verdict]:
    """Each claim of a sweep, in its order."""
    verdicts = [_judge(results, claim) for claim in results.claims]
    adjusted = holm([verdict.p for verdict in verdicts])
    return [dataclasses.replace(one, p_holm=float(p)) for one, p in zip(verdicts, adjusted, strict=True)]


def samples_of(results: Results, claim: Claim) -> list[Sample]:
    """Return what a verdict rests on, in the order of its cells; :class:`ConfigError` if the sweep cannot say."""
    samples = _samples(results, claim)
    return samples if claim.every or len(samples) < 2 else [_average(samples)]


def rests_on(results: Results, claim: Claim) -> list[dict[str, Any]]:
    """Pick the trials that a claim compares, whatever became of them, as rows of the trials table.

    None if a setting that it compares has none: then nothing that there is says anything about it.
    """
    rows = results.trials.to_dict("records")
    sides = [
        {
            number
            for number, row in enumerate(rows)
            if all(name in row and matches(row[name], side[name]) for name in side)
        }
        for one in claim.leads or (claim,)
        for side in one.sides
    ]
    return [rows[n] for n in sorted(set[int]().union(*sides))] if all(sides) else []


def _judge(results: Results, claim: Claim) -> Verdict:
    try:
        samples = samples_of(results, claim)
    except ConfigError as error:  # the sweep has no such axis, value or figure: the report says so, and goes on
        nan = math.nan
        return Verdict(claim, "undecided", nan, nan, nan, nan, nan, (), None, (), f"this sweep cannot say: {error}")
    # As many chances to be contradicted as there are cells with an interval; after many looks, as there are cells, so
    # that the level is the same at all of them.
    once = results.looks == "once"
    chances = max(1, sum(len(sample.differences) > 1 for sample in samples)) if once else len(samples)
    return _together(claim, [_judge_cell(claim, sample, chances, results.looks) for sample in samples])


def beyond_seeds(results: Results, claim: Claim) -> str:
    """Return why no number of seeds can decide the claim; "" if they can.

    A cell that lacks a figure or a pair, or has a failed trial, is kept from the word that its pairs speak for, and
    more seeds do not mend it. Then only a cell that speaks against the claim, and may, can still decide it.
    """
    try:
        samples = samples_of(results, claim)
    except ConfigError as error:
        return f"this sweep cannot say: {error}"
    stuck = []
    for sample in samples:
        cell = _judge_cell(claim, sample, len(samples), results.looks)
        possible: tuple[Word, ...] = (_leaning(claim, cell.effect),)
        if not sample.differences:  # pairs may come where trials failed, and none where a side has no trial
            possible = ("held", "not held") if any(sample.failed) else ()
        possible = tuple(word for word in possible if word not in _forbidden(claim, sample))
        if not possible:
            stuck.append(cell)
        elif "not held" in possible:
            return ""
    return stuck[0].why if stuck else ""


def _forbidden(claim: Claim, sample: Sample) -> tuple[Word, ...]:
    """Return the words that a cell may not have, since what is left out of it would flatter one side."""
    if not all(map(math.isfinite, sample.differences.values())):
        return "held", "not held"
    against, in_favour = sample.failed
    if claim.kind == "equal":
        against, in_favour = against | in_favour, against & in_favour
    seeds: dict[Word, frozenset[int]] = {"held": against, "not held": in_favour}
    return tuple(word for word, failed in seeds.items() if failed)


def _samples(results: Results, claim: Claim) -> list[Sample]:
    """The cells of a claim: every place at which one of its two settings has a trial."""
    if claim.leads:
        return _differences_of_leads(results, claim)
    check_metric(results, claim.metric)
    check_axes(results, [*claim.better, *claim.worse, *claim.where])
    shared = [name for name in claim.better if name in claim.worse]
    others = [axis.name for axis in results.axes if axis.name not in shared]
    sides: list[dict[Any, Group]] = []
    for picked, side in zip(claim.sides, (claim.better, claim.worse), strict=False):
        found = grouped(results, [*others, *shared], claim.metric, picked)
        wanted = setting_label({**claim.where, **claim.better, **claim.worse, **side})
        if not found:
            raise ConfigError("setting", wanted, "has no trial", "add it to the search space")
        sides.append({key([group.setting[name] for name in others]): group for group in found})
        require(len(sides[-1]) == len(found), "setting", wanted, "is more than one setting", "name its fields, too")
    better, worse = sides[0], sides[-1]
    sign = 1 if claim.larger_is_better else -1
    samples = []
    for place in dict.fromkeys([*better, *worse]):
        pair = [side[place] for side in sides if place in side]
        cell = {name: pair[0].setting[name] for name in others}
        if claim.kind == "above":
            finished = better[place].by_seed()
        else:
            finished = better[place].minus(worse[place]) if len(pair) == 2 else {}
        samples.append(
            Sample(
                f"at {setting_label(cell)}" if cell else "",
                cell,
                {seed: sign * value for seed, value in finished.items()},
                sum(group.statuses.total() - group.statuses["finished"] - group.statuses["failed"] for group in pair),
                (_failed(better, place), _failed(worse, place) if claim.kind != "above" else frozenset()),
            )
        )
    return samples


def _differences_of_leads(results: Results, claim: Claim) -> list[Sample]:
    """Return the lead at ``where`` less that at ``than``, seed by seed; a failure in any of the four hides either."""

    def apart(one: Sample) -> dict[str, Any]:
        return {name: value for name, value in one.cell.items() if name not in claim.than}

    of_leads = [_samples(results, lead) for lead in claim.leads]
    larger, smaller = sides = [{key(apart(one)): one for one in samples} for samples in of_leads]
    one_each = [*map(len, sides)] == [*map(len, of_leads)]
    require(one_each, "than", setting_label(claim.than), "is more than one setting", "name its fields, too")
    found = []
    for place in dict.fromkeys([*larger, *smaller]):
        pair = [side[place] for side in (larger, smaller) if place in side]
        cell = apart(pair[0])
        first, second = (one.differences for one in (pair[0], pair[-1]))
        differences = {seed: first[seed] - second[seed] for seed in first if seed in second and len(pair) == 2}
        failed = frozenset[int]().union(*(seeds for one in pair for seeds in one.failed))
        label = f"at {setting_label(cell)}" if cell else ""
        found.append(Sample(label, cell, differences, sum(one.left_out for one in pair), (failed, failed)))
    return found


def _failed(side: Mapping[Any, Group], place: Any) -> frozenset[int]:
    return frozenset(side[place].failed if place in side else ())


def _average(samples: list[Sample]) -> Sample:
    """Over the cells, for each seed that has all of them."""
    common = set.intersection(*(set(sample.differences) for sample in samples))
    means = {seed: float(np.mean([sample.differences[seed] for sample in samples])) for seed in sorted(common)}
    left_out = sum(sample.left_out for sample in samples)
    better, worse = (frozenset[int]().union(*(sample.failed[side] for sample in samples)) for side in (0, 1))
    return Sample(f"on average over {len(samples)} cells", {}, means, left_out, (better, worse))


def _judge_cell(claim: Claim, sample: Sample, chances: int, looks: str) -> CellVerdict:
    values, margin, rule = list(sample.differences.values()), claim.margin, INTERVAL_RULES[looks]
    level = 1 - (1 - CONFIDENCE) / chances
    figures = difference(values, CONFIDENCE, rule)
    wide_low, wide_high = interval(values, level, rule)
    if claim.kind != "equal":
        held, contradicted = figures.low > margin, wide_high <= margin
        p, border = sign_flip(values, margin, "greater"), margin
    else:
        held = -margin <= figures.low and figures.high <= margin
        contradicted = wide_low > margin or wide_high < -margin
        p = max(
            sign_flip(values, -margin, "greater"), sign_flip(values, margin, "less")
        )  # both sides must be ruled out
        border = math.copysign(margin, figures.mean)
    forbidden, leaning = _forbidden(claim, sample), _leaning(claim, figures.mean)
    effect_level = CONFIDENCE if leaning == "held" else level
    word: Word = "held" if held else "not held" if contradicted else "undecided"
    verdict = CellVerdict(
        cell=sample.cell,
        verdict="undecided" if word in forbidden else word,
        effect=figures.mean,
        low=figures.low,
        high=figures.high,
        wide_low=wide_low,
        wide_high=wide_high,
        p=p if "held" not in forbidden and looks == "once" else math.nan,
        seeds=tuple(sample.differences),
        seeds_to_decide=None if leaning in forbidden else seeds_needed(values, border, effect_level, rule),
        why="",
    )
    return dataclasses.replace(verdict, why=_reason(claim, sample, verdict, level))


def _speaks_for(claim: Claim, effect: float) -> bool:
    return abs(effect) <= claim.margin if claim.kind == "equal" else effect > claim.margin


def _leaning(claim: Claim, effect: float) -> Word:
    return "held" if _speaks_for(claim, effect) else "not held"


def _reason(claim: Claim, sample: Sample, cell: CellVerdict, level: float) -> str:
    """One sentence for a reader, without full stop."""
    pairs, failures = len(sample.differences), _failures(claim, sample)
    if failures and (not pairs or _leaning(claim, cell.effect) in _forbidden(claim, sample)):
        said = f"{failures}, and to leave that out would flatter one side"
        return f"{sample.place} {said}; {AGAIN}".strip()
    measured = quantity(claim.metric)
    margin, equal = _amount(measured, claim.margin), claim.kind == "equal"
    lacking = sum(not math.isfinite(value) for value in sample.differences.values())
    interval = f"the {100 * CONFIDENCE:g} % interval {_range(measured, cell.low, cell.high)}"
    wide = f"the {100 * level:g} % interval {_range(measured, cell.wide_low, cell.wide_high)}"
    if cell.verdict == "held":
        said = f"{interval} lies " + (f"within {margin} of 0" if equal else f"above {margin}")
    elif cell.verdict == "not held":
        said = f"{wide} lies " + (f"wholly more than {margin} from 0" if equal else f"nowhere above {margin}")
    elif pairs < 2:
        sides = "" if claim.kind == "above" else " on both sides"
        said = f"{'one seed has' if pairs else 'no seed has'} finished{sides}, and two are the least"
    elif lacking:
        said = f"{lacking} of {pairs} pairs have no {claim.metric}, and to leave them out would flatter one side"
    elif not all_equal(list(sample.differences.values())) and math.isnan(cell.wide_low):
        said = f"{pairs} seeds that are looked at one by one give no {100 * level:g} % interval yet"
    elif math.isnan(cell.wide_low):
        said = f"all {pairs} differences are {_amount(measured, cell.effect)}, too few to know their spread"
    else:
        border = math.copysign(claim.margin, cell.effect) if equal else claim.margin
        said = f"{interval if _speaks_for(claim, cell.effect) else wide} contains {_amount(measured, border)}"
    trials = "1 trial that did not finish is" if sample.left_out == 1 else f"{sample.left_out} unfinished trials are"
    out = f" ({trials} left out)" if sample.left_out else ""
    return f"{sample.place} {said}{out}{f'; {failures}' if failures else ''}".strip()


def _failures(claim: Claim, sample: Sample) -> str:
    """Say which side failed on which seeds."""
    if claim.than:
        return f"a side of a lead failed on {numbered('seed', sorted(sample.failed[0]))}" if sample.failed[0] else ""
    told = []
    for side, seeds in zip((claim.better, claim.worse), sample.failed, strict=True):
        name = setting_label({axis: value for axis, value in side.items() if axis not in sample.cell}) or "the setting"
        told += [f"{name} failed on {numbered('seed', sorted(seeds))}"] if seeds else []
    return " and ".join(told)


def _range(measured: Quantity, low: float, high: float) -> str:
    return f"{measured.difference(low)} to {measured.difference(high, unit=True)}"


def _amount(measured: Quantity, value: float) -> str:
    return measured.difference(value, unit=True).removeprefix("+") if value else "0"


def _together(claim: Claim, cells: list[CellVerdict]) -> Verdict:
    words = [cell.verdict for cell in cells]
    word: Word = "not held" if "not held" in words else "held" if set(words) == {"held"} else "undecided"
    measured = [cell for cell in cells if math.isfinite(cell.effect)]
    resting = [cell for cell in measured if cell.verdict == word] or measured or cells
    worst = min(resting, key=lambda cell: -abs(cell.effect) if claim.kind == "equal" else cell.effect)
    why = next(cell.why for cell in [worst, *cells] if cell.verdict == word)
    if len(cells) > 1:
        why = f"{words.count(word)} of {len(cells)} cells {word}: {why}"
    return Verdict(
        claim=claim,
        verdict=word,
        effect=worst.effect,
        low=worst.low,
        high=worst.high,
        # np.max keeps a NaN: a cell that cannot be tested leaves the whole claim untested
        p=float(np.max([cell.p for cell in cells])),
        p_holm=math.nan,
        seeds=tuple(sorted({seed for cell in cells for seed in cell.seeds})),
        seeds_to_decide=_seeds_to_decide(claim, cells) if word == "undecided" else None,
        cells=tuple(cells),
        why=why,
    )


def _seeds_to_decide(claim: Claim, cells: list[CellVerdict]) -> int | None:
    """Cells against the claim decide it as soon as one is sure; otherwise all have to be. Cells of fewer than two
    seeds are taken to be like the others."""
    spread = [cell for cell in cells if len(cell.seeds) > 1]
    against = [cell for cell in spread if math.isfinite(cell.effect) and not _speaks_for(claim, cell.effect)]
    needed = [cell.seeds_to_decide for cell in against or spread]
    known = [count for count in needed if count is not None]
    if against:
        return min(known, default=None)
    return max(known) if known and len(known) == len(needed) else None
