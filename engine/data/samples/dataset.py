"""A data set: two splits of images and labels, class names, and constants to normalise with.

Images stay as they are stored (uint8); scaling to [0, 1], normalising and augmenting belong to training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.declared import Doc, Ge, Gt, Lt, Neutral
from engine.base.errors import ConfigError, DataError, one_line, require
from engine.base.own_modules import is_ours, name_of
from engine.base.part_calls import calling
from engine.base.registry import Checked
from engine.base.section import identifying
from engine.data.samples.assignment import read_only
from engine.data.samples.long_tail import Tail, drawn_rows, tail_counts
from engine.data.samples.notes import listed, note, noting, warn

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]

QUICK = 1.0  # seconds: data from outside that are read in less are read twice
AS_IS: MeanStd = ((0.0,), (1.0,))  # mean and std of data that are not to be normalised


@dataclass(frozen=True, eq=False)
class Split:
    """The samples of one split, which are only ever read; raises :class:`DataError` if the arrays do not fit together.

    images: [N, C, H, W], C-contiguous; uint8 pixels, or float32 features.
    labels: int64 [N], class numbers from 0.
    owners: int64 [N], the natural owner (user) of each sample, numbered from 0; None if the data have none.
    """

    images: np.ndarray
    labels: np.ndarray
    owners: np.ndarray | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                object.__setattr__(self, field.name, read_only(getattr(self, field.name)))
        images = self.images
        _check(images.ndim == 4, f"images must have the shape [N, C, H, W], not {list(images.shape)}")
        _check(images.dtype in (np.uint8, np.float32), f"images must be uint8 or float32, not {images.dtype}")
        _check(images.flags.c_contiguous, "images must be C-contiguous")
        _check(images.size > 0, f"there must be images, but the shape is {list(images.shape)}")
        for name in ("labels", "owners"):
            values = getattr(self, name)
            if values is None:
                continue
            _check(values.dtype == np.int64, f"{name} must be int64, not {values.dtype}")
            expected = (len(images),)
            _check(values.shape == expected, f"{name} must have the shape {expected}, not {values.shape}")
            _check(values.min() >= 0, f"{name} must not be negative, but one is {values.min()}")

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: np.ndarray) -> Split:
        """Return the samples at ``indices``, copied."""
        owners = None if self.owners is None else self.owners[indices]
        return Split(self.images[indices], self.labels[indices], owners)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, ready to train on; raises :class:`DataError` if its parts do not fit together.

    mean, std: per channel (or one for all channels), of pixels scaled to [0, 1]; 0 and 1 mean "as is". vocabulary: one
    more than the highest token id, where the images are token ids; None where they are pixels or features. notes: what
    was read of the files and how, in sentences; warnings: what may be a mistake in them. Both are in no fingerprint.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: int | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """What a user is told of these data: what was taken, how many rows each class has, and warnings."""
        counts = [np.bincount(split.labels, minlength=len(self.classes)).tolist() for split in (self.train, self.test)]
        rows = list(zip(self.classes, *counts, strict=True))
        told = f"classes with training + test rows: {listed([f'{name} {a:,} + {b:,}' for name, a, b in rows if a + b])}"
        return tuple(map(one_line, (*self.notes, told, *(f"warning: {one}" for one in self.warnings))))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that a result may depend on."""
        digest = hashlib.sha256(repr((self.mean, self.std, len(self.classes))).encode())
        for split in (self.train, self.test):
            for array in (split.images, split.labels, split.owners):
                if array is not None:
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def __post_init__(self) -> None:
        train, test = self.train.images, self.test.images
        sizes = f"{list(train.shape[1:])} and {list(test.shape[1:])}"
        _check(train.shape[1:] == test.shape[1:], f"{self.name}: train and test images differ in size: {sizes}")
        _check(train.dtype == test.dtype, f"{self.name}: train and test images differ in type")
        broken = next((name for name in self.classes if name.encode(errors="ignore").decode() != name), None)
        _check(broken is None, f"{self.name}: the class {broken!a} is no text in UTF-8; rename it")
        for name, split in (("train", self.train), ("test", self.test)):
            highest = int(split.labels.max())
            count = len(self.classes)
            _check(highest < count, f"{self.name}: a {name} label is {highest}, but there are {count} classes")
        for name, values in (("mean", self.mean), ("std", self.std)):
            fits = len(values) in (1, train.shape[1])
            _check(fits, f"{self.name}: {name} has {len(values)} values for {train.shape[1]} channels")
        _check(min(self.std) > 0, f"{self.name}: std must be above 0, not {self.std}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


@dataclass(frozen=True, kw_only=True)
class Source(Checked, ABC):
    """The place that a data set comes from, and how much of it to keep.

    train_samples, test_samples: how many samples to keep; None keeps all. The subset has the class shares of
    the whole, is the same for every seed, and keeps the order of the whole. normalise: by the data's mean and
    std; without it pixels are trained on as they are, scaled to [0, 1] (PFLEGO's code), and features unchanged.
    test_part: which of the disjoint parts of ``test_samples`` rows each, see :func:`disjoint_part`; None: one for all.
    validation: the share of the training samples kept that takes the place of the test samples; None: none.
    imbalance, imbalance_kind: the long tail of the training rows that are divided among clients, see :meth:`remaining`.
    """

    downloads: ClassVar[bool] = False  # by itself, where its files are missing
    neutral: ClassVar[Mapping[str, Any]] = {}  # fields that are in no digest at these values, at which they do nothing

    train_samples: Annotated[
        int | None,
        Ge(1),
        Doc("keep this many training samples, with the class shares of the whole"),
        Neutral(None, "keeps all"),
    ] = None
    test_samples: Annotated[int | None, Ge(1), Doc("the same for the test samples"), Neutral(None, "keeps all")] = None
    test_part: Annotated[
        int | None,
        Ge(0),
        Doc(
            "which of the disjoint parts of `test_samples` test rows, beginning anew after the last one; a sweep adds "
            "each seed to it, so that intervals over seeds hold the chance of the test rows, too"
        ),
        Neutral(None, "draws one part for all seeds"),
    ] = None
    validation: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc(
            "share of the training rows that is left out of training and takes the place of the test rows, to choose "
            "settings by; with the class shares of the whole, the same for every seed"
        ),
        Neutral(None, "leaves all as they are"),
    ] = None
    normalise: Annotated[
        bool,
        Doc("by the mean and std of the data; false: pixels stay in [0, 1], as in PFLEGO's code, features as they are"),
        Neutral(False, "leaves numbers as they are"),
    ] = True
    imbalance: Annotated[
        float,
        Ge(1),
        Doc(
            "long tail of the rows that are divided, public ones included: the first class has this many times those "
            "of the last; which ones is drawn by `partition.seed`"
        ),
        Neutral(1, "leaves none out"),
    ] = 1.0
    imbalance_kind: Annotated[
        Tail, Doc("rows fall from class to class by one factor, or once, after the first half of the classes")
    ] = "exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        sized = self.test_part is None or self.test_samples is not None
        require(sized, "test_part", self.test_part, "needs the size of a part", "set data.test_samples=2000")

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return those fields, of all as they are ``written`` in a config, that tell what is read."""
        tail = () if self.imbalance > 1 else ("imbalance", "imbalance_kind")
        kept = identifying(written, {"test_part": None, "validation": None, **self.neutral})
        return {name: value for name, value in kept.items() if name not in tail}

    def folder(self, download: bool = False) -> Path | None:
        """Return where the files of the data set lie, None for data that need no files, without opening any of them.

        ``download``: fetch files that are missing, for a data set that ``downloads``. Raises :class:`DataError`, which
        says what is missing and how to get it.
        """
        return None

    @abstractmethod
    def read(self) -> Dataset:
        """Read the whole data set; raise :class:`DataError` if it is missing or cannot be read."""

    def load(self) -> Dataset:
        """Read the data set and keep ``train_samples`` and ``test_samples`` of it; "as is" unless ``normalise``.

        With ``validation`` a share of the former is in the place of the latter. Raises :class:`DataError` as
        :meth:`read`, and :class:`ConfigError` if there are not so many samples.
        """
        with noting() as notes:
            data = self._read_alike()
            splits = {}
            for name in ("train", "test"):
                split = getattr(data, name)
                rows = self.chosen(name, split.labels)
                splits[name] = split if len(rows) == len(split) else split.take(rows)
            if self.validation is not None:
                whole = splits["train"]
                kept, tested = held_out(whole.labels, self.validation, "data.validation")
                splits = {"train": whole.take(kept), "test": whole.take(tested)}
                note(f"test rows: {len(tested):,} of {len(whole):,} training rows, by data.validation")
            train = splits["train"].labels
            _warn_of_classes(data.classes, train)
            if self.imbalance > 1:
                counts = self._tail(train, len(data.classes))
                told = f"{counts.sum():,} of {len(train):,} divided, by data.imbalance"
                note(f"train rows: {told}; of each class {listed(list(map(str, counts)))}")
        mean, std = (data.mean, data.std) if self.normalise else AS_IS
        told = {"notes": data.notes + notes.facts, "warnings": (*data.warnings, *notes.warnings)}
        return dataclasses.replace(data, **splits, mean=mean, std=std, **told)

    def remaining(self, labels: np.ndarray, num_classes: int, seed: int) -> np.ndarray:
        """Return the sorted rows int64 of the training split, with ``labels`` int64 [N], that ``imbalance`` leaves.

        The others are nobody's; ``seed`` is the partition's.
        """
        if self.imbalance == 1:
            return np.arange(len(labels))
        return drawn_rows(labels, self._tail(labels, num_classes), seed, "imbalance")

    def _tail(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        return tail_counts(np.bincount(labels, minlength=num_classes), self.imbalance, self.imbalance_kind)

    def _read_alike(self) -> Dataset:
        """Read it; what comes from outside, and does not take long, twice: other data each time are refused."""
        began, name = time.perf_counter(), name_of(self)
        data = self._read()
        require(isinstance(data, Dataset), "data.name", name, f"gives a {type(data).__name__}", "return a Dataset")
        quick = time.perf_counter() - began < QUICK
        with noting():  # what was read is noted already
            same = is_ours(type(self)) or not quick or self._read().fingerprint == data.fingerprint
        repair = "draw from generators with seeds, and sort what a folder lists"
        require(same, "data.name", name, "gives other data when it is read again", repair)
        return data

    def _read(self) -> Dataset:
        with calling(self, "data.name", "draw from numpy.random.default_rng(SEED) with a seed of its own"):
            return self.read()

    def chosen(self, split: str, labels: np.ndarray) -> np.ndarray:
        """Return the sorted rows int64 that ``load`` keeps of the split "train" or "test" with ``labels`` int64 [N].

        These are all rows of a split that has been reduced already, so a reader may reduce it before it decodes.
        """
        samples = getattr(self, f"{split}_samples")
        if samples is None or samples == len(labels):
            return np.arange(len(labels))
        if samples > len(labels):
            rule = f"is more than the {len(labels)} {split} samples"
            raise ConfigError(f"data.{split}_samples", samples, rule, "leave it out to keep all")
        note(f"{split} rows: {samples:,} of {len(labels):,} kept, by data.{split}_samples")
        if split == "test" and self.test_part is not None:
            return disjoint_part(labels, samples, self.test_part)
        return stratified(labels, samples, f"subset/{split}")


def _warn_of_classes(names: Sequence[str], labels: np.ndarray) -> None:
    counts = np.bincount(labels, minlength=len(names))
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if empty:
        none = f"{len(empty):,} of {len(names):,} classes have no training row ({listed(empty, 5)})"
        warn(f"{none}; numbers begin at 0")
    if 2 * (len(names) - len(empty)) > len(labels) > 20:
        warn(f"{len(names):,} classes for {len(labels):,} training rows")


def largest_remainder(total: int, shares: np.ndarray) -> np.ndarray:
    """Divide ``total`` into whole numbers [K] that each differ from ``total * shares`` by less than 1.

    ``shares`` [K] are not negative and add up to 1. What rounding down leaves goes to the largest fractions
    (the lower index where they are equal).
    """
    exact = total * (shares / shares.sum())
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")  # largest fraction first
    counts[order[: total - counts.sum()]] += 1
    return counts


def stratified(labels: np.ndarray, samples: int, purpose: str) -> np.ndarray:
    """Draw sorted indices int64 [samples] with the class shares of ``labels``, by the key ``purpose``."""
    sizes = np.bincount(labels)
    quota = largest_remainder(samples, sizes / len(labels))
    rng = numpy_generator(0, purpose)
    chosen = [rng.choice(np.flatnonzero(labels == c), size=n, replace=False) for c, n in enumerate(quota) if n > 0]
    return np.sort(np.concatenate(chosen))


def disjoint_part(labels: np.ndarray, samples: int, number: int) -> np.ndarray:
    """Return sorted indices int64 [samples] with the class shares of ``labels``: one of as many disjoint parts as the
    class with the fewest rows for them has room for. ``number`` begins anew after the last of these.
    """
    sizes = np.bincount(labels)
    quota = largest_remainder(samples, sizes / len(labels))
    parts = int((sizes[quota > 0] // quota[quota > 0]).min())
    require(parts > 1, "data.test_samples", samples, "leaves room for one part alone", "lower it, or drop test_part")
    number %= parts
    rng = numpy_generator(0, "test parts")
    rows = [rng.permutation(np.flatnonzero(labels == c)) for c in range(len(sizes))]
    return np.sort(np.concatenate([one[n * number : n * (number + 1)] for one, n in zip(rows, quota, strict=True)]))


def held_out(labels: np.ndarray, fraction: float, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows with ``labels`` int64 [N] into sorted rows int64 to train on and to test on.

    The latter are the ``fraction`` of all, rounded, at least one and not all, with the class shares of the whole. The
    draw's key is fixed. ``key``: what asks for it. Raises :class:`DataError` for labels below 0, or a single row.
    """
    if labels.min() < 0:
        raise DataError(f"labels must not be negative, but one is {labels.min()}")
    if len(labels) < 2:
        raise DataError(f"{key} needs at least two rows, and there is one")
    test = stratified(labels, min(max(round(fraction * len(labels)), 1), len(labels) - 1), "held out/test")
    return np.setdiff1d(np.arange(len(labels)), test), test


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 images [N, C, H, W], scaled to [0, 1].

    Counts the 256 values, so that sums are exact and need little memory. A channel of one value has std 1.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), 1024):
        for channel in range(images.shape[1]):
            block = images[start : start + 1024, channel]
            counts[channel] += np.bincount(block.ravel(), minlength=256)
    moments = [_mean_and_std(row) for row in counts.tolist()]
    return tuple(mean for mean, _ in moments), tuple(std for _, std in moments)


def _mean_and_std(counts: list[int]) -> tuple[float, float]:
    """Return mean and standard deviation of pixels in [0, 1], of which ``counts[v]`` have the value v of 255.

    Sums are of whole numbers, so no library's order of summation can be seen in the data's fingerprint.
    """
    number = sum(counts)
    total = sum(value * count for value, count in enumerate(counts))
    squares = sum(value * value * count for value, count in enumerate(counts))
    spread = number * squares - total * total  # variance * number^2 * 255^2
    return total / (255 * number), math.sqrt(spread) / (255 * number) if spread else 1.0


def feature_statistics(features: np.ndarray) -> MeanStd:
    """Return mean and standard deviation per channel of float32 features [N, D, 1, 1]; a constant one has std 1.

    In float64, by sums of whole rows whose order is fixed, so that no library's can be seen in the data's fingerprint.
    """
    rows = features.reshape(len(features), -1)
    mean = _column_sums(rows, np.zeros(rows.shape[1]), power=1) / len(rows)
    std = np.sqrt(_column_sums(rows, mean, power=2) / len(rows))
    std[std < np.finfo(np.float32).tiny] = 1.0  # its inverse would be no float32
    return tuple(mean.tolist()), tuple(std.tolist())


def _column_sums(rows: np.ndarray, centre: np.ndarray, power: int) -> np.ndarray:
    """Return the sum over ``rows`` [N, D] of (row - centre)^power, float64 [D]: halves added, 1,024 rows at a time."""
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), 1024):
        block = rows[start : start + 1024].astype(np.float64) - centre
        block = block if power == 1 else block * block
        while len(block) > 1:
            half = len(block) // 2
            block = np.concatenate([block[:half] + block[half : 2 * half], block[2 * half :]])
        total += block[0]
    return total


def assembled(
    name: str,
    classes: tuple[str, ...],
    splits: list[Split],
    mean_std: MeanStd | None,
    vocabulary: int | None = None,
) -> Dataset:
    """Put a data set together from [train, test]; an unknown mean and std are computed of the training split."""
    train, test = splits
    if mean_std is None:
        mean_std = (channel_statistics if train.images.dtype == np.uint8 else feature_statistics)(train.images)
    return Dataset(name, classes, train, test, *mean_std, vocabulary)


def as_float32(values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return numbers as float32, infinite where too large, and whether all that are whole numbers kept their digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        block, kind = values.astype(np.float32), values.dtype
        return block, kind.kind not in "iu" or kind.itemsize < 4 or bool((block.astype(kind) == values).all())


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise DataError(message)
