"""The interface of a rule by which samples are divided among clients, with what all rules share.

K clients, C classes, N samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import ConfigError, require
from engine.base.own_modules import is_ours, name_of
from engine.base.part_calls import calling
from engine.base.registry import Checked
from engine.base.section import identifying
from engine.data.partitions.dealing import deal
from engine.data.samples.assignment import Assignment, Parts, read_only, without
from engine.data.samples.dataset import Dataset, largest_remainder
from engine.data.samples.long_tail import drawn_rows

MAX_DRAWS = 1000  # of a whole partition, for on_small=redraw


@dataclass(frozen=True, kw_only=True)
class Partition(Checked, ABC):
    """A rule that divides samples among clients.

    clients: K. seed: of this partition, apart from the seed of the run. min_samples: the least training samples
    a client may have, enforced as on_small says: ``allow`` smaller clients (min_samples must be 0), ``redraw``
    everything, or ``repair`` by moving samples from those who hold most of a class. With ``allow`` clients may
    be empty. public_per_class: set aside by the seed before the others are divided, see :meth:`set_aside`.
    """

    clients: Annotated[int, Ge(1), Doc("number of clients")] = 100
    seed: Annotated[int, Doc("draws the partition, apart from the seed of the run")] = 0
    min_samples: Annotated[
        int, Ge(0), Doc("the least training samples that a client may have"), Neutral(0, "is none")
    ] = 0
    on_small: Annotated[
        Literal["allow", "redraw", "repair"],
        Doc(
            "what is done about smaller clients: allow them (clients may be empty), draw everything again, or move "
            "samples from those who hold most of a class"
        ),
        Neutral("allow", "does nothing"),
    ] = "allow"

    public_per_class: Annotated[
        int, Ge(0), Doc("public samples of each class, which no client holds and all may see"), Neutral(0, "is none")
    ] = 0

    names_rows: ClassVar[bool] = False  # whether it says of the data's rows, by number, who has them
    shares_rows: ClassVar[bool] = False  # whether clients may hold the same row, and one may hold it twice
    neutral: ClassVar[Mapping[str, Any]] = {}  # fields that came after the others: in no digest at these values

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.on_small != "allow" or self.min_samples == 0,
            "min_samples",
            self.min_samples,
            "has no effect with on_small=allow",
            "set on_small=redraw or on_small=repair",
        )

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return those fields, of all as they are ``written`` in a config, that tell how samples are divided."""
        return identifying(written, {"public_per_class": 0, **self.neutral})

    def set_aside(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Return the public ones of the training samples with ``labels`` int64 [N], sorted; the rest is divided."""
        if self.public_per_class == 0:  # no draw, nor a pass over the labels for each class
            return np.arange(0)
        sizes = np.bincount(labels, minlength=num_classes)
        least = int(sizes[sizes > 0].min())
        rule, repair = f"leaves clients none of a class with {least} training samples", f"set it to {least - 1} or less"
        require(self.public_per_class < least, "partition.public_per_class", self.public_per_class, rule, repair)
        return drawn_rows(labels, np.where(sizes > 0, self.public_per_class, 0), self.seed, "public rows")

    @abstractmethod
    def draw(
        self, rng: np.random.Generator, labels: np.ndarray, num_classes: int, owners: np.ndarray | None
    ) -> Assignment:
        """Draw once, without regard to ``min_samples``; index arrays may be in any order.

        rng: of the partition's seed. labels: int64 [N] of the training samples. owners: int64 [N], or None.
        """

    def assign(self, labels: np.ndarray, num_classes: int, owners: np.ndarray | None = None) -> Assignment:
        """Divide the training samples with ``labels`` int64 [N] (and ``owners`` int64 [N]); the fields decide all.

        Raises :class:`ConfigError` if the data do not allow it, and for a rule from outside that breaks its contract.
        """
        given = labels, num_classes, owners
        self._check_feasible(labels)
        with calling(self, "partition.name", "draw from rng"):
            assignment = self._assigned(*given)
            same = is_ours(type(self)) or self._assigned(*given).digest == assignment.digest
        repair = "draw from rng alone, and depend on no clock, counter or order of a set"
        require(same, "partition.name", name_of(self), "gives other rows when it is drawn again", repair)
        return assignment

    def _assigned(self, labels: np.ndarray, num_classes: int, owners: np.ndarray | None) -> Assignment:
        rng, own = numpy_generator(self.seed, "partition"), is_ours(type(self))
        best = -1
        for _ in range(MAX_DRAWS):
            # Copies, as there are ways to write past the flag.
            classes = read_only(labels if own else labels.copy())
            users = None if owners is None else read_only(owners if own else owners.copy())
            drawn = self.draw(rng, classes, num_classes, users)
            drawn = drawn if own else self._checked(drawn, len(labels))
            smallest = int(drawn.sizes().min())
            if self.on_small == "repair" and smallest < self.min_samples:
                drawn = _repaired(drawn, rng, labels, num_classes, self.min_samples)
            elif self.on_small == "redraw" and smallest < self.min_samples:
                best = max(best, smallest)
                continue
            clients = Parts.of(drawn.clients).sorted()
            return Assignment(clients, np.sort(drawn.dropped), public=np.sort(drawn.public))
        repair = "take fewer clients, a more even split or partition.on_small=repair"
        raise ConfigError(
            "partition.min_samples",
            self.min_samples,
            f"was not reached in {MAX_DRAWS} draws, the best of which had {best}",
            f"set it to {best} or less, {repair}" if best > 0 else repair,
        )

    def _checked(self, drawn: Assignment, samples: int) -> Assignment:
        """Return what a rule from outside has drawn, with all else dropped; raise :class:`ConfigError` unless it is a
        division of so many samples.
        """
        field, kind = "partition.name", type(drawn).__name__
        require(isinstance(drawn, Assignment), field, name_of(self), f"draws a {kind}", "return an Assignment")
        count, public = len(drawn.clients), Parts.of([drawn.public]).joined
        rule, repair = f"is not what {name_of(self)} gives, which is {count}", "give rows to so many clients"
        require(self.clients in (0, count), "partition.clients", self.clients, rule, repair)
        rows = np.concatenate([Parts.of(drawn.clients).joined, public])
        inside, rule = bool(((rows >= 0) & (rows < samples)).all()), f"outside of the {samples} training samples"
        require(inside, field, name_of(self), f"gave rows {rule}", "return places in labels")
        twice = len(np.unique(rows)) < len(rows)
        repair = "give each row to one client, or write shares_rows: ClassVar[bool] = True in its class"
        require(self.shares_rows or not twice, field, name_of(self), "gave a row twice", repair)
        return replace(drawn, public=public, dropped=without(samples, rows))

    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        """Return ``assignment``, which :meth:`assign` made, with the test samples that each client evaluates on.

        Those of a class are divided in proportion to the clients' training samples of it, by largest remainder,
        so a client is tested on classes that it trains on; a class without training samples is given to nobody.
        How many a client gets depends on these counts and the seed, not on the order of the samples.
        """
        num_classes, labels = len(dataset.classes), dataset.test.labels
        held = assignment.class_counts(dataset.train.labels, num_classes)
        rng = numpy_generator(self.seed, "test rows")
        counts = np.zeros_like(held)
        for c, total in enumerate(np.bincount(labels, minlength=num_classes)):
            holders = rng.permutation(np.flatnonzero(held[:, c]))  # equal remainders: the draw decides, not the number
            if len(holders):
                counts[holders, c] = largest_remainder(int(total), held[holders, c] / held[:, c].sum())
        dealt = deal(rng, labels, counts)
        return replace(assignment, tests=Parts.of(dealt.clients).sorted())

    def _check_fixed(self, where: str) -> None:
        """Refuse ``min_samples`` and ``on_small`` of a rule by which samples cannot move; ``where``: why not."""
        fixed = self.on_small == "allow" and self.min_samples == 0
        rule = f"cannot be kept {where}"
        require(fixed, "min_samples", self.min_samples, rule, "set min_samples=0 and on_small=allow")

    def _check_feasible(self, labels: np.ndarray) -> None:
        samples = len(labels)
        require(
            self.clients <= samples,
            "partition.clients",
            self.clients,
            f"is more than the {samples} training samples",
            f"set it to {samples} or less",
        )
        most = samples // self.clients
        require(
            self.min_samples <= most,
            "partition.min_samples",
            self.min_samples,
            f"is more than {samples} samples give {self.clients} clients",
            f"set it to {most} or less",
        )


def _repaired(
    drawn: Assignment, rng: np.random.Generator, labels: np.ndarray, num_classes: int, least: int
) -> Assignment:
    """Fill every client up to ``least`` from whoever holds most of a class, without making a giver small."""
    clients = [rng.permutation(part) for part in drawn.clients]
    counts = drawn.class_counts(labels, num_classes)
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < least):
        while sizes[client] < least:
            spare = np.minimum(counts, np.maximum(sizes - least, 0)[:, None])
            giver, c = np.unravel_index(np.argmax(spare), spare.shape)
            moved = int(min(least - sizes[client], spare[giver, c]))
            held = np.flatnonzero(labels[clients[giver]] == c)[:moved]
            clients[client] = np.concatenate([clients[client], clients[giver][held]])
            clients[giver] = np.delete(clients[giver], held)
            for holder, change in ((client, moved), (giver, -moved)):
                counts[holder, c] += change
                sizes[holder] += change
    return replace(drawn, clients=tuple(clients))
