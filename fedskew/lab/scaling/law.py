"""Growth of throughput with actors: the universal scalability law, fitted to measurements, and what it predicts.

    X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1))

(N. J. Gunther, "A General Theory of Computational Scalability Based on Rational Functions", arXiv:0808.1431, 2008.)
``lambda`` is the throughput of one actor; ``sigma``, contention, is the share of the work that is done one after
another; ``kappa``, coherency, is what each pair of actors costs, and makes throughput fall again. With kappa = 0 it is
Amdahl's law.

N / X(N), the seconds of actors that a unit of work takes, is linear in (1 - sigma) / lambda, sigma / lambda and
kappa / lambda. So the fit is a linear least-squares problem with non-negative unknowns, which has one solution and
needs no first guess. Errors are relative, as those of timings are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from engine.base.errors import RunError
from engine.results.statistics import CONFIDENCE
from fedskew.lab.comparing.intervals import interval

Name = Literal["universal scalability law", "Amdahl's law"]
USL, AMDAHL = "universal scalability law", "Amdahl's law"
LEAST_TURNS = 3  # of every number of actors, for an interval


@dataclass(frozen=True)
class Law:
    """One curve."""

    rate: float  # lambda: throughput of one actor
    contention: float  # sigma, from 0 to 1
    coherency: float  # kappa, from 0

    def __call__(self, actors: float) -> float:
        """Throughput of so many actors, in the unit of ``rate``."""
        return self.rate * actors / (1 + self.contention * (actors - 1) + self.coherency * actors * (actors - 1))

    @property
    def peak(self) -> float:
        """The number of actors from which on more of them are slower; infinite where coherency is 0."""
        return math.sqrt((1 - self.contention) / self.coherency) if self.coherency > 0 else math.inf


@dataclass(frozen=True)
class Prediction:
    """Throughput that a fit expects of a number of actors; the interval is NaN where there is none."""

    actors: int
    value: float
    low: float
    high: float
    beyond: bool  # the range in which was measured
    note: str  # how far to trust it


@dataclass(frozen=True)
class Fit:
    """A law and what speaks for it and against it."""

    law: Law
    name: Name
    why: str  # this law and not the other
    counts: tuple[int, ...]  # of actors that were measured, ascending
    turns: tuple[Law, ...]  # fitted to each turn alone; none if there are too few

    @property
    def most(self) -> int:
        """Actors, of those that were measured."""
        return self.counts[-1]

    def predict(self, actors: int) -> Prediction:
        """Predict the throughput of so many actors, with Student's interval over turns.

        Each turn has a fit of its own, and their spread at ``actors`` is what the turns' noise does to the prediction.
        Whether the law holds there, no interval says.
        """
        value = self.law(actors)
        beyond = not self.counts[0] <= actors <= self.most
        low = high = math.nan
        if len(self.turns) >= LEAST_TURNS and not (beyond and self.name == AMDAHL and len(self.counts) == 2):
            apart = [math.log(law(actors) / value) for law in self.turns]
            below, above = interval(apart, CONFIDENCE)
            half = (above - below) / 2
            low, high = value * math.exp(-half), value * math.exp(half)
        return Prediction(actors, value, low, high, beyond, self._trust(beyond))

    def _trust(self, beyond: bool) -> str:
        few = "" if len(self.turns) >= LEAST_TURNS else f"fewer than {LEAST_TURNS} turns: no interval"
        if not beyond:
            return few or "within what was measured"
        texts = ["beyond what was measured"]
        if self.name == AMDAHL:
            texts.append("coherency is taken as 0: an upper bound" + (", no interval" if not few else ""))
        elif len(self.counts) == 3:
            texts.append("three counts fit any such law: nothing was left to test it")
        return "; ".join([*texts, few] if few else texts)


def fit(throughput: Mapping[int, Sequence[float]]) -> Fit:
    """The law that fits, by least squares of relative errors of N / X.

    ``throughput``: actors -> work per second in each turn, all of them as many turns, in the order in which they were
    measured. Two counts of actors identify rate and contention, so they are fitted with Amdahl's law; from three on it
    is the universal scalability law. Raises :class:`RunError` for one count, and for data that no such law follows.
    """
    counts = sorted(throughput)
    rows = np.array([throughput[count] for count in counts], dtype=float)  # [counts, turns]
    if len(counts) < 2:
        raise RunError(f"actors={counts}: one count says nothing about scaling; measure at least two, better four")
    if not (np.isfinite(rows).all() and (rows > 0).all() and counts[0] >= 1):
        raise RunError("throughput must be positive, and of at least one actor each; measure again")
    name: Name = AMDAHL if len(counts) == 2 else USL
    why = {
        2: "two counts of actors identify contention at most; coherency is taken as 0",
        3: "three counts of actors, as many as the law has parameters: residuals cannot speak against it",
    }.get(len(counts), f"{len(counts)} counts of actors, more than the law has parameters")
    means = np.exp(np.log(rows).mean(axis=1))
    law = least_squares(counts, means, name)
    turns = [least_squares(counts, turn, name) for turn in rows.T] if rows.shape[1] >= LEAST_TURNS else []
    return Fit(law, name, why, tuple(counts), tuple(turns))


def least_squares(actors: Sequence[int], throughput: Sequence[float] | np.ndarray, name: Name = USL) -> Law:
    """Fit a law by least squares of relative errors: the sum over points of (1 - fitted / measured)^2 in N / X.

    Contention is kept in [0, 1] and coherency at 0 or above.
    """
    counts, measured = np.asarray(actors, dtype=float), np.asarray(throughput, dtype=float)
    terms = [np.ones_like(counts), counts, counts * (counts - 1)][: 3 if name == USL else 2]
    # N / X = parallel + serial N + crosstalk N (N - 1), each row by what was measured of it.
    found, _ = nnls(np.stack(terms, axis=1) * (measured / counts)[:, None], np.ones_like(counts))
    parallel, serial, crosstalk = (*found, 0.0)[:3]
    alone = parallel + serial  # 1 / lambda
    if not alone > 0:
        raise RunError(
            f"actors={list(actors)}: throughput collapses faster than any scaling law; measure one actor too"
        )
    return Law(float(1 / alone), float(serial / alone), float(crosstalk / alone))
