"""The evaluations that metrics over several rounds are taken from: those of one scope, those of the last ten rounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def comparable(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select those of the same scope as the last one: accuracies of global and of personal models do not compare."""
    return [row for row in evaluations if row["scope"] == evaluations[-1]["scope"]]


def of_last_rounds(
    evaluations: Sequence[Mapping[str, Any]], last: int, without_rounds: Collection[str] = ()
) -> list[float]:
    """Return the accuracies in the ten rounds up to ``last``, of a lineage's evaluations in their order.

    Where a stage without rounds came last, that is its accuracy alone: it is of another model than those of the rounds.
    """
    if evaluations and evaluations[-1]["stage"] in without_rounds:
        return [evaluations[-1]["accuracy"]]
    return [row["accuracy"] for row in evaluations if last - 10 < row["round"] <= last]


def local_of_last_rounds(rounds: Sequence[Mapping[str, Any]], last: int) -> list[float]:
    """Return the local models' mean accuracies in the ten rounds up to ``last``, of those that measured them.

    rounds: a lineage's rows of rounds.parquet. A stage without rounds trains nobody, so it does not stand alone here.
    """
    measured = [row for row in rounds if math.isfinite(row["local_accuracy"])]
    return [row["local_accuracy"] for row in measured if last - 10 < row["round"] <= last]
