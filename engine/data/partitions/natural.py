"""The division that the data come with: one client for each user, writer or device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.base.errors import ConfigError, require
from engine.data.assignment import Assignment
from engine.data.dataset import Dataset
from engine.data.partitions.partition import Partition


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """One client for each owner of the data (user, writer, device); client k is owner k.

    A client is tested on its owner's test samples, whatever their classes; those of owners who come after the
    last with training samples are nobody's. A test split without owners is divided as in other partitions.

    clients: 0 for as many as there are owners; any other number must be that number. Training samples are not
    drawn, so ``seed`` has no effect on them, and they do not move, so ``on_small`` stays ``allow``.
    """

    clients: int = 0

    def __post_init__(self) -> None:
        require(self.clients >= 0, "clients", self.clients, "must not be negative", "0 takes every owner")
        fixed = self.on_small == "allow" and self.min_samples == 0
        rule = "cannot be kept when clients are the owners of the data"
        require(fixed, "min_samples", self.min_samples, rule, "set min_samples=0 and on_small=allow")

    def _check_feasible(self, labels: np.ndarray) -> None:
        pass  # owners without a sample are possible, for example in a subset of the data

    def draw(self, rng, labels, num_classes, owners):
        if owners is None:
            raise ConfigError(
                "partition.name",
                "natural",
                "needs data with owners",
                "use data.name=synthetic, omniglot or inaturalist2019, or data.name=parquet with data.owner_column",
            )
        count = int(owners.max()) + 1
        require(
            self.clients in (0, count),
            "partition.clients",
            self.clients,
            f"is not the number of owners, {count}",
            f"leave it out or set it to {count}",
        )
        return Assignment(_by_owner(owners, count))

    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        owners = dataset.test.owners
        if owners is None:
            return super().share_tests(assignment, dataset)
        return replace(assignment, tests=_by_owner(owners, len(assignment.clients)))


def _by_owner(owners: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """The sorted samples of each owner from 0 to ``count`` - 1; those of later owners are left out."""
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(count), side="right")
    return tuple(np.split(order, ends)[:count])
