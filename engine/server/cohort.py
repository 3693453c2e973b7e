"""The clients that take part in a round: a keyed draw among those that can train and are there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.algorithm import seeds
from engine.experiment import Participation


def held_out_of(seed: int, holders: np.ndarray, participation: Participation) -> np.ndarray:
    """Return the clients that never train, ascending, int64 [n]: those named, or a draw without replacement.

    holders: those that hold data, ascending. A share c of K holders is max(floor(K c), 1).
    """
    wanted = participation.held_out
    if isinstance(wanted, tuple):
        return np.array(wanted)
    count = wanted if isinstance(wanted, int) else max(int(wanted * len(holders) + 1e-9), 1)
    if not count:
        return holders[:0]
    rng = seeds.numpy_generator(seed, "held out")
    return np.sort(rng.choice(holders, size=count, replace=False))


def draw_cohort(
    seed: int, round: int, clients: Sequence[int] | np.ndarray, participation: Participation
) -> tuple[int, ...]:
    """Draw the clients of a round, ascending: without replacement, or by one coin per client.

    clients: those that can train. Only clients that are there are drawn; where fewer are there than are asked for, all
    of them.
    """
    clients = np.asarray(clients)
    everybody = participation.table is None and participation.availability == 1  # then no mask of all is made
    rng = seeds.numpy_generator(seed, "cohort", round)
    wanted = expected_cohort(len(clients), participation)
    if participation.scheme == "binomial":
        coins = rng.random(len(clients)) < wanted / len(clients)
        drawn = coins if everybody else coins & is_present(seed, round, clients, participation)
        return tuple(clients[drawn].tolist())
    there = clients if everybody else clients[is_present(seed, round, clients, participation)]
    if not len(there):
        return ()
    return tuple(sorted(rng.choice(there, size=min(int(wanted), len(there)), replace=False).tolist()))


def is_present(seed: int, round: int, clients: np.ndarray, participation: Participation) -> np.ndarray:
    """Return which of ``clients`` are there in a round, bool [n].

    By a rate each has a coin of its own, which depends on the seed, the round and its number alone.
    """
    table = participation.table
    if table is not None:
        return np.isin(clients, table.present(round))
    rate = participation.availability
    assert isinstance(rate, float)
    if rate == 1 or not len(clients):
        return np.ones(len(clients), dtype=bool)
    coins = seeds.numpy_generator(seed, "availability", round).random(int(clients.max()) + 1)
    return (coins < rate)[clients]


def expected_cohort(clients: int, participation: Participation) -> float:
    """Return the size of a cohort where all ``clients`` are there, of ``binomial`` the expected one.

    For a fixed fraction c of K clients it is max(floor(K c), 1) (McMahan et al. 2017, Alg. 1).
    """
    if participation.count is not None:
        return float(participation.count)
    if participation.fraction is None:
        return float(clients)
    if participation.scheme == "binomial":
        return participation.fraction * clients
    return float(max(int(participation.fraction * clients + 1e-9), 1))  # 0.29 * 100 is 28.999999999999996


def mean_cohort(clients: Sequence[int] | np.ndarray, participation: Participation) -> float:
    """Return the mean size of cohorts among ``clients``, those that can train, where they come and go.

    By a rate the number of clients that are there is binomial. By a table it is known, and the mean is over the rounds
    that the table names, so that it depends neither on the round nor on how many rounds a run has.
    """
    wanted = expected_cohort(len(clients), participation)
    table = participation.table
    if table is not None:
        there, rounds = table.levels(np.asarray(clients))
        sizes = there * (wanted / len(clients)) if participation.scheme == "binomial" else np.minimum(wanted, there)
        return float(np.average(sizes, weights=rounds))
    rate = participation.availability
    assert isinstance(rate, float)
    if rate == 1:
        return wanted
    if participation.scheme == "binomial" or wanted == len(clients):
        return rate * wanted
    return _expected_minimum(int(wanted), len(clients), rate)


def _expected_minimum(most: int, trials: int, rate: float) -> float:
    """Return E[min(most, N)] of a binomial N, of ``trials`` coins of probability ``rate`` below 1."""
    log_rate, log_other, log_all = math.log(rate), math.log1p(-rate), math.lgamma(trials + 1)
    below = 0.0  # E[most - N] where N is below it
    for there in range(most):
        ways = log_all - math.lgamma(there + 1) - math.lgamma(trials - there + 1)
        below += (most - there) * math.exp(ways + there * log_rate + (trials - there) * log_other)
    return most - below
