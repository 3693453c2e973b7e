"""A round's time by what runs side by side in it, fitted to measurements; and what that predicts for other actors.

A round of work W (seconds of workers, all together), whose longest block takes b, on N actors:

    parts side by side   max(W / N, b)      the workers' training
                         D                  results on their way into the driver
                         A                  the driver's additions; on paper those of actors along a tree
    least time           S + the longest of these, S being what nothing runs beside: draw, broadcast, aggregation
    most time            S + W / N + (1 - 1 / N) b + D + A + R

Any rule that leaves no actor idle while a block waits ends training by W / N + (1 - 1 / N) b (R. L. Graham, "Bounds on
multiprocessing timing anomalies", 1969), so that a round lies between the two. R is what measured rounds took beyond
that, and nobody's seconds hold: Ray, a network, what actors add, what goes on between rounds. Where a round lies
between the two, from 0 (the shorter parts hide behind the longest) to 1 (nothing overlaps), is measured, and taken to
be the same for other actors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from engine.results.statistics import CONFIDENCE

LEAST_TURNS = 3  # measured, for the noise between them
ALONE = ("draw", "broadcast", "aggregation")  # phases that nothing runs beside
BINDING = {
    "training": "the workers' training",
    "longest": "the longest block",
    "transfer": "the results' way into the driver",
    "addition": "the additions of uploads",
    "draw": "the draw of the cohort",
    "broadcast": "the broadcast",
    "aggregation": "the aggregation",
    "evaluation": "the evaluation",
}


@dataclass(frozen=True)
class Parts:
    """What a round takes, in seconds."""

    training: float  # of all workers together
    longest: float  # of a block
    transfer: float
    addition: float
    alone: Mapping[str, float] = field(default_factory=dict)  # by phase: nothing runs beside it
    rest: float = 0.0  # that is in none of them

    def scaled(self, blocks: float, sums: float) -> Parts:
        """Return the parts of the same round in so many times the blocks, of which so many times the sums come in."""
        alone = {phase: seconds * (blocks if phase == "broadcast" else 1) for phase, seconds in self.alone.items()}
        into_driver = self.transfer * sums, self.addition * sums
        return Parts(self.training, self.longest / blocks, *into_driver, alone, self.rest * blocks)

    def terms(self, actors: int) -> dict[str, float]:
        """Return the seconds of everything that a round may wait for, by the names of :data:`BINDING`."""
        side_by_side = {"training": self.training / actors, "longest": self.longest}
        return {**side_by_side, "transfer": self.transfer, "addition": self.addition, **self.alone}

    def binding(self, actors: int) -> str:
        """Name what takes longest."""
        terms = self.terms(actors)
        return BINDING[max(terms, key=lambda name: terms[name])]

    def bounds(self, actors: int) -> tuple[float, float]:
        """Return the least time and the most."""
        alone, trained = sum(self.alone.values()), self.training / actors
        least = max(trained, self.longest, self.transfer, self.addition)
        most = trained + (1 - 1 / actors) * self.longest + self.transfer + self.addition + self.rest
        return alone + least, alone + most

    @property
    def enough(self) -> float:
        """Actors from which on something else than the workers' training takes longest; infinite where nothing is."""
        other = max(self.longest, self.transfer, self.addition)
        return math.ceil(self.training / other) if other > 0 else math.inf


@dataclass(frozen=True)
class Prediction:
    """Rounds per second that a fit expects of a number of actors."""

    actors: int
    value: float
    low: float
    high: float
    beyond: bool  # the range in which was measured
    note: str  # what binds, and how far to trust it


@dataclass(frozen=True)
class Fit:
    """The parts of a round for each number of actors that was measured."""

    parts: Mapping[int, Parts]  # by actors, ascending
    apart: float  # where between the least time and the most rounds lay, from 0 to 1
    noise: float  # the logarithm by which one more turn lies apart from the model, with 95 % chance; NaN: too few turns
    blocks: Callable[[int], int] | None = None  # of a round on so many actors; None: as many on any number
    one_sum: bool = False  # of all blocks comes in, which the actors add, and not one of each

    @property
    def most(self) -> int:
        """The most actors that were measured."""
        return max(self.parts)

    def near(self, actors: int) -> int:
        """Return the measured number of actors whose parts are taken: the next below, since cores are shared."""
        return max((count for count in self.parts if count <= actors), default=min(self.parts))

    def predict(self, actors: int) -> Prediction:
        """Predict rounds per second from the parts of the :meth:`near` number of actors.

        The interval holds all between the least time and the most, widened by the turns' noise.
        """
        near = self.near(actors)
        more = self.blocks(actors) / self.blocks(near) if self.blocks else 1.0
        parts = self.parts[near].scaled(more, 1.0 if self.one_sum else more)
        least, most = parts.bounds(actors)
        value, wider = least + self.apart * (most - least), math.exp(self.noise if math.isfinite(self.noise) else 0)
        beyond = not min(self.parts) <= actors <= self.most
        texts = [f"bound by {parts.binding(actors)}"] + ["beyond what was measured"] * beyond
        texts += [f"fewer than {LEAST_TURNS} turns: the interval leaves out their noise"] * math.isnan(self.noise)
        return Prediction(actors, 1 / value, 1 / (wider * most), wider / least, beyond, "; ".join(texts))


def fit(
    turns: Sequence[tuple[int, Parts, float]], blocks: Callable[[int], int] | None = None, one_sum: bool = False
) -> Fit:
    """Fit turns: for each its actors, the parts of a round in it, and the seconds that a round took.

    Of the turns of one number of actors the parts are those of the median one. blocks, one_sum: see :class:`Fit`.
    """
    found: dict[int, list[tuple[float, Parts]]] = {}
    for actors, parts, seconds in sorted(turns, key=lambda turn: (turn[0], turn[2])):
        rest = max(seconds - parts.bounds(actors)[1], 0.0)
        found.setdefault(actors, []).append((seconds, replace(parts, rest=rest)))
    took = np.array([seconds for of in found.values() for seconds, _ in of])
    least, most = np.array([parts.bounds(actors) for actors, of in found.items() for _, parts in of]).T
    room = (most - least).sum()
    apart = max(float((took - least).sum() / room), 0.0) if room > 0 else 0.0
    off, noise = np.log(took / (least + apart * (most - least))), math.nan
    if min(map(len, found.values())) >= LEAST_TURNS:
        quantile = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(off) - 1)
        noise = float(quantile * off.std(ddof=1) * math.sqrt(1 + 1 / len(off)))
    parts = {actors: of[(len(of) - 1) // 2][1] for actors, of in found.items()}
    return Fit(parts, apart, noise, blocks, one_sum)
