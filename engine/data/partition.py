"""Rules by which samples are divided among clients.

A partition has its own seed, apart from the seed of the run, so that methods and seeds share it. Every
training sample goes to exactly one client; only :class:`CbflCode` and ``class_sets`` drop some, and say which, and
``replacement`` gives a sample to any number of clients. Test samples follow them, for what a client evaluates on its
own.

K clients, C classes, N samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.errors import ConfigError, require
from engine.data.assignment import Assignment, Parts
from engine.data.dataset import Dataset, largest_remainder

MAX_DRAWS = 1000  # of a whole partition, for on_small=redraw


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """A rule that divides samples among clients.

    clients: K. seed: of this partition, apart from the seed of the run. min_samples: the least training samples
    a client may have, enforced as on_small says: ``allow`` smaller clients (min_samples must be 0), ``redraw``
    everything, or ``repair`` by moving samples from those who hold most of a class. With ``allow`` clients may
    be empty.
    """

    clients: int = 100
    seed: int = 0
    min_samples: int = 0
    on_small: Literal["allow", "redraw", "repair"] = "allow"

    def __post_init__(self) -> None:
        require(self.clients >= 1, "clients", self.clients, "must be at least 1", "for example clients=100")
        require(self.min_samples >= 0, "min_samples", self.min_samples, "must not be negative")
        require(
            self.on_small != "allow" or self.min_samples == 0,
            "min_samples",
            self.min_samples,
            "has no effect with on_small=allow",
            "set on_small=redraw or on_small=repair",
        )

    @abstractmethod
    def draw(
        self, rng: np.random.Generator, labels: np.ndarray, num_classes: int, owners: np.ndarray | None
    ) -> Assignment:
        """One draw, without regard to ``min_samples``; index arrays in any order."""

    def assign(self, labels: np.ndarray, num_classes: int, owners: np.ndarray | None = None) -> Assignment:
        """Divide the samples with ``labels`` int64 [N] (and ``owners`` int64 [N]); the fields decide all.

        Raises :class:`ConfigError` if the data do not allow it.
        """
        self._check_feasible(labels)
        rng = numpy_generator(self.seed, "partition")
        best = -1
        for _ in range(MAX_DRAWS):
            drawn = self.draw(rng, labels, num_classes, owners)
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

    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        """``assignment``, which :meth:`assign` made, with the test samples that each client evaluates on.

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
        dealt = _deal(rng, labels, counts)
        return replace(assignment, tests=Parts.of(dealt.clients).sorted())

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


def check_alpha(alpha: float) -> None:
    rule = "must be a number above 0"
    require(0 < alpha < math.inf, "alpha", alpha, rule, "for example alpha=0.1 (the smaller, the more skew)")


def _dirichlet(rng: np.random.Generator, alpha: float, parts: int, draws: int) -> np.ndarray:
    """Shares [draws, parts] ~ Dir(alpha, ..., alpha)."""
    return rng.dirichlet(np.full(parts, alpha), size=draws)


def _deal(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> Assignment:
    """Give client k ``counts[k, c]`` samples of class c, drawn at random; what is left over is dropped."""
    clients, num_classes = counts.shape
    given, dropped, owners = [], [], []
    for c in range(num_classes):
        mine = rng.permutation(np.flatnonzero(labels == c))
        owners.append(np.repeat(np.arange(clients), counts[:, c]))
        given.append(mine[: len(owners[-1])])
        dropped.append(mine[len(owners[-1]) :])
    by_client = np.argsort(np.concatenate(owners), kind="stable")
    parts = Parts(np.concatenate(given)[by_client], np.cumsum(counts.sum(axis=1)))
    return Assignment(parts, np.concatenate(dropped))


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


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """A random permutation in K parts whose sizes differ by at most one."""

    def draw(self, rng, labels, num_classes, owners):
        return Assignment(tuple(np.array_split(rng.permutation(len(labels)), self.clients)))


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Per class q ~ Dir(alpha) over the clients; client k gets the share q_k of the class.

    Yurochkin et al. 2019 and most papers since. Counts by largest remainder, so every sample is assigned.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)

    def draw(self, rng, labels, num_classes, owners):
        shares = _dirichlet(rng, self.alpha, self.clients, num_classes)
        totals = np.bincount(labels, minlength=num_classes)
        counts = [largest_remainder(int(n), q) for n, q in zip(totals, shares, strict=True)]
        return _deal(rng, labels, np.stack(counts, axis=1))


@dataclass(frozen=True, kw_only=True)
class DirichletCapped(Partition):
    """As :class:`Dirichlet`, but a client that holds N/K samples gets no more of the classes that follow.

    MOON and NIID-Bench: shares of the others are renormalised, cut points are rounded down, and everything is
    drawn again until each client has 10 samples (the defaults of ``min_samples`` and ``on_small``).
    """

    alpha: float = 0.5
    min_samples: int = 10
    on_small: Literal["allow", "redraw", "repair"] = "redraw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)

    def draw(self, rng, labels, num_classes, owners):
        totals = np.bincount(labels, minlength=num_classes)
        counts = np.zeros((self.clients, num_classes), dtype=np.int64)
        for c, shares in enumerate(_dirichlet(rng, self.alpha, self.clients, num_classes)):
            if totals[c] == 0:  # also the one case in which all clients may be full
                continue
            is_open = counts.sum(axis=1) * self.clients < len(labels)
            shares = shares * is_open
            if shares.sum() < 1e-12:  # a tiny alpha may give the open clients nothing: then alike
                shares = is_open.astype(float)
            cuts = np.floor(np.cumsum(shares / shares.sum()) * totals[c] + 1e-9).astype(np.int64)
            cuts[np.flatnonzero(shares)[-1] :] = totals[c]
            counts[:, c] = np.diff(cuts, prepend=0)
        return _deal(rng, labels, counts)


@dataclass(frozen=True, kw_only=True)
class DirichletClient(Partition):
    """Per client a class prior p ~ Dir(alpha) and a fixed size; labels are drawn from p without replacement.

    Hsu et al. 2019 and FedDC. A label whose class is used up is drawn again, from the rest of the prior (from
    what is left, if the prior has no rest).

    size_sigma: 0 gives equal sizes; above 0 sizes are lognormal with that sigma, scaled to N.
    """

    alpha: float = 0.1
    size_sigma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)
        rule = "must be a number from 0 on"
        require(0 <= self.size_sigma < math.inf, "size_sigma", self.size_sigma, rule, "0 gives equal sizes")

    def draw(self, rng, labels, num_classes, owners):
        sizes = largest_remainder(len(labels), rng.lognormal(0, self.size_sigma, self.clients))
        priors = _dirichlet(rng, self.alpha, num_classes, self.clients)
        left = np.bincount(labels, minlength=num_classes)
        slots = rng.permutation(np.repeat(np.arange(self.clients), sizes))  # whose turn it is, [N]
        is_open = left > 0
        chosen = _draw_classes(rng, priors[slots], is_open, left)
        # Each pass closes the class that is used up first and draws again those who came too late for it:
        # at most C passes, and the outcome is that of drawing one sample after the other.
        while True:
            late = _rank_in_class(chosen, num_classes) >= left[chosen]
            if not late.any():
                break
            closing = chosen[np.argmax(late)]
            is_open[closing] = False
            again = late & (chosen == closing)
            chosen[again] = _draw_classes(rng, priors[slots[again]], is_open, left)
        counts = np.zeros((self.clients, num_classes), dtype=np.int64)
        np.add.at(counts, (slots, chosen), 1)
        return _deal(rng, labels, counts)


def _draw_classes(rng: np.random.Generator, priors: np.ndarray, is_open: np.ndarray, left: np.ndarray) -> np.ndarray:
    """One open class for each row of ``priors`` [n, C]; rows without an open class draw from ``left`` [C]."""
    weights = priors * is_open
    weights[weights.sum(axis=1) < 1e-12] = left * is_open
    ends = np.cumsum(weights, axis=1)
    points = rng.random(len(priors)) * ends[:, -1]
    chosen = (ends <= points[:, None]).sum(axis=1)
    # rounding may put a point on the very end: then the last class that has weight
    last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    return np.minimum(chosen, last)


def _rank_in_class(classes: np.ndarray, num_classes: int) -> np.ndarray:
    """How many earlier entries have the same class, int64 [n]."""
    order = np.argsort(classes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(classes, minlength=num_classes))[:-1]])
    ranks = np.empty(len(classes), dtype=np.int64)
    ranks[order] = np.arange(len(classes)) - starts[classes[order]]
    return ranks


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
        return _deal(rng, labels, counts)

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
        return _deal(rng, labels, counts)

    def _classes(self, rng: np.random.Generator, num_classes: int) -> int:
        """How many classes a client has."""
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


@dataclass(frozen=True, kw_only=True)
class Quantity(Partition):
    """Sizes ~ N * Dir(alpha) over the clients, content at random (NIID-Bench's quantity skew)."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)

    def draw(self, rng, labels, num_classes, owners):
        sizes = largest_remainder(len(labels), _dirichlet(rng, self.alpha, self.clients, 1)[0])
        return Assignment(tuple(np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])))


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


@dataclass(frozen=True, kw_only=True)
class CbflCode(Partition):
    """What the code published with CBFL does in place of its text's Dirichlet split, for like-for-like runs.

    Shares of each class are drawn per client and rounded, and clients take their number in turn until the
    class is used up: late clients may go short, and a remainder is dropped. With alpha < 0.1 or more than 200
    clients every number is first clipped to [5, n - 5], which is another family of partitions: the share of
    the largest class then falls with alpha. Sizes come from numpy's legacy generator and equal the authors'
    for their seed, 7777 (CIFAR-10, 100 clients, alpha 0.1: 16 samples dropped); which samples of a class a
    client gets is drawn as in the other partitions.
    """

    alpha: float = 0.1
    seed: int = 7777

    _floor: ClassVar[int] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)
        require(0 <= self.seed < 2**32, "seed", self.seed, "must be from 0 to 2^32 - 1", "for example seed=7777")
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
        return _deal(rng, labels, np.diff(handed_out, axis=0, prepend=0))
