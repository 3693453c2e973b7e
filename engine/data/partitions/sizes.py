"""Labels without skew: clients of one size, or of Dirichlet sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.data.assignment import Assignment
from engine.data.dataset import largest_remainder
from engine.data.partitions.dealing import check_alpha, dirichlet_shares
from engine.data.partitions.partition import Partition


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """A random permutation in K parts whose sizes differ by at most one."""

    def draw(self, rng, labels, num_classes, owners):
        return Assignment(tuple(np.array_split(rng.permutation(len(labels)), self.clients)))


@dataclass(frozen=True, kw_only=True)
class Quantity(Partition):
    """Sizes ~ N * Dir(alpha) over the clients, content at random (NIID-Bench's quantity skew)."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)

    def draw(self, rng, labels, num_classes, owners):
        sizes = largest_remainder(len(labels), dirichlet_shares(rng, self.alpha, self.clients, 1)[0])
        return Assignment(tuple(np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])))
