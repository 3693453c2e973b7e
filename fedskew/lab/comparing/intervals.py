"""Intervals and tests for a handful of seeds: paired differences, exact p-values, Holm, how many seeds are enough.

A simulation has 3 to 10 seeds, and that decides what is used for what:

- A difference of two settings is taken seed by seed and has a t interval (:data:`student`). The t quantile pays for the
  unknown spread (4.3 standard errors at n = 3, 2.3 at n = 10), so it covers what it says from n = 2 on if the
  differences are about normal. Claims are decided by it.
- Where seeds are added one by one until a claim is decided, the interval must hold at every look (:data:`anytime`): a t
  interval that is looked at after every seed excludes the true mean sooner or later far more often than it says.
- The sign-flip p-value (:func:`sign_flip`) needs symmetry only and is exact, but no two-sided p is below 2 / 2^n: 0.25
  with 3 seeds, 0.0625 with 5; a one-sided one can be half of that. It stands beside an interval; with fewer than 6
  seeds it cannot reject at 5 % two-sided at all.

The anytime-valid interval is a confidence sequence: with 95 % chance it holds the true mean at every number of seeds at
once, so that one may stop at any of them, for any reason.

Source: Wang and Ramdas 2024, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance"
(the scale-invariant t mixture, after Lai 1976, "On confidence sequences"). For n differences with mean x, standard
deviation s (n - 1 degrees of freedom) and t = sqrt(n) (x - m) / s, the Bayes factor against "the mean is m", with
Haar's prior on the spread and N(0, g) on the effect in standard deviations, is

    B(m) = (1 + n g)^(-1/2) [(1 + t^2 / (n - 1)) / (1 + t^2 / ((n - 1) (1 + n g)))]^(n/2)

If m is true, it is above 1 / a at any time with chance a at most (Ville's inequality). The interval of level 1 - a are
all m with B(m) < 1 / a. It holds for differences that are about normal, as the t interval does; docs/deciding.md has
what was simulated, and how it fares with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its stats are imported at their first use: they take longer than all else here

from engine.algorithm.seeds import numpy_generator
from engine.results.statistics import CONFIDENCE, Values, finite, mean, std

ENUMERATED = 20  # up to as many differences all sign flips are counted: a million
FLIPS = 99_999  # drawn beyond
MOST_SEEDS = 1_000  # if more would be needed, an effect is on the margin for all purposes
# g. The prior's effects have a standard deviation of sqrt(2): between one standard deviation of the differences and
# two, which is what a claim needs to be decided by a handful of seeds. Chosen before any claim was judged by it; the
# error rate is the same for each g, and seeds to a decision hardly differ between 1 and 4.
PRIOR_VARIANCE = 2.0


@dataclass(frozen=True)
class IntervalRule:
    """How far an interval reaches to either side of the mean, in standard errors.

    errors: numbers of values and a confidence -> standard errors. equal: a confidence -> how many values make an
    interval where all of them are equal, so that there is no standard error.
    """

    errors: Callable[[np.ndarray, float], np.ndarray]
    equal: Callable[[float], int]

    def __call__(self, counts: np.ndarray, confidence: float) -> np.ndarray:
        return self.errors(counts, confidence)


def _student(counts: np.ndarray, confidence: float) -> np.ndarray:
    return scipy.stats.t.ppf((1 + confidence) / 2, np.asarray(counts) - 1)


def _seeds_of_one_sign(confidence: float) -> int:
    """Return how many differences of one sign the sign-flip test needs: 2 / 2^n <= 1 - confidence."""
    return math.ceil(1 - math.log2(1 - confidence))


def _anytime(counts: np.ndarray, confidence: float) -> np.ndarray:
    """Return how many standard errors the interval of ``counts`` values reaches to either side of their mean.

    Infinite while no figures could exclude anything: with fewer than four values at 95 %.
    """
    counts = np.asarray(counts, float)
    spread = 1 + counts * PRIOR_VARIANCE
    # B < 1 / a, solved for t: (1 + u) / (1 + u / spread) < bound, where u is t^2 / (n - 1).
    bound = (np.sqrt(spread) / (1 - confidence)) ** (2 / counts)
    bounded = bound < spread
    square = (bound - 1) / np.where(bounded, 1 - bound / spread, 1)
    return np.where(bounded, np.sqrt((counts - 1) * square), np.inf)


def _equal_tosses(confidence: float) -> int:
    """Return how many equal differences are no accident: 8 at 95 %.

    Of a fair coin's n tosses, all alike: the factor against fairness with a uniform prior is 2^n / (n + 1), which is a
    bet like B and excludes fairness where it reaches 1 / a. Of zeros it excludes that half of all seeds differ.
    """
    count = 1
    while 2**count / (count + 1) < 1 / (1 - confidence):
        count += 1
    return count


student = IntervalRule(_student, _seeds_of_one_sign)
anytime = IntervalRule(_anytime, _equal_tosses)

# How often the seeds of a sweep were looked at -> the rule of its intervals, and what they are called.
INTERVAL_RULES = {"once": student, "repeatedly": anytime}
INTERVALS = {"once": "t interval", "repeatedly": "anytime-valid interval"}


def fewest(confidence: float) -> int:
    """Return the number of values from which on an interval of that confidence has two ends."""
    counts = np.arange(2, 100)
    return int(counts[np.isfinite(anytime(counts, confidence))][0])


@dataclass(frozen=True)
class Difference:
    """Figures of two samples, pair by pair; NaN where there are too few pairs for a figure."""

    n: int
    mean: float
    std: float  # of the differences, ddof=1
    low: float  # t interval of the mean difference, or of another rule
    high: float
    p: float  # exact two-sided sign-flip test of no difference; of one look, so NaN with a rule for many


def difference(differences: Values, confidence: float = CONFIDENCE, rule: IntervalRule = student) -> Difference:
    """Return the figures of paired differences that have been taken already; NaN is left out."""
    sample = finite(differences)
    low, high = interval(sample, confidence, rule)
    p = sign_flip(sample) if rule is student else math.nan
    return Difference(len(sample), mean(sample), std(sample), low, high, p)


def interval(differences: Values, confidence: float = CONFIDENCE, rule: IntervalRule = student) -> tuple[float, float]:
    """Return the interval of the mean by that rule; NaN below 2 values, and where the interval is infinite.

    Equal differences have no spread to make an interval from. That can be an accident of rounding (accuracies come in
    steps of one test image), of zeros too: where half of all seeds are ties, two begin with ties in one sweep of four.
    So the exact test takes over: the interval is that one value once n seeds of one sign reject at this level (6 seeds
    at 95 %; ``rule.equal``), and NaN before.
    """
    sample = finite(differences)
    n = len(sample)
    if n < 2:
        return math.nan, math.nan
    if all_equal(sample):
        value = mean(sample) if n >= rule.equal(confidence) else math.nan
        return value, value
    half = float(rule(np.asarray(n), confidence)) * std(sample) / math.sqrt(n)
    if math.isinf(half):
        return math.nan, math.nan
    return mean(sample) - half, mean(sample) + half


def level_with(best: Mapping[int, float], other: Mapping[int, float], settings: int) -> bool:
    """Return whether the best of so many settings is no better than another: the interval of the difference holds 0.

    best, other: the figure of each seed; best may be the other. Differences are paired by seed, and the interval is of
    level 1 - 0.05 / (settings - 1), since each of the others has a chance to be told from the best.
    """
    differences = [value - best[seed] for seed, value in other.items() if seed in best]
    low, high = interval(differences, 1 - (1 - CONFIDENCE) / max(settings - 1, 1))
    return low <= 0 <= high or (len(differences) > 0 and not any(differences))  # few zeros have no interval


def sign_flip(
    differences: Values, center: float = 0.0, alternative: Literal["two-sided", "greater", "less"] = "two-sided"
) -> float:
    """The p of "the differences are symmetric about ``center``"; NaN if there are none.

    The share of all sign flips whose sum is at least as far from 0; or, one-sided, at least as large or as small. All
    2^n are counted up to n = 20; beyond, 99,999 are drawn with a fixed key.
    """
    sample = finite(differences) - center
    if not len(sample):
        return math.nan
    if len(sample) > ENUMERATED:
        rng = numpy_generator(0, "sign flips")
        found = scipy.stats.permutation_test(
            (sample,),
            np.sum,
            permutation_type="samples",
            n_resamples=FLIPS,
            vectorized=True,
            alternative=alternative,
            rng=rng,
        )
        return float(found.pvalue)
    # scipy enumerates too, but in Python: 4 s for n = 20, where this takes 20 ms
    sums = np.zeros(1)
    for value in sample:
        sums = np.concatenate([sums - value, sums + value])
    tolerance = 1e-12 * np.abs(sample).sum()  # sums that are equal but for rounding count as equal
    found = sample.sum()
    if alternative == "two-sided":
        sums, found = np.abs(sums), abs(found)
    elif alternative == "less":
        sums, found = -sums, -found
    return float(np.mean(sums >= found - tolerance))


def holm(p_values: Values) -> np.ndarray:
    """P-values adjusted for their number (Holm 1979): the family-wise error stays below the level.

    The k-th smallest of m is multiplied by m - k + 1, and none may be below a smaller one's. NaN stays NaN and is not
    counted.
    """
    p_values = np.asarray(p_values, float)
    adjusted = np.full(p_values.shape, math.nan)
    tested = np.flatnonzero(~np.isnan(p_values))
    order = tested[np.argsort(p_values[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1.0)
    return adjusted


def seeds_needed(
    differences: Values, margin: float = 0.0, confidence: float = CONFIDENCE, rule: IntervalRule = student
) -> int | None:
    """The smallest n at which the interval excludes ``margin``, if mean and spread stay what they are now.

    They will not stay exactly, so with that many seeds the chance of a decision is about one half: a lower bound for
    planning. None below 2 values, for an effect on the margin, and if it would take more than 1,000 seeds. Differences
    that are all equal need as many as make an interval, which decides on the margin, too.
    """
    sample = finite(differences)
    if len(sample) < 2:
        return None
    if all_equal(sample):
        return rule.equal(confidence)
    if _on(mean(sample), margin):
        return None
    ratio = std(sample) / abs(mean(sample) - margin)
    counts = np.arange(2, MOST_SEEDS + 1)
    enough = rule(counts, confidence) * ratio < np.sqrt(counts)
    return int(counts[np.argmax(enough)]) if enough.any() else None


def _on(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12)


def all_equal(differences: Values) -> bool:
    """Return whether all differences are one value, but for rounding."""
    sample = finite(differences)
    return bool(np.allclose(sample, sample[0], rtol=1e-9, atol=1e-12))
