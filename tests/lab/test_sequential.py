"""The interval for seeds that are added until a claim is decided: its formula, its error under many looks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedskew.lab.comparing.intervals import PRIOR_VARIANCE, IntervalRule, anytime, interval, seeds_needed, student
from fedskew.lab.comparing.verdicts import Verdict, judge
from tests.lab.test_claims import CLAIM, against, results
from tests.support.samples import sample

MOST = 30  # seeds of a simulated sweep
SWEEPS = 1_000


def bayes_factor(values: np.ndarray, mean: float) -> float:
    """By its definition: over the spread with Haar's prior, and over the effect in standard deviations."""
    values = values - mean
    spreads = np.sqrt(np.mean(values**2)) * np.exp(np.linspace(-3, 6, 901))  # evenly in logarithms
    deviation = np.sqrt(PRIOR_VARIANCE)
    effects = np.linspace(-8, 8, 801) * deviation

    def likelihood(effect: np.ndarray) -> np.ndarray:
        """Of each effect and spread, [effects, spreads]."""
        return np.prod([stats.norm.pdf(one, effect[:, None] * spreads, spreads) for one in values], axis=0)

    prior = stats.norm.pdf(effects, scale=deviation) * (effects[1] - effects[0])
    return float((prior @ likelihood(effects)).sum() / likelihood(np.zeros(1)).sum())


def test_its_ends_are_where_the_bayes_factor_is_20() -> None:
    """Kills: a formula with a wrong power, degree of freedom or prior; an interval of another level, or of one side."""
    for n in (4, 7):
        values = sample(n, 0.3, 1.0)
        for end in interval(values, 0.95, anytime):
            assert bayes_factor(values, end) == pytest.approx(20, rel=1e-4)


def test_few_values_have_no_interval() -> None:
    """Kills: an interval of three seeds, whose figures can exclude nothing; infinities in a report."""
    assert [math.isinf(reach) for reach in anytime(np.arange(2, 6), 0.95)] == [True, True, False, False]
    assert all(map(math.isnan, interval(sample(3, 0.5, 0.01), 0.95, anytime)))
    counts = np.arange(4, 1001)
    assert np.all(anytime(counts, 0.95) > student(counts, 0.95))
    assert np.all(np.diff(anytime(counts, 0.95) / np.sqrt(counts)) < 0)


def test_equal_differences_are_looked_at_often_too() -> None:
    """Kills: two zeros that decide a claim, of a metric that is the same on half of the seeds; a rule of one look."""
    for value in (0.0, 0.01):
        assert math.isnan(interval([value] * 7, 0.95, anytime)[0])
        assert interval([value] * 8, 0.95, anytime) == pytest.approx((value, value))
    assert seeds_needed([0.0, 0.0], 0.01, 0.95, anytime) == 8
    draws = np.random.default_rng(0).integers(0, 2, (SWEEPS, MOST)) * 0.01  # better by a step on half of the seeds
    stopped = sum(any(interval(row[:n], 0.95, anytime)[1] <= 0 for n in range(2, MOST + 1)) for row in draws)
    assert stopped <= 0.05 * SWEEPS
    assert sum(row[:2].max() == 0 for row in draws) > 0.2 * SWEEPS  # where a look at two would have stopped


def ever_above(draws: np.ndarray, rule: IntervalRule) -> np.ndarray:
    """The number of seeds at which each row's interval first lies above 0; 0 if it never does. Looks from 2 on."""
    counts = np.arange(2, draws.shape[1] + 1)
    means = np.cumsum(draws, axis=1)[:, 1:] / counts
    squares = np.cumsum(draws**2, axis=1)[:, 1:] - counts * means**2
    above = means > rule(counts, 0.95) * np.sqrt(squares / (counts - 1) / counts)
    return np.where(above.any(axis=1), above.argmax(axis=1) + 2, 0)


def looked_at(differences: np.ndarray) -> Verdict:
    [found] = judge(replace(results({0.1: against(differences)}), looks="repeatedly"))
    return found


def test_a_wrong_claim_is_rarely_held_however_often_one_looks() -> None:
    """Kills: the t interval, or a level of 90 %, where seeds are added until decided; verdicts of another interval.

    1,000 sweeps with a true effect of zero, looked at after every seed from 2 to 30.
    """
    draws = np.random.default_rng(23).normal(size=(SWEEPS, MOST))
    first = ever_above(draws, anytime)
    held = np.flatnonzero(first)
    assert 5 <= len(held) <= 0.05 * SWEEPS  # 1.3 % in the long run
    assert np.count_nonzero(ever_above(draws, student)) > 0.1 * SWEEPS  # 14.8 %
    for number in held[:5]:
        words = [looked_at(0.01 * draws[number, :n]).verdict for n in (first[number] - 1, first[number])]
        assert words == ["undecided", "held"]


def test_a_right_claim_is_held_soon() -> None:
    """Kills: an interval so wide that nothing is ever decided."""
    draws = np.random.default_rng(24).normal(size=(SWEEPS, MOST))
    for effect, power, seeds in ((1.0, 0.95, 14.5), (2.0, 1.0, 7.0)):
        first = ever_above(draws + effect, anytime)
        assert np.mean(first > 0) >= power
        assert np.mean(np.where(first, first, MOST)) < seeds


def test_the_widened_level_is_the_same_at_every_look() -> None:
    """Kills: a level for as many cells as have two seeds by now."""
    values = sample(8, -0.2, 0.1)
    early = {0.1: against(values), 0.5: against([0.1])}
    late = {0.1: against(values), 0.5: against([0.1, 0.2])}
    first, second = (judge(replace(results(cells), looks="repeatedly"))[0].cells[0] for cells in (early, late))
    assert (first.wide_low, first.wide_high) == (second.wide_low, second.wide_high)


def test_it_says_how_many_seeds_would_decide() -> None:
    """Kills: the number of seeds of one look, at which this interval decides nothing yet; a p of one look."""
    found = looked_at(sample(4, 0.02, 0.02))
    n = found.seeds_to_decide
    assert found.verdict == "undecided"
    assert math.isnan(found.p)
    assert n is not None and n > (seeds_needed(sample(4, 0.02, 0.02)) or 0)
    assert [looked_at(sample(k, 0.02, 0.02, 5)).verdict for k in (n - 1, n)] == ["undecided", "held"]
    assert [looked_at(np.zeros(k)).verdict for k in (2, 7, 8)] == ["undecided", "undecided", "not held"]
    early = replace(results({0.1: against(sample(3, 0.02, 0.01))}, [CLAIM]), looks="repeatedly")
    assert "3 seeds that are looked at one by one give no 95 % interval yet" in judge(early)[0].why
