"""The mean of the last ten rounds: which evaluations it is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any


def of_last_rounds(
    evaluations: Sequence[Mapping[str, Any]], last: int, without_rounds: Collection[str] = ()
) -> list[float]:
    """The accuracies in the ten rounds up to ``last``, of a lineage's evaluations in their order.

    Where a stage without rounds came last, its accuracy alone: it is of another model than those of the rounds.
    """
    if evaluations and evaluations[-1]["stage"] in without_rounds:
        return [evaluations[-1]["accuracy"]]
    return [row["accuracy"] for row in evaluations if last - 10 < row["round"] <= last]
