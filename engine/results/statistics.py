"""A sample of a handful of seeds in figures: mean, standard deviation and a bootstrap interval of the mean.

The interval assumes no shape, but resampling n values cannot see a spread wider than theirs: a nominal 95 % covers
about 70 % at n = 3, and 88 % at n = 10. It is a picture, and no decision is made by it: claims are decided by the
intervals of paired differences in fedskew/lab/comparing/intervals.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its stats are imported at their first use: they take longer than all else here

from engine.algorithm.seeds import numpy_generator

CONFIDENCE = 0.95
RESAMPLES = 9_999  # of the bootstrap

Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Summary:
    """Figures of one sample; NaN where it is too small for a figure."""

    n: int
    mean: float
    std: float  # ddof=1
    low: float  # bootstrap interval of the mean
    high: float


def summarise(values: Values, confidence: float = CONFIDENCE) -> Summary:
    """Mean, standard deviation and bootstrap interval of the values that are numbers.

    The same values give the same interval, whenever it is asked for.
    """
    sample = finite(values)
    low, high = _bootstrap(sample, confidence)
    return Summary(len(sample), mean(sample), std(sample), low, high)


def _bootstrap(sample: np.ndarray, confidence: float) -> tuple[float, float]:
    """BCa, or the percentile interval where BCa has no value, as for equal values."""
    if len(sample) < 2:
        return math.nan, math.nan
    low = high = math.nan
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
        low, high = float(interval.low), float(interval.high)
        if math.isfinite(low) and math.isfinite(high):
            break
    return low, high


def finite(values: Values) -> np.ndarray:
    """Return the values that are numbers."""
    sample = np.asarray(values, float)
    return sample[np.isfinite(sample)]


def mean(sample: np.ndarray) -> float:
    """Return the mean; NaN of no value."""
    return float(sample.mean()) if len(sample) else math.nan


def std(sample: np.ndarray) -> float:
    """Return the standard deviation with ddof=1; NaN below two values."""
    return float(sample.std(ddof=1)) if len(sample) > 1 else math.nan
