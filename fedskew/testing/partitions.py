"""Checks of a partition: each row at most once, the same for a seed, a sentence for what it cannot divide."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache

import numpy as np

from engine.base.errors import ConfigError, FedskewError
from engine.data import Assignment, Dataset, Partition, Split
from engine.data.samples.assignment import Parts
from fedskew.testing.failure import NotApplicable, NotConforming, demand, telling

CLASSES, PER_CLASS, OWNERS = 10, 4000, 200
TEST_PER_CLASS = 50


@cache
def _samples() -> Dataset:
    """Many samples of one pixel, of ten classes, with owners."""
    splits = []
    for seed, per_class in ((0, PER_CLASS), (1, TEST_PER_CLASS)):
        rng = np.random.Generator(np.random.PCG64(seed))
        labels = rng.permutation(np.repeat(np.arange(CLASSES, dtype=np.int64), per_class))
        owners = rng.permutation(np.arange(len(labels), dtype=np.int64) % OWNERS)
        splits.append(Split(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, owners))
    train, test = splits
    return Dataset("rows", tuple(map(str, range(CLASSES))), train, test, (0.0,), (1.0,))


def _divided(partition: Partition) -> Assignment:
    name, train = type(partition).__name__, _samples().train
    repair = "let it work with any int64 labels, of ten classes here"
    with telling(f"{name} cannot divide {len(train)} samples", repair):
        return partition.assign(train.labels.copy(), CLASSES, None if train.owners is None else train.owners.copy())


def _same(one: Assignment, two: Assignment) -> bool:
    pairs = zip(one.clients, two.clients, strict=False)
    return len(one.clients) == len(two.clients) and all(np.array_equal(a, b) for a, b in pairs)


def every_row_at_most_once(partition: Partition) -> None:
    """Demand that no row has two clients, or a client and the public, and that all rows are of the data."""
    name, parts = type(partition).__name__, _divided(partition)
    rows = np.concatenate([Parts.of(parts.clients).joined, parts.public])
    twice = len(rows) - len(np.unique(rows))
    demand(twice == 0, f"{name} gives {twice} rows to more than one client; deal each row once")
    inside = len(rows) == 0 or bool(rows.min() >= 0 and rows.max() < len(_samples().train))
    demand(inside, f"{name} gives rows that the data do not have; return places in labels")
    demand(len(rows) > 0, f"{name} gives no client a row; return for each client the rows that it holds")


def makes_the_clients_asked_for(partition: Partition) -> None:
    """Demand as many clients as were asked for."""
    name, parts = type(partition).__name__, _divided(partition)
    asked = partition.clients or OWNERS
    rule = f"{name} makes {len(parts.clients)} clients where clients={asked} are asked for"
    demand(len(parts.clients) == asked, f"{rule}; return so many index arrays, empty ones where there are no rows")


def same_for_a_seed(partition: Partition) -> None:
    """Demand the same division for the same seed, and no draw from a global generator."""
    name, (one, two) = type(partition).__name__, (_divided(partition) for _ in range(2))
    demand(_same(one, two), f"{name} divides otherwise each time with seed={partition.seed}; draw from rng alone")


def another_for_another_seed(partition: Partition) -> None:
    """Demand another division for another seed."""
    name, function = type(partition).__name__, getattr(partition, "function", None)
    if function is not None and "rng" not in inspect.signature(function).parameters:
        raise NotApplicable("it is a function that does not ask for rng")
    one, two = (_divided(dataclasses.replace(partition, seed=partition.seed + k)) for k in (0, 1))
    rule = f"{name} divides alike with seed={partition.seed} and seed={partition.seed + 1}"
    demand(not _same(one, two), f"{rule}; draw from rng, which is of the seed")


def takes_one_class(partition: Partition) -> None:
    """Demand of labels of a single class a division, or a sentence for the user."""
    name = type(partition).__name__
    labels = np.zeros(len(_samples().train), np.int64)
    _divides_or_says(partition, labels, 1, f"{name} fails on labels of one class")


def refuses_too_few(partition: Partition) -> None:
    """Demand that fewer samples than clients are refused in a sentence, unless clients are the data's owners."""
    name = type(partition).__name__
    if partition.clients < 2:
        return
    labels = np.arange(partition.clients - 1, dtype=np.int64) % CLASSES
    divided = _divides_or_says(partition, labels, CLASSES, f"{name} fails on fewer samples than clients")
    rule = f"{name} divides {len(labels)} samples among {partition.clients} clients"
    demand(not divided, f"{rule}; leave Partition._check_feasible as it is, or raise fedskew.ConfigError")


def _divides_or_says(partition: Partition, labels: np.ndarray, classes: int, failing: str) -> bool:
    """Whether it divides; it may refuse in a sentence of its own, and in no other way."""
    try:
        partition.assign(labels, classes, np.arange(len(labels), dtype=np.int64) % OWNERS)
    except ConfigError as error:
        if error.__cause__ is not None and "raised" in error.rule:
            raise NotConforming(f"{failing}: {error}; refuse it by fedskew.require(...)") from error
        return False
    except FedskewError:
        return False
    except Exception as error:
        told = " ".join(str(error).split())
        raise NotConforming(f"{failing}: {type(error).__name__}: {told}; refuse it by fedskew.require(...)") from error
    return True


def shares_out_test_rows(partition: Partition) -> None:
    """Demand that each test row has one client at most, and that all clients together have some."""
    name, data = type(partition).__name__, _samples()
    with telling(f"{name} cannot divide the test samples", "leave Partition.share_tests as it is"):
        tests = Parts.of(partition.share_tests(_divided(partition), data).tests)
    rows = tests.joined
    twice = len(rows) - len(np.unique(rows))
    demand(twice == 0, f"{name} gives {twice} test rows to more than one client; deal each row once")
    demand(len(rows) > 0, f"{name} gives no client a test row; leave Partition.share_tests as it is")
