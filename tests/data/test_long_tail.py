"""Training sets cut to a long tail: how many rows, which ones, and who has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.base.errors import ConfigError
from engine.data import Assignment, Dataset, Split
from engine.data.dividing import divided
from engine.data.samples.long_tail import Tail, drawn_rows, tail_counts
from engine.experiment import Experiment

CIFAR10 = np.full(10, 5000)
LABELS = np.tile(np.arange(4), 40)  # 40 rows of each of 4 classes


def dataset(labels: np.ndarray = LABELS) -> Dataset:
    """Rows of one pixel, with 8 owners."""
    owners = np.arange(len(labels)) // 20
    split = Split(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, owners)
    return Dataset("rows", ("a", "b", "c", "d"), split, split, (0.0,), (1.0,))


def experiment(imbalance: float, kind: str = "exponential", **partition: Any) -> Experiment:
    data = {"name": "fashion_mnist_sample", "imbalance": imbalance, "imbalance_kind": kind}
    return Experiment(data=data, partition={"name": "iid", "clients": 5, **partition})


def of(config: Experiment, data: Dataset) -> Assignment:
    return divided(config.data, config.partition, data)


# --- how many -----------------------------------------------------------------------------------------------


def test_the_counts_of_long_tailed_cifar() -> None:
    """As in Cao et al. (2019) and later papers. Kills: rounding for truncation; c / C for c / (C - 1)."""
    counts = tail_counts(CIFAR10, 100, "exponential")
    assert counts.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    published = {(10, 100): 12_406, (10, 50): 13_996, (10, 10): 20_431}
    published |= {(100, 100): 10_847, (100, 50): 12_608, (100, 10): 19_573}
    for (classes, factor), total in published.items():
        assert tail_counts(np.full(classes, 50_000 // classes), factor, "exponential").sum() == total


def test_the_counts_of_a_step() -> None:
    """Kills: the first half cut; an exponential tail whatever the kind."""
    assert tail_counts(CIFAR10, 100, "step").tolist() == [5000] * 5 + [50] * 5
    assert tail_counts(np.full(3, 10), 5, "step").tolist() == [10, 2, 2]


@pytest.mark.parametrize("kind", ["exponential", "step"])
def test_the_smallest_class_sets_the_sizes(kind: Tail) -> None:
    """Kills: the largest class's size, of which a smaller one has not enough; a tail of each class's own size."""
    counts = tail_counts(np.array([60, 40, 50, 90]), 4, kind)
    assert (counts[0], counts[-1]) == (40, 10)
    assert tail_counts(np.array([7]), 1, kind).tolist() == [7]


def test_a_class_without_rows_is_refused() -> None:
    """Kills: a class that falls out unsaid."""
    assert tail_counts(np.full(4, 40), 40, "exponential")[-1] == 1
    with pytest.raises(ConfigError, match=r"data.imbalance=41: leaves class 3 no row.* has 40; set it to 40 or less"):
        tail_counts(np.full(4, 40), 41, "exponential")


# --- which ones ---------------------------------------------------------------------------------------------


def test_the_rows_that_remain() -> None:
    """Kills: the first rows of a class; a draw without the seed; one that depends on the counts."""
    counts, fewer = np.array([20, 10, 5, 2]), np.array([9, 9, 5, 1])
    rows = drawn_rows(LABELS, counts, 3, "imbalance")
    assert np.bincount(LABELS[rows]).tolist() == counts.tolist() and (np.diff(rows) > 0).all()
    assert rows.tolist() == drawn_rows(LABELS, counts, 3, "imbalance").tolist()
    assert rows.tolist() != drawn_rows(LABELS, counts, 4, "imbalance").tolist()
    assert set(drawn_rows(LABELS, fewer, 3, "imbalance")) < set(rows)
    assert not np.isin(np.flatnonzero(LABELS == 0)[:20], rows).all()


# --- who has them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partition",
    [
        {},
        {"name": "dirichlet", "alpha": 0.3},
        {"name": "owner_groups", "clients": 3},
        {"name": "iid", "clients": 3, "public_per_class": 2},
        {"name": "class_sets", "clients": 2, "sets": [[0, 1], [0, 1, 2]], "per_class": 2, "public_per_class": 3},
    ],
)
def test_clients_and_the_public_share_what_remains(partition: dict[str, Any]) -> None:
    """Kills: places in the tail taken for rows of the data, of clients, of the public or of what a rule drops."""
    data, config = dataset(), experiment(8, seed=5, **partition)
    found = of(config, data)
    remaining = config.data.remaining(LABELS, 4, 5)
    held = np.concatenate([*found.clients, found.public])
    assert np.sort(np.concatenate([held, found.dropped])).tolist() == list(range(160))  # each once
    assert set(held) <= set(remaining)
    assert np.bincount(LABELS[remaining]).tolist() == [40, 20, 10, 5]
    if partition.get("name") == "class_sets":
        assert np.bincount(LABELS[found.public]).tolist() == [3, 3, 3]
        assert found.class_counts(LABELS, 4).tolist() == [[2, 2, 0, 0], [2, 2, 2, 0]]
    else:
        assert held.size == len(remaining)
        assert np.bincount(LABELS[found.public], minlength=4).tolist() == [partition.get("public_per_class", 0)] * 4


def test_public_rows_for_any_partition() -> None:
    """Kills: public rows that a client holds, that go by the partition or move where more are asked for; a division of
    the rest that is another where there are none."""
    found = {
        (name, count): of(experiment(1, seed=5, name=name, clients=4, public_per_class=count), dataset())
        for name in ("iid", "shards")
        for count in (0, 3, 6)
    }
    for name in ("iid", "shards"):
        few, more = (set(found[name, count].public) for count in (3, 6))
        assert few < more and few == set(found["iid", 3].public)
        assert np.bincount(LABELS[found[name, 6].public]).tolist() == [6] * 4
        assert not more & {*np.concatenate(found[name, 6].clients)}
        assert found[name, 6].sizes().sum() == 160 - 24 and not len(found[name, 0].public)
    config = experiment(1, seed=5, name="iid", clients=4)
    plain = config.partition.assign(LABELS, 4)
    assert found["iid", 0].digest == plain.digest
    assert "public_per_class" not in config.identity()["partition"]
    with pytest.raises(
        ConfigError, match=r"partition.public_per_class=40: leaves clients none of a class with 40 .* to 39"
    ):
        of(experiment(1, name="iid", public_per_class=40), dataset())


def test_without_a_tail_rows_are_divided_as_before() -> None:
    """Kills: another draw of the partition where nothing is cut."""
    data, config = dataset(), experiment(1, name="dirichlet", alpha=0.3)
    whole = config.partition.assign(LABELS, 4, data.train.owners)
    assert of(config, data).digest == whole.digest
    assert of(experiment(8, name="dirichlet", alpha=0.3), data).digest != whole.digest


def test_test_rows_of_owners_of_whom_some_lose_all() -> None:
    """Owner 1 has rows of class 3 alone, of which 1 of 20 remains. Kills: groups of all owners, of whom some fell out:
    test rows of an owner that go to another group than its training rows."""
    labels = np.repeat([0, 1, 2, 3, 0, 1, 2, 3], 20)
    labels[:3] = [1, 2, 3]
    labels[20:60] = 3
    for seed in range(5):
        config, data = experiment(13, name="owner_groups", clients=3, order="sequential", seed=seed), dataset(labels)
        found = config.partition.share_tests(of(config, data), data)
        owners = data.train.owners
        assert owners is not None
        for rows, tests in zip(found.clients, found.tests, strict=True):
            assert set(owners[rows]) == set(owners[tests])


# --- the experiment's identity ------------------------------------------------------------------------------


def test_the_digest() -> None:
    """Kills: another digest for experiments that were there before the field; equal ones for two tails."""
    plain = Experiment(partition={"name": "iid", "clients": 5})
    assert "imbalance" not in plain.identity()["data"]
    assert experiment(1, "step").digest == experiment(1.0).digest == plain.digest
    digests = {experiment(*of).digest for of in [(1,), (10,), (100,), (100, "step")]}
    assert len(digests) == 4


def test_what_is_told_of_the_data() -> None:
    """Kills: a user who is not told of the cut; a test set that is cut; rows of the data themselves that are cut."""
    data = experiment(100).data.load()
    sentence = "train rows: 2,478 of 10,000 divided, by data.imbalance; of each class 1000, 599, 359, 215, 129, 77, 46"
    assert sentence in data.told[0]
    assert data.fingerprint == experiment(1).data.load().fingerprint
