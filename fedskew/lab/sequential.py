"""Intervals that hold however often one looks: for seeds that are added one by one until a claim is decided.

A t interval is right for one look at seeds that were chosen before. Looked at after every seed, it excludes the true
mean sooner or later far more often than it says. The intervals here are a confidence sequence: with 95 % chance they
hold the true mean at every number of seeds at once, so that one may stop at any of them, for any reason.

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

import numpy as np

from engine.results.statistics import Reach, student

# g. The prior's effects have a standard deviation of sqrt(2): between one standard deviation of the differences and
# two, which is what a claim needs to be decided by a handful of seeds. Chosen before any claim was judged by it; the
# error rate is the same for each g, and seeds to a decision hardly differ between 1 and 4.
PRIOR_VARIANCE = 2.0


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


def _equal(confidence: float) -> int:
    """Return how many equal differences are no accident: 8 at 95 %.

    Of a fair coin's n tosses, all alike: the factor against fairness with a uniform prior is 2^n / (n + 1), which is a
    bet like B and excludes fairness where it reaches 1 / a. Of zeros it excludes that half of all seeds differ.
    """
    count = 1
    while 2**count / (count + 1) < 1 / (1 - confidence):
        count += 1
    return count


anytime = Reach(_anytime, _equal)


def fewest(confidence: float) -> int:
    """Return the number of values from which on an interval of that confidence has two ends."""
    counts = np.arange(2, 100)
    return int(counts[np.isfinite(anytime(counts, confidence))][0])


# How often the seeds of a sweep were looked at -> what its intervals are made with, and what they are called.
REACHES: dict[str, Reach] = {"once": student, "repeatedly": anytime}
INTERVALS = {"once": "t interval", "repeatedly": "anytime-valid interval"}
