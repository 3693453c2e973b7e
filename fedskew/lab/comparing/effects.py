"""How likely a difference is worth anything, beside whether it is there: what a verdict does not say.

:func:`practical`: how likely the mean difference lies below, within and above a region of practical equivalence
(Benavoli et al. 2017, "Time for a change: a tutorial for comparing multiple classifiers through Bayesian analysis").
With the flat prior the mean's posterior is Student's t around the mean of the paired differences, so these
probabilities, unlike p, are of what one wants to know. They do not depend on when one stopped to add seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its stats are imported at their first use

from engine.base.errors import ConfigError
from engine.results.claims import Claim
from engine.results.results import Results
from engine.results.statistics import Values
from fedskew.lab.comparing.intervals import all_equal, interval
from fedskew.lab.comparing.verdicts import Verdict, samples_of
from fedskew.lab.quantities import quantity

ROPE = 0.005  # half the width of the region of practical equivalence, of shares: half a point


@dataclass(frozen=True)
class Practical:
    """Where the mean difference lies, as probabilities that add up to 1; NaN where there is no interval of it."""

    below: float  # it is less than -width
    within: float
    above: float  # it is more than width


@dataclass(frozen=True)
class ClaimEffects:
    """Of a claim, positive in its favour."""

    rope: float  # NaN for a metric that is not a share, for which no such region was named
    cells: tuple[Practical, ...]  # of each cell of the verdict
    weakest: Practical  # of the cell whose mean difference speaks least for the claim


UNKNOWN = Practical(math.nan, math.nan, math.nan)


def effects_of(results: Results, claim: Claim, rope: float = ROPE) -> ClaimEffects:
    """Return what is known of a claim beside its verdict; all NaN where the sweep cannot say, or a trial failed."""
    width = rope if quantity(claim.metric).unit == "%" and claim.kind != "above" else math.nan
    try:
        samples = samples_of(results, claim)
    except ConfigError:
        return ClaimEffects(width, (), UNKNOWN)
    if any(any(sample.failed) for sample in samples):  # the pairs that ended would flatter the side that failed
        return ClaimEffects(width, (UNKNOWN,) * len(samples), UNKNOWN)
    differences = [list(sample.differences.values()) for sample in samples]
    cells = tuple(UNKNOWN if math.isnan(width) else practical(values, width) for values in differences)
    known = [(float(np.mean(values)), cell) for values, cell in zip(differences, cells, strict=True) if values]
    # Least for the claim: of "equal" the farthest from 0, else the lowest.
    farthest = min(known, key=lambda one: -abs(one[0]) if claim.kind == "equal" else one[0], default=(0.0, UNKNOWN))
    return ClaimEffects(width, cells, farthest[1])


def claim_values(verdict: Verdict, effects: ClaimEffects) -> dict[str, Any]:
    """Return a claim, its verdict and its effects as plain values by name, for a table or an object."""
    of_claim = ("text", "source", "metric", "margin", "kind")
    of_verdict = ("verdict", "effect", "low", "high", "p", "p_holm", "seeds", "seeds_to_decide", "why")
    return {
        **{name: getattr(verdict.claim, name) for name in of_claim},
        **{name: getattr(verdict, name) for name in of_verdict},
        "rope": effects.rope,
        **{name: getattr(effects.weakest, name) for name in ("below", "within", "above")},
    }


def practical(differences: Values, width: float, correlation: float = 0.0) -> Practical:
    """Say where the mean of paired differences lies against the region from ``-width`` to ``width``.

    correlation: between differences. Runs of different seeds share none; those of folds of a cross validation with K
    folds do, 1 / K (Nadeau and Bengio 2003). Of differences that are all equal, and enough of them for an interval of
    the verdicts' kind (6 at 95 %), all probability is where they are.
    """
    sample = np.asarray(differences, float)
    if not len(sample) or not np.isfinite(sample).all() or not math.isfinite(interval(sample)[0]):
        return Practical(math.nan, math.nan, math.nan)
    mean, n = float(sample.mean()), len(sample)
    if all_equal(sample):
        below, above = float(mean < -width), float(mean > width)
        return Practical(below, 1 - below - above, above)
    scale = float(sample.std(ddof=1)) * math.sqrt(1 / n + correlation / (1 - correlation))
    posterior = scipy.stats.t(n - 1, mean, scale)
    below, above = float(posterior.cdf(-width)), float(posterior.sf(width))
    return Practical(below, max(0.0, 1 - below - above), above)
