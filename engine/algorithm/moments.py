"""Moments of features by class that can be merged: count, mean, and the scatter about the mean.

The scatter is M2 = sum_j (z_j - mean) (z_j - mean)^T = (n - 1) Sigma, in float64. Two sets of rows are merged by
Chan, Golub and LeVeque's pairwise update, which subtracts means before it squares them: for features far from zero
sum z z^T - n mean mean^T loses the digits that matter (spec 1.6: 17 % of the smallest eigenvalue in float32).

A symmetric matrix travels as its upper triangle, row by row: d (d + 1) / 2 words; a diagonal one as d.

Shapes: n rows, d features, w words of a scatter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

PARTS = ("count", "mean", "scatter")


@dataclass(frozen=True)
class Moments:
    """The moments of one set of rows, in float64. Those of no rows are the identity of :func:`merged`."""

    count: Tensor  # [] n
    mean: Tensor  # [d]
    scatter: Tensor  # [w], packed

    @property
    def covariance(self) -> Tensor:
        """The covariance [w], packed, with n - 1 in the denominator; needs two rows."""
        return self.scatter / (self.count - 1)


def words(features: int, diagonal: bool = False) -> int:
    """Return the number of words of a scatter."""
    return features if diagonal else features * (features + 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """Pack a symmetric matrix: [d, d] -> [d (d + 1) / 2]."""
    return matrix.reshape(-1).index_select(0, _upper(len(matrix), matrix.device))


@lru_cache(maxsize=1)
def _upper(features: int, device: torch.device) -> Tensor:
    """The places of the upper triangle in a matrix [d, d] read row by row: a quarter of its memory.

    It is looked up for every class of every client, and a mask takes five times as long to be read as these.
    """
    rows = torch.arange(features, device=device, dtype=torch.int32)
    return (rows[:, None] * features + rows)[rows[:, None] <= rows]


def unpack(packed: Tensor, features: int) -> Tensor:
    """Undo :func:`pack`: [d (d + 1) / 2], or [d] of a diagonal matrix, -> [d, d]."""
    if len(packed) == features:
        return packed.diag()
    row, column = torch.triu_indices(features, features, device=packed.device)
    matrix = packed.new_empty(features, features)
    matrix[row, column] = packed
    matrix[column, row] = packed
    return matrix


def moments_of(z: Tensor, diagonal: bool = False) -> Moments:
    """Return the moments of the rows ``z`` [n, d]; one row has no scatter."""
    z = z.double()
    count = torch.tensor(float(len(z)), dtype=torch.float64, device=z.device)
    mean = z.sum(0) / count.clamp(min=1)
    centred = z - mean
    return Moments(count, mean, centred.square().sum(0) if diagonal else pack(centred.T @ centred))


def merged(a: Moments, b: Moments) -> Moments:
    """Return the moments of both sets of rows together. Associative and commutative but for rounding."""
    count = a.count + b.count
    share = b.count / count.clamp(min=1)
    delta = b.mean - a.mean
    outer = delta.square() if len(a.scatter) == len(delta) else pack(torch.outer(delta, delta))
    scatter = torch.addcmul(a.scatter + b.scatter, a.count * share, outer)
    return Moments(count, a.mean + share * delta, scatter)


# --- as a message -----------------------------------------------------------------------------------------


def to_message(by_class: Mapping[int, Moments]) -> dict[str, Tensor]:
    """Write as ``3/count`` [], ``3/mean`` [d], ``3/scatter`` [w]: 1 + d + w words for each class that is there."""
    return {f"{number}/{part}": getattr(m, part) for number, m in by_class.items() for part in PARTS}


def from_message(message: Mapping[str, Tensor]) -> dict[int, Moments]:
    """Undo :func:`to_message`, in ascending class."""
    numbers = sorted({int(name.partition("/")[0]) for name in message})
    return {number: Moments(*(message[f"{number}/{part}"] for part in PARTS)) for number in numbers}


def merge(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """Merge two messages into one, class by class: the ``reduce`` of ``clients.map``."""
    one, other = from_message(a), from_message(b)
    both = {number: merged(one[number], other[number]) for number in one.keys() & other.keys()}
    return to_message({**one, **other, **both})
