"""Devices with given sets of classes, and public samples: the data of heterogeneous model aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.declared import Doc, Ge, Gt, Le, Neutral
from engine.base.errors import ConfigError, require
from engine.data.partitions.partition import MAX_DRAWS, Partition
from engine.data.samples.assignment import Assignment, without

Sets = tuple[tuple[int, ...], ...]  # of each device, its classes

# CBHMA (Pang et al., TDSC 2022) states how many of 5 devices know each of 10 classes: 3 all of them (BS); one device
# class 1, five class 9 and 3 the others (IS-1); the same with 1 and 9 exchanged (IS-2). A device has at most 6 classes
# there, so the numbers force 6; which ones is left open, and these are some that do.
SETTINGS: dict[str, Sets] = {
    "BS": ((0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 6, 7), (4, 5, 6, 7, 8, 9), (0, 1, 6, 7, 8, 9), (0, 1, 2, 3, 8, 9)),
    "IS-1": ((0, 2, 3, 4, 5, 9), (2, 3, 4, 6, 7, 9), (4, 5, 6, 7, 8, 9), (0, 1, 6, 7, 8, 9), (0, 2, 3, 5, 8, 9)),
    "IS-2": ((0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7), (1, 4, 5, 6, 7, 8), (0, 1, 6, 7, 8, 9), (0, 1, 2, 3, 5, 8)),
}
FEWEST, MOST = 3, 6  # classes of a device by sets=random, as in CBHMA's experiments


@dataclass(frozen=True, kw_only=True)
class ClassSets(Partition):
    """Each device has ``per_class`` samples of each class of its set; of each class that any device has there are
    ``public_per_class`` public samples. All others are dropped.

    Which samples a device has is decided by its number, its own set, ``per_class`` and ``seed``: of a class's random
    order device k takes the k-th run of ``per_class``, and the public samples are the last ones.

    sets: of the paper, ``BS`` (balanced), ``IS-1`` and ``IS-2``; ``random``, 3 to 6 classes for each device and every
    class for some device, drawn by ``seed``; or one tuple of class numbers for each device.
    poor_device, poor_share: that device has only this share of its samples of each class.
    """

    clients: Annotated[int, Ge(1), Doc("number of clients")] = 5
    sets: Annotated[
        Literal["BS", "IS-1", "IS-2", "random"] | Sets,
        Doc("classes of each client: CBHMA's settings, 3 to 6 drawn by the seed, or as listed"),
    ] = "BS"
    per_class: Annotated[int, Ge(1), Doc("samples that a client has of each of its classes")] = 600
    public_per_class: Annotated[
        int, Ge(0), Doc("public samples of each class, which no client holds and all may see"), Neutral(0, "is none")
    ] = 100
    poor_device: Annotated[int, Ge(0), Doc("the client that has only a share of its samples")] = 0
    poor_share: Annotated[float, Gt(0), Le(1), Doc("that share"), Neutral(1, "is a device like the others")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fixed("where devices have given classes and numbers of samples")
        rule, last = "must be the number of a device", self.clients - 1
        require(self.poor_device <= last, "poor_device", self.poor_device, rule, f"set it to 0 to {last}")
        if self.sets == "random":
            return
        sets = SETTINGS[self.sets] if isinstance(self.sets, str) else self.sets
        repair = "for example sets=[[0, 1, 2], [2, 3, 4]]"
        require(len(sets) > 0, "sets", [], "must have the classes of at least one device", repair)
        for device, classes in enumerate(sets):
            rule = f"must have class numbers from 0 on for device {device}, each once"
            sound = 0 < len(classes) == len(set(classes)) and min(classes) >= 0
            require(sound, "sets", list(map(list, sets)), rule, repair)
        rule = f"is not the number of class sets, {len(sets)}"
        require(self.clients == len(sets), "clients", self.clients, rule, f"set it to {len(sets)}")

    def draw(self, rng, labels, num_classes, owners):
        sets = self.class_sets(num_classes)
        known = sorted({c for classes in sets for c in classes})
        sizes = np.bincount(labels, minlength=num_classes)
        self._check_rows(known, sizes)
        orders = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
        public = np.concatenate([orders[c][sizes[c] - self.public_per_class :] for c in known])
        clients = []
        for device, classes in enumerate(sets):
            share = self.poor_share if device == self.poor_device else 1.0
            first, rows = device * self.per_class, max(1, round(share * self.per_class))
            clients.append(np.concatenate([orders[c][first : first + rows] for c in classes]))
        dropped = without(len(labels), np.concatenate([*clients, public]))
        return Assignment(tuple(clients), dropped, public=public)

    def set_aside(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        return np.arange(0)  # they are drawn with the others

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().identity(written), "public_per_class": self.public_per_class}  # 0 is not its default

    def class_sets(self, num_classes: int) -> Sets:
        """Return the classes of each device, for data with ``num_classes`` classes.

        Raises :class:`ConfigError` if the data have too few classes for them.
        """
        if self.sets == "random":
            return self._random(num_classes)
        sets = SETTINGS[self.sets] if isinstance(self.sets, str) else self.sets
        highest = max(c for classes in sets for c in classes)
        require(
            highest < num_classes,
            "partition.sets",
            self.sets if isinstance(self.sets, str) else [list(classes) for classes in sets],
            f"has class {highest}, but the data have classes 0 to {num_classes - 1}",
            "take other sets or partition.sets=random",
        )
        return sets

    def _random(self, num_classes: int) -> Sets:
        """Draw sets, again and again until every class has a device."""
        require(
            num_classes >= FEWEST,
            "partition.sets",
            self.sets,
            f"draws {FEWEST} classes or more, but the data have {num_classes}",
            "list the classes of each device",
        )
        rng = numpy_generator(self.seed, "class sets")
        for _ in range(MAX_DRAWS):
            sizes = rng.integers(FEWEST, min(MOST, num_classes) + 1, self.clients)
            sets = [np.sort(rng.choice(num_classes, size, replace=False)).tolist() for size in sizes]
            if len(set().union(*sets)) == num_classes:
                return tuple(map(tuple, sets))
        raise ConfigError(
            "partition.clients",
            self.clients,
            f"with {FEWEST} to {MOST} classes each left some of the {num_classes} classes to nobody in "
            f"{MAX_DRAWS} draws",
            "take more clients or list the classes of each",
        )

    def _check_rows(self, known: list[int], sizes: np.ndarray) -> None:
        """Require room for any sets of these classes, so that settings do not differ in it."""
        scarce = min(known, key=lambda c: sizes[c])
        most = (int(sizes[scarce]) - self.public_per_class) // self.clients
        repair = f"set it to {most} or less" if most >= 1 else "lower partition.public_per_class"
        require(
            self.per_class <= most,
            "partition.per_class",
            self.per_class,
            f"for {self.clients} devices and {self.public_per_class} public samples is more than the {sizes[scarce]} "
            f"training samples of class {scarce}",
            repair,
        )
