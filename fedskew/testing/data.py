"""Checks of a data set: arrays that fit together, the same each time."""

from __future__ import annotations

import dataclasses

import numpy as np

from engine.data import Dataset, Source
from fedskew.testing.failure import demand, telling


def _loaded(source: Source) -> Dataset:
    name = type(source).__name__
    with telling(f"{name} cannot be loaded", "see docs/own_parts.md for what it may return"):
        return source.load()


def splits_fit(source: Source) -> None:
    """Demand two splits of one shape and type, each with as many labels as images, and samples of every class."""
    name, data = type(source).__name__, _loaded(source)
    empty = [data.classes[number] for number in np.setdiff1d(np.arange(len(data.classes)), data.train.labels)]
    rule = f"{name} has no training sample of class {', '.join(empty[:5])}"
    demand(not empty, f"{rule}; number the classes that there are from 0 on, or add samples")


def labels_in_range(source: Source) -> None:
    """Demand labels from 0 to the number of classes, in both splits: others cannot be loaded."""
    _loaded(source)


def is_finite(source: Source) -> None:
    """Demand that no feature is NaN or infinite."""
    name, data = type(source).__name__, _loaded(source)
    for split in ("train", "test"):
        images = getattr(data, split).images
        spoilt = 0 if images.dtype == np.uint8 else int((~np.isfinite(images)).sum())
        demand(
            spoilt == 0, f"{name} has {spoilt} values in {split} that are NaN or infinite; fill them in or drop rows"
        )


def same_each_time(source: Source) -> None:
    """Demand the same samples when it is loaded again, and no draw from a global generator."""
    name, (one, two) = type(source).__name__, (_loaded(source) for _ in range(2))
    rule = f"{name} has other samples when it is loaded again"
    demand(
        one.fingerprint == two.fingerprint, f"{rule}; draw from a generator with a seed, and sort what a folder lists"
    )


def can_be_reduced(source: Source) -> None:
    """Demand that ``train_samples`` and ``test_samples`` keep so many, in the order of the whole."""
    name, whole = type(source).__name__, _loaded(source)
    wanted = max(1, len(whole.train) // 2), max(1, len(whole.test) // 2)
    with telling(f"{name} cannot be reduced to half of its samples", "let the fields of Source be as they are"):
        part = dataclasses.replace(source, train_samples=wanted[0], test_samples=wanted[1]).load()
    found = len(part.train), len(part.test)
    rule = f"{name} has {found} samples where {wanted} were asked for by train_samples and test_samples"
    demand(found == wanted, f"{rule}; leave Source.load as it is, and define read alone")
