"""Clients that share samples: any number of them, whatever the size of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from engine.base.declared import Doc, Ge, Gt, Neutral
from engine.base.devices import memory
from engine.base.errors import require
from engine.data.partitions.partition import Partition
from engine.data.samples.assignment import Assignment, Parts, without


@dataclass(frozen=True, kw_only=True)
class Replacement(Partition):
    """``samples`` of all for each client, drawn with replacement: clients share samples, and one may have one twice.

    For studies of scale: K clients of a data set with fewer than K samples. What nobody has drawn is dropped.

    alpha: of a class prior p_k ~ Dir(alpha C q) for each client, q the class shares of the data (on balanced data
    Dir(alpha, ..., alpha) as in Hsu et al. 2019); labels are drawn from p_k, then samples of the label alike. None
    draws all samples alike, which is where large alphas lead.
    """

    shares_rows: ClassVar[bool] = True

    samples: Annotated[int, Ge(1), Doc("samples of each client, drawn with replacement")] = 20
    alpha: Annotated[
        float | None,
        Gt(0),
        Doc("Dirichlet concentration of each client's classes, small is skewed"),
        Neutral(None, "is no skew"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"is more than the {self.samples} samples of each client"
        require(self.min_samples <= self.samples, "min_samples", self.min_samples, rule, "raise partition.samples")

    def _check_feasible(self, labels: np.ndarray) -> None:
        # Samples are shared, so there are always enough of them; what is drawn is held all at once.
        needed, limit = 8 * self.clients * (self.samples + int(labels.max()) + 1), memory("cpu") // 4
        rule = f"with {self.samples} samples each makes a table of {needed / 1e9:,.0f} GB"
        require(needed <= limit, "partition.clients", self.clients, rule, f"a table may have {limit / 1e9:,.0f} GB")

    def draw(self, rng, labels, num_classes, owners):
        if self.alpha is None:
            drawn = rng.integers(len(labels), size=(self.clients, self.samples))
        else:
            drawn = self._by_class(rng, labels, self.alpha)
        ends = np.arange(1, self.clients + 1) * self.samples
        return Assignment(Parts(drawn.reshape(-1), ends), without(len(labels), drawn))

    def _by_class(self, rng: np.random.Generator, labels: np.ndarray, alpha: float) -> np.ndarray:
        """int64 [K, samples]; classes without samples take no part."""
        by_label = np.argsort(labels, kind="stable")
        _, starts, sizes = np.unique(labels[by_label], return_index=True, return_counts=True)
        priors = rng.dirichlet(alpha * len(sizes) * sizes / len(labels), size=self.clients)
        counts = rng.multinomial(self.samples, priors)  # [K, C]
        chosen = np.repeat(np.tile(np.arange(len(sizes)), self.clients), counts.ravel())
        return by_label[starts[chosen] + rng.integers(sizes[chosen])].reshape(self.clients, self.samples)
