"""The stragglers of a round, and how much of its work each of them does: keyed draws of the section ``work``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engine.algorithm import Local, seeds
from engine.experiment import Work


def draw_stragglers(seed: int, round: int, cohort: Sequence[int], clients: np.ndarray, work: Work) -> tuple[int, ...]:
    """Draw those of ``cohort`` whose work is drawn, ascending: a share of it, or once a run of all ``clients``."""
    among = clients if work.drawn == "run" else np.array(cohort)
    rng = seeds.numpy_generator(seed, "stragglers", _round(round, work))
    drawn = {*rng.choice(among, size=_share_of(len(among), work), replace=False).tolist()}
    return tuple(client for client in cohort if client in drawn)


def work_of(seed: int, round: int, clients: Iterable[int], work: Work, local: Local) -> dict[int, float]:
    """Draw the epochs, or steps, of each of these clients, which depend on the seed, the round and its number alone."""
    low, high = work.span(local)
    keys = {client: (seed, "work", _round(round, work), client) for client in clients}
    return {client: int(seeds.numpy_generator(*key).integers(low, high + 1)) for client, key in keys.items()}


def expected_without_dropped(cohort: float, clients: int, work: Work) -> float:
    """Return how many of ``cohort`` clients, a mean, of all ``clients`` are expected to train.

    Where stragglers are drawn in each round, it is exact for a cohort of one size.
    """
    if work.cut == "partial":
        return cohort
    return (
        cohort * (1 - _share_of(clients, work) / clients) if work.drawn == "run" else cohort - _share_of(cohort, work)
    )


def _share_of(clients: float, work: Work) -> int:
    return int(work.share * clients + 1e-9)  # 0.9 * 10 may be 8.999999999999998


def _round(round: int, work: Work) -> int:
    return 0 if work.drawn == "run" else round
