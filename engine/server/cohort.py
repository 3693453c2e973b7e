"""Which clients take part in a round: a keyed draw among those that hold data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.algorithm import seeds
from engine.experiment import Participation


def draw_cohort(
    seed: int, round: int, clients: Sequence[int] | np.ndarray, participation: Participation
) -> tuple[int, ...]:
    """Draw the clients of a round, ascending: without replacement, or by one coin per client."""
    rng = seeds.numpy_generator(seed, "cohort", round)
    expected = expected_cohort(len(clients), participation)
    if participation.scheme == "binomial":
        coins = rng.random(len(clients)) < expected / len(clients)
        return tuple(np.asarray(clients)[coins].tolist())
    return tuple(sorted(rng.choice(np.asarray(clients), size=int(expected), replace=False).tolist()))


def expected_cohort(clients: int, participation: Participation) -> float:
    """Return the expected size of a cohort; for a fixed fraction max(floor(K c), 1) (McMahan et al. 2017, Alg. 1)."""
    if participation.count is not None:
        return float(participation.count)
    if participation.fraction is None:
        return float(clients)
    if participation.scheme == "binomial":
        return participation.fraction * clients
    return float(max(int(participation.fraction * clients + 1e-9), 1))  # 0.29 * 100 is 28.999999999999996
