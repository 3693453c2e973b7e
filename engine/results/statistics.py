"""Statistics of a handful of seeds: intervals, paired differences, exact p-values, Holm, how many seeds are enough.

A simulation has 3 to 10 seeds, and that decides what is used for what:

- The mean of one setting is shown with a bootstrap interval (:func:`summarise`). It assumes no shape, but resampling n
  values cannot see a spread wider than theirs: a nominal 95 % covers about 70 % at n = 3, and 88 % at n = 10. It is a
  picture, and no decision is made by it.
- A difference of two settings is taken seed by seed and has a t interval (:func:`t_interval`). The t quantile pays for
  the unknown spread (4.3 standard errors at n = 3, 2.3 at n = 10), so it covers what it says from n = 2 on if the
  differences are about normal. Claims are decided by it.
- The sign-flip p-value (:func:`sign_flip`) needs symmetry only and is exact, but no two-sided p is below 2 / 2^n: 0.25
  with 3 seeds, 0.0625 with 5; a one-sided one can be half of that. It stands beside an interval; with fewer than 6
  seeds it cannot reject at 5 % two-sided at all.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its stats are imported at their first use: they take longer than all else here

from engine.algorithm.seeds import numpy_generator

CONFIDENCE = 0.95
RESAMPLES = 9_999  # of the bootstrap
ENUMERATED = 20  # up to as many differences all sign flips are counted: a million
FLIPS = 99_999  # drawn beyond
MOST_SEEDS = 1_000  # if more would be needed, an effect is on the margin for all purposes

Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Reach:
    """How far an interval reaches to either side of the mean.

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


student = Reach(_student, _seeds_of_one_sign)  # right for one look


@dataclass(frozen=True)
class Summary:
    """Figures of one sample; NaN where it is too small for a figure."""

    n: int
    mean: float
    std: float  # ddof=1
    low: float  # bootstrap interval of the mean
    high: float


@dataclass(frozen=True)
class Difference:
    """Figures of two samples, pair by pair; NaN where there are too few pairs for a figure."""

    n: int
    mean: float
    std: float  # of the differences, ddof=1
    low: float  # t interval of the mean difference, or of another reach
    high: float
    p: float  # exact two-sided sign-flip test of no difference; of one look, so NaN with a reach for many


def summarise(values: Values, confidence: float = CONFIDENCE) -> Summary:
    """Mean, standard deviation and bootstrap interval of the values that are numbers.

    The same values give the same interval, whenever it is asked for.
    """
    sample = _numbers(values)
    low, high = _bootstrap(sample, confidence)
    return Summary(len(sample), _mean(sample), _std(sample), low, high)


def _bootstrap(sample: np.ndarray, confidence: float) -> tuple[float, float]:
    """BCa, or the percentile interval where BCa has no value, as for equal values."""
    if len(sample) < 2:
        return math.nan, math.nan
    found = math.nan, math.nan
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # DegenerateDataWarning and what numpy says on the way
            interval = scipy.stats.bootstrap(
                (sample,),
                np.mean,
                n_resamples=RESAMPLES,
                confidence_level=confidence,
                method=method,
                rng=numpy_generator(0, "bootstrap"),
            ).confidence_interval
        found = float(interval.low), float(interval.high)
        if all(map(math.isfinite, found)):
            break
    return found


def paired(a: Values, b: Values, confidence: float = CONFIDENCE) -> Difference:
    """``a - b`` for samples aligned by seed; a pair with a NaN is left out."""
    return difference(np.asarray(a, float) - np.asarray(b, float), confidence)


def difference(differences: Values, confidence: float = CONFIDENCE, reach: Reach = student) -> Difference:
    """Return the figures of paired differences that have been taken already; NaN is left out."""
    sample = _numbers(differences)
    low, high = interval(sample, confidence, reach)
    p = sign_flip(sample) if reach is student else math.nan
    return Difference(len(sample), _mean(sample), _std(sample), low, high, p)


def t_interval(differences: Values, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean; see :func:`interval`."""
    return interval(differences, confidence, student)


def interval(differences: Values, confidence: float, reach: Reach) -> tuple[float, float]:
    """Return the interval of the mean with that reach; NaN below 2 values, and where the reach is infinite.

    Equal differences have no spread to make an interval from. That can be an accident of rounding (accuracies come in
    steps of one test image), of zeros too: where half of all seeds are ties, two begin with ties in one sweep of four.
    So the exact test takes over: the interval is that one value once n seeds of one sign reject at this level (6 seeds
    at 95 %; ``reach.equal``), and NaN before.
    """
    sample = _numbers(differences)
    n = len(sample)
    if n < 2:
        return math.nan, math.nan
    if all_equal(sample):
        value = _mean(sample) if n >= reach.equal(confidence) else math.nan
        return value, value
    half = float(reach(np.asarray(n), confidence)) * _std(sample) / math.sqrt(n)
    if math.isinf(half):
        return math.nan, math.nan
    return _mean(sample) - half, _mean(sample) + half


def sign_flip(
    differences: Values, center: float = 0.0, alternative: Literal["two-sided", "greater", "less"] = "two-sided"
) -> float:
    """The p of "the differences are symmetric about ``center``"; NaN if there are none.

    The share of all sign flips whose sum is at least as far from 0; or, one-sided, at least as large or as small. All
    2^n are counted up to n = 20; beyond, 99,999 are drawn with a fixed key.
    """
    sample = _numbers(differences) - center
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
    differences: Values, margin: float = 0.0, confidence: float = CONFIDENCE, reach: Reach = student
) -> int | None:
    """The smallest n at which the interval excludes ``margin``, if mean and spread stay what they are now.

    They will not stay exactly, so with that many seeds the chance of a decision is about one half: a lower bound for
    planning. None below 2 values, for an effect on the margin, and if it would take more than 1,000 seeds. Differences
    that are all equal need as many as make an interval, which decides on the margin, too.
    """
    sample = _numbers(differences)
    if len(sample) < 2:
        return None
    if all_equal(sample):
        return reach.equal(confidence)
    if _on(_mean(sample), margin):
        return None
    ratio = _std(sample) / abs(_mean(sample) - margin)
    counts = np.arange(2, MOST_SEEDS + 1)
    enough = reach(counts, confidence) * ratio < np.sqrt(counts)
    return int(counts[np.argmax(enough)]) if enough.any() else None


def _numbers(values: Values) -> np.ndarray:
    sample = np.asarray(values, float)
    return sample[np.isfinite(sample)]


def _mean(sample: np.ndarray) -> float:
    return float(sample.mean()) if len(sample) else math.nan


def _std(sample: np.ndarray) -> float:
    return float(sample.std(ddof=1)) if len(sample) > 1 else math.nan


def _on(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12)


def all_equal(differences: Values) -> bool:
    """Return whether all differences are one value, but for rounding."""
    sample = _numbers(differences)
    return bool(np.allclose(sample, sample[0], rtol=1e-9, atol=1e-12))
