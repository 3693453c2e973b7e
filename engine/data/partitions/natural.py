"""The division that the data come with: a client for each user, writer or device, or for a group of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import ConfigError, require
from engine.data.partitions.partition import Partition
from engine.data.samples.assignment import Assignment, Parts
from engine.data.samples.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """One client for each owner of the data (user, writer, device); client k is owner k.

    A client is tested on its owner's test samples, whatever their classes; those of owners who come after the
    last with training samples are nobody's. A test split without owners is divided as in other partitions.

    clients: 0 for as many as there are owners; any other number must be that number. Training samples are not
    drawn, so ``seed`` has no effect on them, and they do not move, so ``on_small`` stays ``allow``.
    """

    clients: Annotated[int, Ge(0), Doc("number of clients"), Neutral(0, "takes every owner")] = 0

    def __post_init__(self) -> None:
        self._check_fixed("when clients are the owners of the data")
        super().__post_init__()

    def _check_feasible(self, labels: np.ndarray) -> None:
        pass  # owners without a sample are possible, for example in a subset of the data

    def draw(self, rng, labels, num_classes, owners):
        owners = _known(owners, "natural")
        count = int(owners.max()) + 1
        require(
            self.clients in (0, count),
            "partition.clients",
            self.clients,
            f"is not the number of owners, {count}",
            f"leave it out or set it to {count}",
        )
        return Assignment(_by_client(owners, count))

    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        owners = dataset.test.owners
        if owners is None:
            return super().share_tests(assignment, dataset)
        count = len(assignment.clients)
        return replace(assignment, tests=_by_client(np.where(owners < count, owners, -1), count))


@dataclass(frozen=True, kw_only=True)
class OwnerGroups(Partition):
    """One client for each group of owners: hospitals of patients, companies of users.

    Owners are those of the training samples. A client is tested on the test samples of its owners; other test
    samples are nobody's. A test split without owners is divided as in other partitions.

    clients: K groups, whose numbers of owners differ by at most one; 0 where ``owners_per_client`` is given.
    owners_per_client: the number of owners of a group, in place of ``clients``.
    order: owners are joined in a random order, or by their numbers.
    remainder: what becomes of owners that fill no group of ``owners_per_client``: a ``smaller`` last group, a
    ``bigger`` first one; or their samples are dropped (``drop``), or refused (``refuse``).
    """

    clients: Annotated[int, Ge(0), Doc("number of clients; 0 where `owners_per_client` is given")] = 0
    owners_per_client: Annotated[
        int | None, Ge(1), Doc("owners of each client; null: `clients` groups of as many owners as can be")
    ] = None
    order: Annotated[
        Literal["random", "sequential"], Doc("owners are joined in a random order, or by their numbers")
    ] = "random"
    remainder: Annotated[
        Literal["smaller", "bigger", "drop", "refuse"],
        Doc(
            "owners that fill no group of `owners_per_client`: a smaller last group, a bigger first one, nobody, or "
            "an error"
        ),
    ] = "smaller"

    def __post_init__(self) -> None:
        self._check_fixed("when clients are groups of owners")
        super().__post_init__()
        size = self.owners_per_client
        rule = "must be given, or owners_per_client" if size is None else "cannot be set beside owners_per_client"
        repair = "for example clients=10" if size is None else "set clients=0"
        require((size is None) == (self.clients > 0), "clients", self.clients, rule, repair)
        rule = "has no effect where clients is given"
        repair = "leave it out, or give owners_per_client"
        require(size is not None or self.remainder == "smaller", "remainder", self.remainder, rule, repair)

    def _check_feasible(self, labels: np.ndarray) -> None:
        pass  # there are as many clients as the owners allow

    def draw(self, rng, labels, num_classes, owners):
        owners = _known(owners, "owner_groups")
        groups = self._groups(owners)
        clients = _client_of(groups, owners)
        return Assignment(_by_client(clients, len(groups)), np.flatnonzero(clients < 0))

    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        owners, trained = dataset.test.owners, dataset.train.owners
        if owners is None or trained is None:
            return super().share_tests(assignment, dataset)
        groups = [np.unique(trained[rows]) for rows in assignment.clients]
        return replace(assignment, tests=_by_client(_client_of(groups, owners), len(groups)))

    def _groups(self, owners: np.ndarray) -> list[np.ndarray]:
        """Return the owners of each client, by the owner of each training sample, int64 [N]."""
        present = np.unique(owners)
        if self.order == "random":
            present = numpy_generator(self.seed, "owner groups").permutation(present)
        count, size = len(present), self.owners_per_client
        if size is None:
            rule = f"is more than the {count} owners"
            require(self.clients <= count, "partition.clients", self.clients, rule, f"set it to {count} or less")
            return np.array_split(present, self.clients)
        rule = f"is more than the {count} owners"
        require(size <= count, "partition.owners_per_client", size, rule, f"set it to {count} or less")
        rest = count % size
        rule = f"does not divide the {count} owners"
        field, repair = "partition.owners_per_client", "set partition.remainder=smaller"
        require(rest == 0 or self.remainder != "refuse", field, size, rule, repair)
        first = size + rest if self.remainder == "bigger" else size
        groups = np.split(present, np.arange(first, count, size))
        return groups[:-1] if rest and self.remainder == "drop" else groups


def _known(owners: np.ndarray | None, name: str) -> np.ndarray:
    """Return ``owners``; raise :class:`ConfigError`, which names the partition, if the data have none."""
    if owners is None:
        raise ConfigError(
            "partition.name",
            name,
            "needs data with owners",
            "use data.name=synthetic, omniglot or inaturalist2019, or data.name=parquet with data.owner_column",
        )
    return owners


def _client_of(groups: list[np.ndarray], owners: np.ndarray) -> np.ndarray:
    """Return the number of the group that each of ``owners`` [n] is in, int64 [n]; -1 for those in none."""
    client_of = np.full(max(int(owners.max()), *(int(group.max()) for group in groups)) + 1, -1)
    for client, group in enumerate(groups):
        client_of[group] = client
    return client_of[owners]


def _by_client(clients: np.ndarray, count: int) -> Parts:
    """Give each of ``count`` clients the samples that ``clients`` [n] says are its own; those of -1 are nobody's."""
    rows = np.flatnonzero(clients >= 0)
    return Parts.grouped(clients[rows], rows, count)
