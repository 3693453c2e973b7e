"""Partition ``class_sets``: CBHMA's settings, which rows a device has, public rows, random sets, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import ConfigError
from engine.data import ClassSets, FashionMnistSample
from engine.data.partitions.class_sets import SETTINGS, Sets
from engine.run.preparing import prepare
from tests.support.tiny import experiment

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
SMALL: dict[str, Any] = {"per_class": 8, "public_per_class": 12}


def assign(labels: np.ndarray = LABELS, **fields: Any):
    return ClassSets(**{**SMALL, **fields}).assign(labels, 10)


def incidence(sets: Sets) -> np.ndarray:
    """Whether device k knows class l, int64 [K, 10]."""
    return np.array([[c in classes for c in range(10)] for classes in sets], dtype=np.int64)


@pytest.mark.parametrize(
    ("setting", "one", "nine", "unseen"),
    [
        ("BS", 3, 3, set()),
        ("IS-1", 1, 5, {(1, 2), (1, 3), (1, 4), (1, 5)}),
        ("IS-2", 5, 1, {(2, 9), (3, 9), (4, 9), (5, 9)}),
    ],
)
def test_the_settings_have_the_stated_column_sums(setting: str, one: int, nine: int, unseen: set[tuple[int, int]]):
    """Oracle 13: how many devices know a class, 6 classes for each device, and the pairs of classes that no device
    knows both of. Also of the rows that come of it. Kills: a wrong class in any set.
    """
    known = incidence(SETTINGS[setting])
    assert known.sum(axis=0).tolist() == [3, one, 3, 3, 3, 3, 3, 3, 3, nine]
    assert known.sum(axis=1).tolist() == [6] * 5
    never = np.argwhere(np.triu(known.T @ known == 0))
    assert set(map(tuple, never.tolist())) == unseen
    assignment = assign(sets=setting)
    assert np.array_equal(assignment.class_counts(LABELS, 10), 8 * known)


@pytest.mark.parametrize("sets", ["IS-1", ((0, 1), (3, 1), (7,), (0,), (3,))])
def test_public_rows_are_of_known_classes_and_nobodys(sets: Any):
    """Kills: public rows of a class that no device knows; rows that two have, or none; the first rows of a class."""
    assignment = assign(sets=sets)
    known = incidence(SETTINGS[sets] if isinstance(sets, str) else sets).any(axis=0)
    assert np.bincount(LABELS[assignment.public], minlength=10).tolist() == (12 * known).tolist()
    parts = [*assignment.clients, assignment.public, assignment.dropped]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    assert not np.array_equal(assignment.public[LABELS[assignment.public] == 1], np.flatnonzero(LABELS == 1)[-12:])


def test_rows_of_a_device_are_its_own_matter():
    """Kills: rows that follow other devices' sets or the number of public rows; one slot for two devices; public rows
    that are not part of a larger public set; a draw without the seed.
    """
    base = assign(sets="IS-1")
    mine = SETTINGS["IS-1"][2]
    others = assign(sets=((0,), (4, 1), mine, (3,), (9, 1)))
    assert np.array_equal(others.clients[2], base.clients[2])
    fewer = assign(sets="IS-1", public_per_class=5)
    assert all(map(np.array_equal, fewer.clients, base.clients))
    assert set(fewer.public) < set(base.public)
    everyone = assign(sets=(mine,) * 5)
    assert len(np.unique(np.concatenate(everyone.clients))) == 5 * 6 * 8
    assert np.array_equal(everyone.clients[2], base.clients[2])
    assert set(assign(sets="IS-1", seed=1).clients[2]) != set(base.clients[2])


@pytest.mark.parametrize(("share", "rows"), [(0.5, 4), (0.3, 2), (0.01, 1), (1.0, 8)])
def test_a_poor_device_has_a_part_of_its_rows(share: float, rows: int):
    """Kills: other rows in place of fewer; a share of all devices; no row at all."""
    base, poor = assign(), assign(poor_device=3, poor_share=share)
    assert np.bincount(LABELS[poor.clients[3]], minlength=10)[list(SETTINGS["BS"][3])].tolist() == [rows] * 6
    assert set(poor.clients[3]) <= set(base.clients[3])
    for device in (0, 1, 2, 4):
        assert np.array_equal(poor.clients[device], base.clients[device])
    assert np.array_equal(poor.public, base.public)


@pytest.mark.parametrize(("clients", "num_classes"), [(5, 10), (3, 10), (1, 4), (12, 5)])
def test_random_sets_have_three_to_six_classes_and_cover_all(clients: int, num_classes: int):
    """Kills: a class without a device, 2 or 7 classes, a class twice, sets of another seed, the first number alone."""
    sizes, drawn = set(), set()
    for seed in range(40):
        sets = ClassSets(clients=clients, sets="random", seed=seed).class_sets(num_classes)
        assert len(sets) == clients
        assert set().union(*sets) == set(range(num_classes))
        assert all(list(classes) == sorted(set(classes)) for classes in sets)
        sizes |= {len(classes) for classes in sets}
        drawn.add(sets)
        assert ClassSets(clients=clients, sets="random", seed=seed, per_class=7).class_sets(num_classes) == sets
    assert sizes == ({4} if clients == 1 else set(range(3, min(6, num_classes) + 1)))
    assert len(drawn) > 20 or clients == 1


def test_random_sets_are_those_of_the_rows():
    """Kills: other sets than ``class_sets`` tells."""
    partition = ClassSets(sets="random", seed=3, **SMALL)
    assert np.array_equal(
        partition.assign(LABELS, 10).class_counts(LABELS, 10) > 0, incidence(partition.class_sets(10))
    )


def test_no_public_image_is_a_test_image(tmp_path: Path):
    """Of the embedded Fashion-MNIST, also after a stop. Kills: public rows of the test split; rows that are lost on
    the way to the file.
    """
    config = experiment(
        data={"name": "fashion_mnist_sample"}, partition={"name": "class_sets", "sets": "IS-1", "per_class": 180}
    )
    first = prepare(config, tmp_path, False)
    first.write()
    public, data = prepare(config, tmp_path, False).assignment.public, FashionMnistSample().load()
    assert np.array_equal(public, first.assignment.public) and len(public) == 1000
    tests = {image.tobytes() for image in data.test.images}
    assert len(tests) > 1900
    assert not tests & {image.tobytes() for image in data.train.images[public]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sets": "IS-2", "clients": 4}, "clients=4: is not the number of class sets, 5; set it to 5"),
        ({"sets": ((0, 1), (2,)), "clients": 3}, "clients=3: is not the number of class sets, 2; set it to 2"),
        ({"sets": ((0, 1), ()), "clients": 2}, r"sets=\[\[0, 1\], \[\]\]: must have class numbers .* for device 1"),
        ({"sets": ((0, 1, 0),), "clients": 1}, r"sets=\[\[0, 1, 0\]\]: must have .* device 0, each once; for example"),
        ({"sets": ((0, -1),), "clients": 1}, r"sets=\[\[0, -1\]\]: must have class numbers from 0 on"),
        ({"sets": ()}, r"sets=\[\]: must have the classes of at least one device; for example"),
        ({"per_class": 0}, "per_class=0: must be at least 1; for example"),
        ({"public_per_class": -1}, "public_per_class=-1: must be at least 0; 0 is none"),
        ({"poor_device": 5}, "poor_device=5: must be the number of a device; set it to 0 to 4"),
        ({"poor_share": 0.0}, "poor_share=0.0: must be greater than 0 and at most 1; 1 is a device like the others"),
        ({"min_samples": 2, "on_small": "repair"}, "min_samples=2: cannot be kept where devices have given classes"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], message: str):
    """Kills: a missing check; a bound that is off by one."""
    with pytest.raises(ConfigError, match=message):
        ClassSets(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"per_class": 10, "public_per_class": 11},
            "partition.per_class=10: for 5 devices and 11 public samples is more than the 60 training samples of class "
            "4; set it to 9 or less",
        ),
        ({"per_class": 9, "public_per_class": 61}, "partition.per_class=9: .* lower partition.public_per_class"),
        (
            {"sets": ((4, 5), (12, 4)), "clients": 2},
            r"partition.sets=\[\[4, 5\], \[12, 4\]\]: has class 12, but the data have classes 0 to 9; take other sets",
        ),
        (
            {"sets": "random", "clients": 1},
            "partition.clients=1: with 3 to 6 classes each left some of the 10 classes to nobody in 1000 draws",
        ),
    ],
)
def test_what_the_data_do_not_allow_is_refused(fields: dict[str, Any], message: str):
    """Class 4 has the fewest rows here. Kills: rows short in silence; a bound that is off by one."""
    labels = np.append(LABELS, [0, 1, 2, 3, 5, 6, 7, 8, 9])
    with pytest.raises(ConfigError, match=message):
        assign(labels, **fields)
    assert assign(labels, per_class=10, public_per_class=10).sizes().tolist() == [60] * 5


def test_sets_need_their_classes():
    """Kills: an index error where the data have other classes than the paper's."""
    with pytest.raises(ConfigError, match=r"partition\.sets=BS: has class 9, but the data have classes 0 to 4"):
        ClassSets(**SMALL).assign(LABELS % 5, 5)
    with pytest.raises(ConfigError, match=r"partition\.sets=random: draws 3 classes or more, but the data have 2"):
        ClassSets(sets="random", **SMALL).assign(LABELS % 2, 2)
