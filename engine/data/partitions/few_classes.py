"""Label skew by the number of classes that a client has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from engine.base.errors import require
from engine.data.assignment import Assignment
from engine.data.partitions.dealing import deal
from engine.data.partitions.partition import Partition


@dataclass(frozen=True, kw_only=True)
class ClassesPerClient(Partition):
    """Every client has ``classes`` classes; the clients of a class share it evenly (NIID-Bench's #C, FedMix).

    Random, and balanced: the numbers of clients that two classes have differ by at most one.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.classes >= 1, "classes", self.classes, "must be at least 1", "for example classes=2")

    def draw(self, rng, labels, num_classes, owners):
        require(
            self.classes <= num_classes,
            "partition.classes",
            self.classes,
            f"is more than the {num_classes} classes of the data",
            f"set it to {num_classes} or less",
        )
        require(
            self.clients * self.classes >= num_classes,
            "partition.clients",
            self.clients,
            f"with {self.classes} classes each leaves some of the {num_classes} classes to nobody",
            f"set it to {math.ceil(num_classes / self.classes)} or more",
        )
        held = self._held_classes(rng, num_classes)
        totals = np.bincount(labels, minlength=num_classes)
        counts = np.zeros((self.clients, num_classes), dtype=np.int64)
        for c in range(num_classes):
            holders = rng.permutation(np.flatnonzero((held == c).any(axis=1)))
            counts[holders, c] = [len(part) for part in np.array_split(np.empty(totals[c]), len(holders))]
        return deal(rng, labels, counts)

    def _held_classes(self, rng: np.random.Generator, num_classes: int) -> np.ndarray:
        """[K, classes], distinct in each row: random orders of all classes, joined and cut into rows."""
        queue: list[int] = []
        rows = []
        for _ in range(self.clients):
            if len(queue) < self.classes:
                order = rng.permutation(num_classes).tolist()
                # what this client already has comes last, so that its row has no class twice
                queue += [c for c in order if c not in queue] + [c for c in order if c in queue]
            rows.append(queue[: self.classes])
            del queue[: self.classes]
        return np.array(rows)


@dataclass(frozen=True, kw_only=True)
class Personalised(Partition):
    """Random classes for each client, dealt out like cards: the samples of a class go one at a time, in turn, to
    the clients that have it (the code published with PFLEGO).

    degree: of personalisation, by the classes of a client: ``high`` 2, ``medium`` half of all (rounded down),
    ``none`` all, ``diverse`` 2 to 5, each number as likely as the others (in that code 2 is twice as likely).

    Where the draw leaves a class to nobody, the first clients have, in place of theirs, the pairs of a random
    order of all classes; of an odd number of classes the first client has three.
    """

    degree: Literal["high", "medium", "none", "diverse"] = "high"

    _least_classes: ClassVar[dict[str, int]] = {"high": 2, "medium": 2, "none": 1, "diverse": 5}

    def draw(self, rng, labels, num_classes, owners):
        require(
            num_classes >= self._least_classes[self.degree],
            "partition.degree",
            self.degree,
            f"needs {self._least_classes[self.degree]} classes, but the data have {num_classes}",
            "set partition.degree=none",
        )
        held = np.zeros((self.clients, num_classes), dtype=bool)
        for row in held:
            row[rng.choice(num_classes, self._classes(rng, num_classes), replace=False)] = True
        if not held.any(axis=0).all():
            self._hand_out_all(rng, held)
        counts = np.zeros(held.shape, dtype=np.int64)
        for c, total in enumerate(np.bincount(labels, minlength=num_classes)):
            holders = np.flatnonzero(held[:, c])
            counts[holders, c] = np.bincount(np.arange(total) % len(holders), minlength=len(holders))
        return deal(rng, labels, counts)

    def _classes(self, rng: np.random.Generator, num_classes: int) -> int:
        """Draw the number of classes that a client has."""
        if self.degree == "diverse":
            return int(rng.integers(2, 6))
        return {"high": 2, "medium": num_classes // 2, "none": num_classes}[self.degree]

    def _hand_out_all(self, rng: np.random.Generator, held: np.ndarray) -> None:
        """Overwrite the first rows of ``held`` bool [K, C] so that every class has a client."""
        pairs = held.shape[1] // 2
        require(
            self.clients >= pairs,
            "partition.clients",
            self.clients,
            f"leaves some of the {held.shape[1]} classes to nobody",
            f"set it to {pairs} or more",
        )
        order = rng.permutation(held.shape[1])
        odd = len(order) % 2
        held[:pairs] = False
        held[np.arange(pairs)[:, None], order[odd:].reshape(pairs, 2)] = True
        held[0, order[:odd]] = True


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Samples sorted by label, cut into K * shards_per_client near-equal shards, dealt at random.

    McMahan et al. 2017, section 3: 100 clients with 2 shards of MNIST, so that most have two digits.
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        value = self.shards_per_client
        require(value >= 1, "shards_per_client", value, "must be at least 1", "for example shards_per_client=2")

    def draw(self, rng, labels, num_classes, owners):
        most = len(labels) // self.clients
        require(
            self.shards_per_client <= most,
            "partition.shards_per_client",
            self.shards_per_client,
            f"makes more shards than the {len(labels)} training samples",
            f"set it to {most} or less",
        )
        shuffled = rng.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = np.array_split(by_label, self.clients * self.shards_per_client)
        order = rng.permutation(len(shards)).reshape(self.clients, self.shards_per_client)
        return Assignment(tuple(np.concatenate([shards[s] for s in row]) for row in order))
