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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from engine.base.errors import require

Estimator = Literal["biased", "unbiased"]
Form = Literal["auto", "features", "gram"]

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


def profile(activations: Any, form: Form = "auto") -> Profile:
    """Make the profile of activations [n, ...].

    form: "auto" takes the Gram form where p > n, "features" and "gram" one of the two.
    """
    x = torch.as_tensor(activations).flatten(1)
    rows, width = x.shape
    require(rows >= LEAST_ROWS, "n", rows, f"must be at least {LEAST_ROWS} probe inputs", "take more")
    if form == "features" or (form == "auto" and width <= rows):
        x = x.double()
        x = x - x.mean(0)
        return Profile(x, x.square().sum(1), False, width)
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=x.device)
    for part in x.split(COLUMNS, dim=1):  # float64 copies of a slice only
        part = part.double()
        part = part - part.mean(0)
        gram.addmm_(part, part.T)
    return Profile(gram, gram.diagonal().clone(), True, width)


@dataclass(frozen=True)
class Inner:
    """The two inner products of a pair of networks, or their sums over batches."""

    biased: float  # <HKH, HLH>_F
    unbiased: float  # HSIC_1(K, L)

    def __add__(self, other: Inner) -> Inner:
        return Inner(self.biased + other.biased, self.unbiased + other.unbiased)


def inner(a: Profile, b: Profile) -> Inner:
    """Return the inner products of two profiles of the same inputs.

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
    return Inner(full, hsic / (n * (n - 3)))


def _as_gram(one: Profile) -> Profile:
    return one if one.is_gram else Profile(one.matrix @ one.matrix.T, one.squares, True, one.width)


def similarity(between: float, own: float, other: float) -> float:
    """CKA from an inner product and the two of each network with itself; NaN where one of them is constant."""
    squared = own * other
    if not (own > 0 and other > 0 and math.sqrt(squared) >= SMALLEST):
        return math.nan
    return between / math.sqrt(squared)


def linear_cka(x: Any, y: Any, estimator: Estimator = "biased", form: Form = "auto") -> float:
    """Return the linear CKA of activations [n, p] and [n, q] of the same inputs.

    form: "auto" takes the Gram form where p or q is larger than n.
    """
    if form == "auto":
        widest = max(math.prod(np.shape(one)[1:]) for one in (x, y))
        form = "gram" if widest > len(x) else "features"
    return batched_cka([(x, y)], estimator, form)


def batched_cka(batches: Iterable[tuple[Any, Any]], estimator: Estimator = "unbiased", form: Form = "auto") -> float:
    """Return linear CKA from batches of inputs: numerators and self terms are summed over batches, then divided.

    With the unbiased estimator the sums mean the same for any batch size (Nguyen et al. 2021, arXiv:2010.15327,
    sec. 3); with the biased one the result depends on it.
    """
    between = own = other = Inner(0.0, 0.0)
    for x, y in batches:
        a, b = profile(x, form), profile(y, form)
        between, own, other = between + inner(a, b), own + inner(a, a), other + inner(b, b)
    return similarity(*(getattr(one, estimator) for one in (between, own, other)))


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


def pairwise(profiles: Callable[[int], Mapping[str, Profile]], count: int, at_once: int) -> dict[str, Matrices]:
    """The matrices of each layer over ``count`` networks, with the profiles of ``at_once`` + 1 in memory.

    ``profiles(k)``: those of network k by layer. It is called once for each network if they fit in at once, and
    otherwise again for every ``at_once`` networks before it.
    """
    sums: dict[str, np.ndarray] = {}  # layer -> [2, K, K]
    shapes: dict[str, tuple[int, int]] = {}

    def note(i: int, one: Mapping[str, Profile], j: int, two: Mapping[str, Profile]) -> None:
        for layer, a in one.items():
            table = sums.setdefault(layer, np.full((2, count, count), np.nan))
            found = inner(a, two[layer])
            table[:, i, j] = table[:, j, i] = found.biased, found.unbiased
            shapes[layer] = a.rows, a.width

    for start in range(0, count, at_once):
        tile: dict[int, Mapping[str, Profile]] = {}
        for k in range(start, count):
            one = profiles(k)
            if k < start + at_once:
                tile[k] = one
            for i, other in tile.items():
                note(i, other, k, one)
    found = {}
    for layer, tables in sums.items():
        biased, unbiased = (
            np.array([[similarity(t[i, j], t[i, i], t[j, j]) for j in range(count)] for i in range(count)])
            for t in tables
        )
        found[layer] = Matrices(biased, unbiased, *shapes[layer])
    return found
