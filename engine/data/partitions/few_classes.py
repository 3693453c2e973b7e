"""Label skew by the number of classes that a client has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require
from engine.data.partitions.dealing import deal
from engine.data.partitions.partition import Partition
from engine.data.samples.assignment import Assignment


@dataclass(frozen=True, kw_only=True)
class ClassesPerClient(Partition):
    """Every client has ``classes`` classes; the clients of a class share it evenly (NIID-Bench's #C, FedMix).

    assignment: of classes to clients. ``random`` is balanced: the numbers of clients that two classes have differ by at
    most one. By ``deterministic`` client k has the classes k, k + 1, ... (mod C), and nothing but which samples is
    drawn: of those that do not divide evenly the clients of low numbers have one more. By ``first_deterministic``
    client k has class k (mod C), and others that are drawn.
    """

    classes: Annotated[int, Ge(1), Doc("classes of each client")] = 2
    assignment: Annotated[
        Literal["random", "deterministic", "first_deterministic"],
        Doc(
            "of classes to clients: balanced draws; k, k + 1, ... (mod C) for client k; or k (mod C) and others that "
            "are drawn"
        ),
        Neutral("random", "draws all"),
    ] = "random"

    neutral: ClassVar[Mapping[str, Any]] = {"assignment": "random"}

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
            holders = np.flatnonzero((held == c).any(axis=1))
            require(
                len(holders) > 0,
                "partition.clients",
                self.clients,
                f"with assignment={self.assignment} leaves class {c} to nobody",
                f"set it to {num_classes} or more",
            )
            if self.assignment != "deterministic":
                holders = rng.permutation(holders)
            counts[holders, c] = [len(part) for part in np.array_split(np.empty(totals[c]), len(holders))]
        return deal(rng, labels, counts)

    def _held_classes(self, rng: np.random.Generator, num_classes: int) -> np.ndarray:
        """Return the classes of each client, int64 [K, classes], distinct in each row."""
        first = np.arange(self.clients)[:, None]
        if self.assignment == "deterministic":
            return (first + np.arange(self.classes)) % num_classes
        if self.assignment == "first_deterministic":
            others = [rng.permutation(num_classes - 1)[: self.classes - 1] for _ in range(self.clients)]
            return (first + np.insert(np.array(others, dtype=np.int64) + 1, 0, 0, axis=1)) % num_classes
        return self._balanced(rng, num_classes)

    def _balanced(self, rng: np.random.Generator, num_classes: int) -> np.ndarray:
        """Cut random orders of all classes, joined, into rows [K, classes]."""
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

    degree: Annotated[
        Literal["high", "medium", "none", "diverse"],
        Doc("of personalisation: a client has 2 classes, half of all, all, or 2 to 5"),
    ] = "high"

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

    shard_size: samples of a shard, in place of near-equal shards. Without ``shards_per_client`` (None) all shards of
    that size are dealt: one client may have one more than another. With both, each client has its number, and what is
    beyond them is nobody's, which ``leftover=drop`` has to say.
    leftover: of samples that fill no shard, the last ones by label: ``keep`` deals them as one smaller shard, ``drop``
    leaves them to nobody. Without ``shard_size``, ``drop`` makes the shards equal and not near-equal.
    """

    shards_per_client: Annotated[
        int | None, Ge(1), Doc("shards of each client; null: as many as `shard_size` makes, dealt as evenly as can be")
    ] = 2
    shard_size: Annotated[int | None, Ge(1), Doc("samples of a shard"), Neutral(None, "makes near-equal shards")] = None
    leftover: Annotated[
        Literal["keep", "drop"],
        Doc(
            "samples that fill no shard are one smaller shard, or nobody's; without `shard_size` drop makes shards "
            "equal; with `shard_size` and `shards_per_client` it must be drop"
        ),
        Neutral("keep", "drops none"),
    ] = "keep"

    neutral: ClassVar[Mapping[str, Any]] = {"shard_size": None, "leftover": "keep"}

    def __post_init__(self) -> None:
        super().__post_init__()
        number, size = self.shards_per_client, self.shard_size
        repair = "for example shards_per_client=2"
        rule = "must be given where there is no shard_size"
        require(number is not None or size is not None, "shards_per_client", None, rule, repair)
        rule = "cannot be kept where both number and size of the shards are given"
        both = number is not None and size is not None
        require(not both or self.leftover == "drop", "leftover", self.leftover, rule, "set leftover=drop")

    def draw(self, rng, labels, num_classes, owners):
        shuffled = rng.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards, dropped = self._cut(by_label)
        require(
            len(shards) >= self.clients,
            "partition.shard_size",
            self.shard_size,
            f"makes {len(shards)} shards for {self.clients} clients",
            f"set it to {len(labels) // self.clients} or less",
        )
        dealt = np.array_split(rng.permutation(len(shards)), self.clients)
        return Assignment(tuple(np.concatenate([shards[s] for s in row]) for row in dealt), dropped)

    def _cut(self, by_label: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the shards of samples in the order of their labels [N], and the samples that are nobody's."""
        size = self.shard_size
        if self.shards_per_client is None:
            assert size is not None  # __post_init__
            number = len(by_label) // size
        else:
            number = self.clients * self.shards_per_client
            most = len(by_label) // (self.clients * (size or 1))
            what = "more shards" if size is None else f"more shards of {size} samples"
            repair = f"set it to {most} or less" if most else "lower partition.shard_size"
            rule = f"makes {what} than the {len(by_label)} training samples"
            value = self.shards_per_client
            require(value <= most, "partition.shards_per_client", value, f"{rule} allow" if size else rule, repair)
            if size is None and self.leftover == "keep":
                return np.array_split(by_label, number), by_label[:0]
            size = size or len(by_label) // number
        shards, rest = list(by_label[: number * size].reshape(number, size)), by_label[number * size :]
        if self.leftover == "drop" or not len(rest):
            return shards, rest
        return [*shards, rest], rest[:0]
