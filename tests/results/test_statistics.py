"""Statistics of a handful of seeds, against scipy, against counting by hand, and against simulation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from engine.results.statistics import summarise
from fedskew.lab.comparing.intervals import anytime, difference, holm, interval, seeds_needed, sign_flip
from tests.support.samples import sample


def t_test(values: np.ndarray, center: float) -> float:
    found: Any = stats.ttest_1samp(values, center)
    return float(found.pvalue)


# --- one sample ---------------------------------------------------------------------------------------


def test_summary_of_a_sample() -> None:
    """Kills: ddof=0; an interval of something other than the mean; a one-sided or a 90 % interval."""
    values = sample(12, 0.6, 0.05, seed=3)
    found = summarise(values)
    assert (found.n, found.mean, found.std) == pytest.approx((12, 0.6, 0.05))
    rng = np.random.default_rng(1)  # another generator than ours
    scipy = stats.bootstrap((values,), np.mean, n_resamples=50_000, method="BCa", rng=rng).confidence_interval
    assert (found.low, found.high) == pytest.approx((scipy.low, scipy.high), abs=0.0015)
    assert 0.02 < found.high - found.low < 0.08


def test_a_summary_is_the_same_each_time() -> None:
    """Kills: a generator that goes on from the last call, so that two reports of one sweep differ."""
    values = sample(10, 0.6, 0.05)  # with 3 values every generator gives the same interval
    assert summarise(values) == summarise(values.tolist())


def test_small_and_equal_samples() -> None:
    """Kills: an interval from one value; NaN for equal values, where BCa has no answer; a NaN that is averaged."""
    one = summarise([0.5])
    assert one.n == 1 and one.mean == 0.5 and all(map(math.isnan, (one.std, one.low, one.high)))
    empty = summarise([])
    assert empty.n == 0 and math.isnan(empty.mean)
    equal = summarise([0.5, 0.5, 0.5])
    assert (equal.std, equal.low, equal.high) == (0.0, 0.5, 0.5)
    assert summarise([0.4, math.nan, 0.6]) == summarise([0.4, 0.6])
    two = summarise([0.4, 0.6])
    assert 0.4 <= two.low < 0.5 < two.high <= 0.6


# --- paired differences -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_the_paired_interval_is_students(n: int) -> None:
    """Kills: an unpaired interval, normal quantiles, n in place of n - 1, the wrong sign."""
    rng = np.random.default_rng(n)
    luck = rng.normal(size=n)
    a, b = luck + 0.1 * rng.normal(size=n) + 0.2, luck + 0.1 * rng.normal(size=n)
    found = difference(a - b)
    for confidence in (0.95, 0.99):
        scipy = stats.ttest_rel(a, b).confidence_interval(confidence)
        assert interval(a - b, confidence) == pytest.approx((scipy.low, scipy.high))
    assert (found.low, found.high) == interval(a - b)
    assert (found.n, found.mean, found.std) == pytest.approx((n, np.mean(a - b), np.std(a - b, ddof=1)))
    assert found.p == sign_flip(a - b)


def test_a_pair_with_a_gap_is_left_out() -> None:
    """Kills: gaps that make everything NaN."""
    assert difference([0.5, math.nan, math.nan, 0.9]) == difference([0.5, 0.9])
    assert difference([math.nan]).n == 0


def test_the_interval_of_equal_differences() -> None:
    """Kills: an interval of width 0 around an accident of rounding, or around the ties of a metric that is the same on
    half of all seeds and better by far on the others; no verdict on settings that are the same."""
    assert all(map(math.isnan, [*interval([0.01]), *interval([0.0] * 5)]))
    assert interval([0.0] * 6) == (0.0, 0.0)
    draws = np.random.default_rng(0).integers(0, 2, (1_000, 6)) * np.random.default_rng(1).uniform(5, 15, (1_000, 6))
    for count in range(2, 7):
        assert np.mean([interval(row[:count])[1] <= 0 for row in draws]) <= 0.025, count
    steps = [0.71 - 0.7, 0.81 - 0.8, 0.91 - 0.9, 0.61 - 0.6, 0.51 - 0.5, 0.41 - 0.4]  # equal but for rounding
    assert all(map(math.isnan, interval(steps[:5])))
    assert interval(steps) == pytest.approx((0.01, 0.01))
    assert all(map(math.isnan, interval(steps, 0.99)))  # 2 / 2^6 > 0.01


@pytest.mark.slow
def test_coverage_with_three_seeds() -> None:
    """Kills: a bootstrap interval that decides: with 3 seeds it is right 7 times in 10, Student's 95 times in 100."""
    rng = np.random.default_rng(5)
    draws = rng.normal(size=(600, 3))
    student = [low <= 0 <= high for low, high in map(interval, draws)]
    bootstrap = [found.low <= 0 <= found.high for found in map(summarise, draws)]
    assert 0.93 < np.mean(student) < 0.97
    assert 0.65 < np.mean(bootstrap) < 0.78


def test_there_is_no_p_of_many_looks() -> None:
    """Kills: the p of one look beside an interval that holds at every look."""
    assert math.isnan(difference([0.1, 0.2, 0.3, 0.1, 0.2], rule=anytime).p)


# --- sign flips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # only all + and all - are as far out
        ([3, -1, 2], 4 / 8),  # 4: beside it 6, -4 and -6
        ([1, -1], 1.0),
        ([0.0, 0.0, 0.0], 1.0),
        ([0.5], 1.0),
        ([0.3 - 0.2, 0.2 - 0.1, 0.9 - 0.8], 2 / 8),  # equal but for rounding
        ([0.3 - 0.2, 0.2 - 0.1, 0.8 - 0.9], 1.0),  # |sum| is 0.1 or 0.3: rounding must not split the ties
    ],
)
def test_sign_flips_counted_by_hand(differences: list[float], p: float) -> None:
    """Kills: a one-sided p; ``>`` for ``>=``; sums that differ in their last bit only counted as different."""
    assert sign_flip(differences) == p


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_sign_flips_against_scipy(n: int) -> None:
    """Kills: sums of subsets in place of flips; a sampled p for a small n; a center that is ignored."""
    for seed in range(5):
        values = np.random.default_rng([n, seed]).normal(0.4, 1, size=n)
        for center in (0.0, 0.3):
            scipy = stats.permutation_test((values - center,), np.mean, permutation_type="samples", n_resamples=10_000)
            assert sign_flip(values, center) == pytest.approx(scipy.pvalue)
            flips = np.array(list(itertools.product([-1, 1], repeat=n)))
            sums = np.abs(flips @ (values - center))
            counted = np.mean(sums >= abs(np.sum(values - center)) - 1e-9)
            assert sign_flip(values, center) == pytest.approx(counted)


@pytest.mark.parametrize("alternative", ["greater", "less"])
def test_one_sided_sign_flips_against_scipy(alternative: Any) -> None:
    """Kills: the other side; half of the two-sided p, whatever the sign; a side that is lost where flips are drawn."""
    for n in (3, 7, 25):
        values = np.random.default_rng(n).normal(0.2, 1, size=n)
        for center in (0.0, 0.4):
            scipy = stats.permutation_test(
                (values - center,), np.mean, permutation_type="samples", alternative=alternative, rng=1
            )
            assert sign_flip(values, center, alternative) == pytest.approx(scipy.pvalue, abs=0 if n < 20 else 0.02)
    assert sign_flip([1, 2, 3], 0.0, alternative) == (1 / 8 if alternative == "greater" else 1)


def test_the_smallest_p_of_n_seeds() -> None:
    """Kills: sampling below 21 seeds; p = 0."""
    for n in (3, 5, 10, 20):
        assert sign_flip(np.arange(1, n + 1)) == 2 / 2**n
    assert math.isnan(sign_flip([])) and math.isnan(sign_flip([math.nan]))


def test_many_sign_flips_are_sampled_and_repeatable() -> None:
    """Kills: 2^25 sums; a p that differs from call to call."""
    values = sample(25, 0.4, 1.0)
    assert sign_flip(values) == sign_flip(values)
    assert sign_flip(values) == pytest.approx(t_test(values, 0), abs=0.01)


# --- Holm ---------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    """Kills: Bonferroni, Benjamini and Hochberg, factors in the wrong order, values that fall below a smaller one's.

    Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2 = 0.06, 0.04 * 1 raised to 0.06.
    """
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_at_its_ends() -> None:
    """Kills: p above 1; a missing p that counts as a test; a crash on none."""
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([0.02, math.nan, 0.03])[[0, 2]] == pytest.approx([0.04, 0.04])
    assert math.isnan(holm([0.02, math.nan, 0.03])[1])
    assert holm([]).tolist() == []


# --- how many seeds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "std", "margin"), [(0.02, 0.02, 0.0), (0.02, 0.03, 0.01), (-0.01, 0.02, 0.0)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_seeds_needed_are_enough_and_one_less_is_not(mean: float, std: float, margin: float, confidence: float) -> None:
    """Kills: normal quantiles, an n off by one, a margin or a level that is ignored, the n of the sample at hand."""
    needed = seeds_needed(sample(4, mean, std), margin, confidence)
    assert needed is not None and needed > 4
    assert seeds_needed(sample(3, mean, std, seed=1), margin, confidence) == needed
    enough, short = sample(needed, mean, std, seed=2), sample(needed - 1, mean, std, seed=3)
    assert t_test(enough, margin) < 1 - confidence < t_test(short, margin)
    for values, decided in ((enough, True), (short, False)):
        low, high = interval(values, confidence)
        assert (low > margin or high < margin) is decided


def test_seeds_needed_has_no_answer() -> None:
    """Kills: a number from one seed, for an effect on the margin, or beyond all bounds."""
    assert seeds_needed([0.01]) is None
    assert seeds_needed([0.01, 0.03], margin=0.02) is None
    assert seeds_needed([-0.01, 0.01]) is None
    assert seeds_needed(sample(5, 0.0001, 0.02)) is None
    assert seeds_needed([0.01, 0.01]) == seeds_needed([0.0, 0.0], margin=0.01) == seeds_needed([0.0, 0.0]) == 6
