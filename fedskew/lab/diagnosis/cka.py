"""Linear CKA: how alike two networks see the same inputs (Kornblith et al. 2019, arXiv:1905.00414).

X [n, p] and Y [n, q] are activations of the same n inputs, one row each (a feature map is flattened); everything is in
float64 from there on. With columns centred,

    biased     ||Y'X||_F^2 / (||X'X||_F ||Y'Y||_F)
    unbiased   HSIC_1(X, Y) / sqrt(HSIC_1(X, X) HSIC_1(Y, Y)), from n = 4 on (Song et al. 2012; Nguyen et al. 2021)

The biased form lies in [0, 1] and is far from 0 for unrelated X and Y unless n is much larger than p and q: see
:func:`chance`. The unbiased form is 0 on average there, and may be negative.

What both need of one network is its centred activations [n, p], or the centred Gram matrix [n, n] where p > n
(:class:`Profile`): with it and its diagonal, any pair costs one product. Constant activations have no similarity: NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from engine.base.errors import require

Estimator = Literal["biased", "unbiased"]

LEAST_ROWS = 4  # HSIC_1 divides by n (n - 3)
SMALLEST = 1e-12  # a denominator below this is that of constant activations
COLUMNS = 4096  # of activations that a Gram matrix is summed over at a time


@dataclass(frozen=True)
class Profile:
    """A network's part of any similarity: its centred activations [n, p], or their Gram matrix [n, n]."""

    matrix: Tensor
    squares: Tensor  # [n], the diagonal of the Gram matrix
    is_gram: bool
    width: int  # p

    @property
    def rows(self) -> int:
        return len(self.squares)


def profile(activations: Any) -> Profile:
    """Make the profile of activations [n, ...], the Gram matrix where p > n."""
    x = torch.as_tensor(activations).flatten(1)
    rows, width = x.shape
    require(rows >= LEAST_ROWS, "n", rows, f"must be at least {LEAST_ROWS} probe inputs", "take more")
    if width <= rows:
        x = x.double()
        x = x - x.mean(0)
        return Profile(x, x.square().sum(1), False, width)
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=x.device)
    for part in x.split(COLUMNS, dim=1):  # float64 copies of a slice only
        part = part.double()
        part = part - part.mean(0)
        gram.addmm_(part, part.T)
    return Profile(gram, gram.diagonal().clone(), True, width)


def inner(a: Profile, b: Profile) -> tuple[float, float]:
    """Return <HKH, HLH>_F and HSIC_1(K, L) of two profiles of the same inputs: biased, unbiased.

    With centred Gram matrices the rows of K with its diagonal d set to zero add up to -d, so that HSIC_1
    (Song et al. 2012, eq. 5) needs nothing but the full inner product and the two diagonals.
    """
    n = a.rows
    if a.is_gram != b.is_gram:
        a, b = _as_gram(a), _as_gram(b)
    full = float((a.matrix * b.matrix).sum() if a.is_gram else (b.matrix.T @ a.matrix).square().sum())
    d, e = a.squares, b.squares
    both, alone = float(d @ e), float(d.sum() * e.sum())
    hsic = full - both + alone / ((n - 1) * (n - 2)) - 2 * both / (n - 2)
    return full, hsic / (n * (n - 3))


def _as_gram(one: Profile) -> Profile:
    return one if one.is_gram else Profile(one.matrix @ one.matrix.T, one.squares, True, one.width)


def similarity(between: float, own: float, other: float) -> float:
    """CKA from an inner product and the two of each network with itself; NaN where one of them is constant."""
    squared = own * other
    if not (own > 0 and other > 0 and math.sqrt(squared) >= SMALLEST):
        return math.nan
    return between / math.sqrt(squared)


def chance(rows: int, p: int, q: int) -> float:
    """About what the biased estimator says of unrelated activations [n, p] and [n, q].

    From the expectations of the three norms for independent Gaussian entries.
    """
    return math.sqrt(p * q / ((rows - 1 + p) * (rows - 1 + q)))


@dataclass(frozen=True)
class Matrices:
    """The similarities of K networks at one layer."""

    biased: np.ndarray  # [K, K], symmetric; the diagonal is 1
    unbiased: np.ndarray  # [K, K]
    rows: int  # n
    width: int  # p

    def of(self, estimator: Estimator) -> np.ndarray:
        return self.biased if estimator == "biased" else self.unbiased

    def pairs(self, estimator: Estimator) -> np.ndarray:
        """[K (K - 1) / 2] the entries above the diagonal."""
        matrix = self.of(estimator)
        return matrix[np.triu_indices(len(matrix), 1)]


def pairwise(profiles: Sequence[Profile]) -> Matrices:
    """The matrices of one layer over networks."""
    count, first = len(profiles), profiles[0]
    table = np.full((2, count, count), np.nan)
    for i, a in enumerate(profiles):
        for j, b in enumerate(profiles[: i + 1]):
            table[:, i, j] = table[:, j, i] = inner(b, a)
    biased, unbiased = (
        np.array([[similarity(t[i, j], t[i, i], t[j, j]) for j in range(count)] for i in range(count)]) for t in table
    )
    return Matrices(biased, unbiased, first.rows, first.width)
