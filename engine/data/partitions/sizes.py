"""Labels without skew: clients of one size, of Dirichlet sizes, or of sizes that are given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from engine.base.declared import Doc, Gt
from engine.base.errors import require
from engine.data.partitions.dealing import dirichlet_shares
from engine.data.partitions.partition import Partition
from engine.data.samples.assignment import Assignment
from engine.data.samples.dataset import largest_remainder

Sizes = Literal["linear", "square", "exponential"] | tuple[float | int, ...]  # int: counts; else shares


def check_sizes(sizes: Sizes, clients: int) -> None:
    """Raise :class:`ConfigError` unless ``sizes`` are those of ``clients`` clients, see :class:`GivenSizes`."""
    if isinstance(sizes, str):
        return
    repair = "for example sizes=[200, 300, 500], sizes=[0.2, 0.3, 0.5] or sizes=linear"
    sound = bool(sizes) and all(0 <= size < math.inf for size in sizes)
    require(sound, "sizes", list(sizes), "must have numbers from 0 on", repair)
    total = math.fsum(sizes)
    rule = f"must add up to 1 where they are shares, not to {total:g}"
    require(_are_counts(sizes) or abs(total - 1) <= 1e-6, "sizes", list(sizes), rule, repair)
    require(
        clients == len(sizes),
        "clients",
        clients,
        f"is not the number of sizes, {len(sizes)}",
        f"set it to {len(sizes)}",
    )


def client_sizes(sizes: Sizes, clients: int, samples: int) -> np.ndarray:
    """Divide ``samples`` by what :class:`GivenSizes` says: int64 [K] with that sum.

    Raises :class:`ConfigError` where ``sizes`` are counts with another sum.
    """
    if isinstance(sizes, str):
        number = np.arange(1, clients + 1, dtype=float)
        # e^(k - K) in place of e^k: the same shares, without overflow
        weights = {"linear": number, "square": number**2, "exponential": np.exp(number - clients)}[sizes]
        return largest_remainder(samples, weights / weights.sum())
    if not _are_counts(sizes):
        return largest_remainder(samples, np.array(sizes))
    total = int(sum(sizes))
    require(
        total == samples,
        "partition.sizes",
        list(sizes),
        f"add up to {total}, but there are {samples} training samples",
        f"set data.train_samples={total}" if 0 < total < samples else "change them, or give shares that add up to 1",
    )
    return np.array(sizes, dtype=np.int64)


def _are_counts(sizes: tuple[float | int, ...]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _cut(rng: np.random.Generator, sizes: np.ndarray) -> Assignment:
    """Cut a random permutation of all samples into parts of ``sizes`` int64 [K]."""
    return Assignment(tuple(np.split(rng.permutation(sizes.sum()), np.cumsum(sizes)[:-1])))


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """A random permutation in K parts whose sizes differ by at most one."""

    def draw(self, rng, labels, num_classes, owners):
        return Assignment(tuple(np.array_split(rng.permutation(len(labels)), self.clients)))


@dataclass(frozen=True, kw_only=True)
class Quantity(Partition):
    """Sizes ~ N * Dir(alpha) over the clients, content at random (NIID-Bench's quantity skew)."""

    alpha: Annotated[float, Gt(0), Doc("Dirichlet concentration of the clients' sizes, small is skewed")] = 0.5

    def draw(self, rng, labels, num_classes, owners):
        return _cut(rng, largest_remainder(len(labels), dirichlet_shares(rng, self.alpha, self.clients, 1)[0]))


@dataclass(frozen=True, kw_only=True)
class GivenSizes(Partition):
    """Sizes that are given, content at random.

    sizes: of each client its number of samples (whole numbers with the sum N), or its share of all (fractions with the
    sum 1); or ``linear``, ``square``, ``exponential``: shares proportional to k, k^2, e^k for k = 1, ..., K. Shares
    become counts by largest remainder. By ``exponential`` only the last dozen clients have more than a few of 100,000
    samples.
    """

    sizes: Annotated[
        Sizes,
        Doc(
            "training samples of each client, whose sum is N; or shares of them, whose sum is 1; or shares "
            "proportional to k, k^2, e^k for k = 1, ..., K"
        ),
    ] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fixed("where the sizes of clients are given")
        check_sizes(self.sizes, self.clients)

    def draw(self, rng, labels, num_classes, owners):
        return _cut(rng, client_sizes(self.sizes, self.clients, len(labels)))
