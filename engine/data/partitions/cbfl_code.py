"""The division of the code published with CBFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from engine.base.declared import Doc, Ge, Gt, Lt
from engine.base.errors import require
from engine.data.partitions.dealing import deal
from engine.data.partitions.partition import Partition


@dataclass(frozen=True, kw_only=True)
class CbflCode(Partition):
    """The rule of the code published with CBFL in place of its text's Dirichlet split, for like-for-like runs.

    Shares of each class are drawn per client and rounded, and clients take their number in turn until the
    class is used up: late clients may go short, and a remainder is dropped. With alpha < 0.1 or more than 200
    clients every number is first clipped to [5, n - 5], which is another family of partitions: the share of
    the largest class then falls with alpha. Sizes come from numpy's legacy generator and equal the authors'
    for their seed, 7777 (CIFAR-10, 100 clients, alpha 0.1: 16 samples dropped); which samples of a class a
    client gets is drawn as in the other partitions.
    """

    alpha: Annotated[float, Gt(0), Doc("Dirichlet concentration, small is skewed")] = 0.1
    seed: Annotated[int, Ge(0), Lt(2**32), Doc("draws the partition; its authors' is 7777")] = 7777

    _floor: ClassVar[int] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "is not part of the authors' code"
        require(self.on_small == "allow", "on_small", self.on_small, rule, "set on_small=allow")

    def draw(self, rng, labels, num_classes, owners):
        legacy = np.random.RandomState(self.seed)
        shares = legacy.dirichlet(np.full(self.clients, self.alpha), size=num_classes)
        rule = "is too small for numpy's legacy generator"
        finite = bool(np.isfinite(shares).all())
        require(finite, "partition.alpha", self.alpha, rule, "use partition.name=dirichlet")
        totals = np.bincount(labels, minlength=num_classes)
        wanted = np.round(shares.T * totals).astype(np.int64)  # [K, C]
        if self.alpha < 0.1 or self.clients > 200:
            wanted = np.clip(wanted, self._floor, np.maximum(totals - self._floor, self._floor))
        handed_out = np.minimum(np.cumsum(wanted, axis=0), totals)
        return deal(rng, labels, np.diff(handed_out, axis=0, prepend=0))
