"""Partitions by what is given: sizes, a matrix of classes, groups of owners; alpha for each part; classes and shards
in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import ConfigError
from engine.data import PARTITIONS, Assignment, Dataset, Split
from engine.data.partitions.dealing import dirichlet_shares
from engine.data.partitions.natural import OwnerGroups
from engine.data.partitions.sizes import client_sizes
from engine.data.samples.dataset import AS_IS
from engine.experiment import Experiment

Fields = dict[str, Any]


def assign(labels: np.ndarray, name: str, owners: np.ndarray | None = None, **fields: Any) -> Assignment:
    return PARTITIONS.build({"name": name, **fields}).assign(labels, int(labels.max()) + 1, owners)


def counts_of(labels: np.ndarray, name: str, **fields: Any) -> list[list[int]]:
    """Samples of each client and class."""
    return assign(labels, name, **fields).class_counts(labels, int(labels.max()) + 1).tolist()


def check_whole(assignment: Assignment, samples: int) -> None:
    """Every sample once, with a client or dropped."""
    everything = np.concatenate([*assignment.clients, assignment.dropped])
    assert np.array_equal(np.sort(everything), np.arange(samples))


# --- sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "clients", "samples", "expected"),
    [
        ("linear", 4, 20, [2, 4, 6, 8]),
        ("linear", 3, 10, [2, 3, 5]),  # 1.67, 3.33, 5
        ("square", 3, 28, [2, 8, 18]),
        ("exponential", 3, 1000, [90, 245, 665]),  # 90.03, 244.73, 665.24
        ("linear", 1, 7, [7]),
        ([5, 0, 7], 3, 12, [5, 0, 7]),
        ([0.5, 0.25, 0.25], 3, 10, [5, 3, 2]),  # 5, 2.5, 2.5
        ([1.0, 0.0], 2, 9, [9, 0]),
    ],
)
def test_sizes_are_those_given(sizes: Any, clients: int, samples: int, expected: list[int]) -> None:
    """By hand. Kills: k from 0 on, growth from the last client on, another power, 2^k for e^k, counts taken for shares
    and shares that happen to be whole for counts; the same for ``dirichlet_client``.
    """
    labels = np.arange(samples) % 2
    for name in ("sizes", "dirichlet_client"):
        assignment = assign(labels, name, clients=clients, sizes=sizes)
        assert assignment.sizes().tolist() == expected
        check_whole(assignment, samples)


def test_many_clients_grow_without_overflow() -> None:
    """e^2000 is beyond floats; of 10^5 samples the last client has 1 - 1/e. Kills: e^k itself; a share by floor."""
    sizes = client_sizes("exponential", 2000, 100_000)
    assert sizes.sum() == 100_000 and sizes[-1] == 63_212 and not sizes[:1980].any()
    assert np.all(np.diff(client_sizes("square", 2000, 10**9)) >= 0)


def test_content_of_given_sizes_is_random() -> None:
    """Of 10,000 samples in two classes a client of 4,000 has 2,000 of each, 5 standard deviations more or less. Kills:
    runs of the data in their order.
    """
    labels = np.repeat(np.arange(2), 5000)
    counts = counts_of(labels, "sizes", clients=3, sizes=[4000, 4000, 2000])
    assert all(abs(counts[k][0] - 2000) < 5 * np.sqrt(4000 * 0.25 * 0.6) for k in (0, 1))


def test_inner_dirichlet_skews_clients_of_given_sizes() -> None:
    """FedDyn's split. Kills: sizes that are left out of account, priors shared by all clients, alpha without effect."""
    labels, sizes = np.repeat(np.arange(5), 420), [10 * k for k in range(1, 21)]
    largest = {}
    for alpha in (0.01, 1e6):
        counts = np.array(counts_of(labels, "dirichlet_client", clients=20, sizes=sizes, alpha=alpha))
        assert counts.sum(axis=1).tolist() == sizes and counts.sum(axis=0).tolist() == [420] * 5
        largest[alpha] = float((counts.max(axis=1) / counts.sum(axis=1)).mean())
    assert largest[1e6] < 0.35 < 0.6 < largest[0.01]


# --- alpha for each part ----------------------------------------------------------------------------------------


def test_shares_of_a_concentration_for_each_part() -> None:
    """E = a_k / A, Var = m (1 - m) / (A + 1), 5 standard errors. Kills: values in another order, scaled, or the first
    for all.
    """
    alpha = (1.0, 2.0, 7.0)
    shares = dirichlet_shares(np.random.default_rng(0), alpha, 3, 20_000)
    mean = np.array(alpha) / 10
    spread = mean * (1 - mean) / 11
    assert np.all(np.abs(shares.mean(axis=0) - mean) < 5 * np.sqrt(spread / 20_000))
    assert np.allclose(shares.var(axis=0), spread, rtol=0.05)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_capped", "dirichlet_client"])
def test_equal_values_are_one_number(name: str) -> None:
    """Kills: a list that is drawn from otherwise, or that is for the other axis."""
    labels = np.random.default_rng(0).integers(0, 4, 600)
    fields: Fields = {"clients": 6} | ({"min_samples": 0, "on_small": "allow"} if name == "dirichlet_capped" else {})
    parts = 4 if name == "dirichlet_client" else 6
    one, each = (assign(labels, name, alpha=alpha, **fields) for alpha in (0.3, [0.3] * parts))
    assert all(map(np.array_equal, one.clients, each.clients))
    with pytest.raises(ConfigError, match=rf"alpha=\[0.3, 0.3, 0.3\]: has 3 values for {parts} cl.*give {parts} val"):
        assign(labels, name, alpha=[0.3] * 3, **fields)


def test_a_client_of_large_alpha_has_more() -> None:
    """Of 10 classes of 100 samples and 300 draws 100, 200 and 700 on average. Kills: one alpha for each class."""
    labels = np.repeat(np.arange(10), 100)
    sizes = [assign(labels, "dirichlet", clients=3, alpha=[1, 2, 7], seed=seed).sizes() for seed in range(300)]
    spread = 1000 * np.sqrt(0.21 / 11 / 3000)
    assert np.all(np.abs(np.mean(sizes, axis=0) - [100, 200, 700]) < 5 * spread)


def test_a_class_of_small_alpha_is_everybodys_second() -> None:
    """With 0.001 and 1000 all clients draw class 1 until it is used up; with 0.001 twice each is nearly pure. Kills:
    the first value for all classes; values for clients.
    """
    labels = np.repeat(np.arange(2), 500)
    mixed, pure = (
        np.array(counts_of(labels, "dirichlet_client", clients=20, alpha=alpha)).max(axis=1)
        for alpha in ([1e-3, 1e3], [1e-3, 1e-3])
    )
    assert np.median(mixed) < 35 and np.median(pure) > 40


# --- classes and shards in order --------------------------------------------------------------------------------


def test_deterministic_classes_go_round() -> None:
    """By hand: client k has k and k + 1 mod 4. Kills: classes that are drawn, runs of 2k and 2k + 1, a remainder for a
    drawn client.
    """
    labels = np.repeat(np.arange(4), [7, 6, 6, 7])
    expected = [[3, 2, 0, 0], [0, 2, 3, 0], [0, 0, 3, 4], [2, 0, 0, 3], [2, 2, 0, 0]]
    for seed in (0, 1):
        fields: Fields = {"clients": 5, "classes": 2, "assignment": "deterministic", "seed": seed}
        assert counts_of(labels, "classes_per_client", **fields) == expected


def test_first_deterministic_draws_the_others() -> None:
    """Kills: a first class that is drawn, one that comes twice, others that are not drawn or never some class."""
    labels = np.repeat(np.arange(5), 40)
    held = [
        np.array(
            counts_of(labels, "classes_per_client", clients=7, classes=3, assignment="first_deterministic", seed=s)
        )
        > 0
        for s in range(30)
    ]
    assert all(one[k, k % 5] and one[k].sum() == 3 for one in held for k in range(7))
    share = np.mean([one[0] for one in held], axis=0)
    assert share[0] == 1 and np.all(share[1:] > 0.2) and np.all(share[1:] < 0.8)  # 1/2 each
    single = counts_of(labels, "classes_per_client", clients=5, classes=1, assignment="first_deterministic")
    assert single == np.diag([40] * 5).tolist()


@pytest.mark.parametrize(
    ("fields", "possible", "dropped"),
    [
        # 7 shards, of which one has 2 samples: 3 for the first client, 2 for the others
        ({"shards_per_client": None, "shard_size": 4}, ([10, 8, 8], [12, 6, 8], [12, 8, 6]), 0),
        ({"shards_per_client": None, "shard_size": 4, "leftover": "drop"}, ([8, 8, 8],), 2),
        ({"shards_per_client": 2, "shard_size": 4, "leftover": "drop"}, ([8, 8, 8],), 2),
        ({"shards_per_client": 1, "shard_size": 4, "leftover": "drop"}, ([4, 4, 4],), 14),
        ({"shards_per_client": 3, "leftover": "drop"}, ([6, 6, 6],), 8),  # 9 shards of 2
        ({"shards_per_client": 3}, ([8, 9, 9], [9, 8, 9], [9, 9, 8]), 0),  # 8 shards of 3, one of 2
    ],
)
def test_shards_by_size(fields: Fields, possible: tuple[list[int], ...], dropped: int) -> None:
    """By hand, of 26 samples and 3 clients. Kills: a smaller shard that is lost, or dealt where it is to be dropped;
    others than the last samples by label dropped; clients that differ by more than a shard.
    """
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(2), 13))
    assignment = assign(labels, "shards", clients=3, **fields)
    check_whole(assignment, 26)
    assert assignment.sizes().tolist() in possible
    assert np.array_equal(np.sort(labels[assignment.dropped]), np.sort(labels)[26 - dropped :])


def test_shards_are_blocks_by_label() -> None:
    """Shards of 5 of 20 samples a class have one class. Kills: shards of samples in another order; a shard dealt to two
    clients.
    """
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(4), 20))
    counts = np.array(counts_of(labels, "shards", clients=8, shards_per_client=None, shard_size=5))
    assert np.all(counts % 5 == 0) and counts.sum(axis=1).tolist() == [10] * 8


@pytest.mark.parametrize("name", ["shards", "classes_per_client", "dirichlet_client"])
def test_fields_that_came_later_are_in_no_digest(name: str) -> None:
    """Kills: another digest for experiments that do not use them; a field that identifies nothing where it is used."""
    used: Fields = {
        "shards": {"leftover": "drop"},
        "classes_per_client": {"assignment": "deterministic"},
        "dirichlet_client": {"sizes": "linear"},
    }
    plain, other = (Experiment(partition={"name": name, **fields}) for fields in ({}, used[name]))
    written = plain.identity()["partition"]
    assert not {"shard_size", "leftover", "assignment", "sizes"} & set(written)
    assert plain.digest != other.digest and used[name].items() <= other.identity()["partition"].items()
    assert Experiment.from_mapping(other.to_mapping()) == other


DIGESTS = {
    "shards": "1c6641bb1c3f",
    "classes_per_client": "5d60dfda90ad",
    "dirichlet_client": "b51f2aa36aaf",
    "dirichlet": "91a830247ac0",
    "quantity": "9f3aa17589b6",
}


def test_digests_are_those_of_before() -> None:
    """As they were before these fields were there. Kills: a new name in the identity of an old experiment."""
    assert {name: Experiment(partition={"name": name}).digest for name in DIGESTS} == DIGESTS


# --- a matrix of classes ----------------------------------------------------------------------------------------


def test_a_matrix_of_counts() -> None:
    """Rows are classes. Kills: the transposed matrix; what is left over given to somebody."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(2), [10, 20]))
    assignment = assign(labels, "class_matrix", matrix=[[1, 2, 3], [0, 0, 20]])
    assert assignment.class_counts(labels, 2).tolist() == [[1, 0], [2, 0], [3, 20]]
    assert len(assignment.dropped) == 4 and not labels[assignment.dropped].any()
    check_whole(assignment, 30)


def test_a_matrix_of_shares() -> None:
    """By largest remainder: 10 x (0.25, 0.75) is 3 and 7 (2.5 and 7.5: the lower first). Kills: shares of a client; a
    rest that is dropped.
    """
    labels = np.repeat(np.arange(2), [10, 20])
    assert counts_of(labels, "class_matrix", matrix=[[0.25, 0.75], [0.1, 0.9]]) == [[3, 2], [7, 18]]
    assert counts_of(labels, "class_matrix", matrix=[[1.0, 0.0], [0.0, 1.0]]) == [[10, 0], [0, 20]]


# --- groups of owners -------------------------------------------------------------------------------------------

OWNERS = np.repeat([0, 1, 2, 3, 5, 6, 9], [1, 2, 3, 4, 5, 6, 7])  # seven owners, numbers with gaps


def owners_of(assignment: Assignment) -> list[list[int]]:
    return [sorted(set(OWNERS[part].tolist())) for part in assignment.clients]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"clients": 3}, [[0, 1, 2], [3, 5], [6, 9]]),
        ({"owners_per_client": 2}, [[0, 1], [2, 3], [5, 6], [9]]),
        ({"owners_per_client": 2, "remainder": "bigger"}, [[0, 1, 2], [3, 5], [6, 9]]),
        ({"owners_per_client": 2, "remainder": "drop"}, [[0, 1], [2, 3], [5, 6]]),
        ({"owners_per_client": 7, "remainder": "refuse"}, [[0, 1, 2, 3, 5, 6, 9]]),
        ({"owners_per_client": 5, "remainder": "bigger"}, [[0, 1, 2, 3, 5, 6, 9]]),
    ],
)
def test_owners_are_joined(fields: Fields, expected: list[list[int]]) -> None:
    """By hand. Kills: numbers without samples counted as owners, a remainder in another group, samples of a dropped
    owner given to somebody, owners joined by their numbers of samples.
    """
    assignment = assign(np.zeros(28, np.int64), "owner_groups", OWNERS, order="sequential", **fields)
    assert owners_of(assignment) == expected
    sizes = dict(zip(*np.unique(OWNERS, return_counts=True), strict=True))
    assert assignment.sizes().tolist() == [sum(int(sizes[owner]) for owner in group) for group in expected]
    check_whole(assignment, 28)


@settings(max_examples=50, deadline=None)
@given(
    owners=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    size=st.integers(1, 13),
    by_number=st.booleans(),
    order=st.sampled_from(["random", "sequential"]),
    remainder=st.sampled_from(["smaller", "bigger", "drop"]),
    seed=st.integers(0, 9),
)
def test_owners_stay_together(
    owners: list[int], size: int, by_number: bool, order: Any, remainder: Any, seed: int
) -> None:
    """Kills: an owner in two groups or in none, groups of uneven numbers, a sample lost, another draw for the test
    samples than for the training samples.
    """
    held = np.array(owners, dtype=np.int64)
    there = len(set(owners))
    size = min(size, there)
    fields: Fields = {"clients": size} if by_number else {"owners_per_client": size, "remainder": remainder}
    partition = OwnerGroups(order=order, seed=seed, **fields)
    assignment = partition.assign(np.zeros(len(held), np.int64), 1, held)
    check_whole(assignment, len(held))
    groups = [set(held[part].tolist()) for part in assignment.clients]
    assert sum(map(len, groups)) == len(set().union(*groups))
    numbers = sorted(map(len, groups))
    if by_number:
        assert len(numbers) == size and numbers[-1] - numbers[0] <= 1 and sum(numbers) == there
    elif remainder == "bigger":
        assert numbers == [*[size] * (there // size - 1), size + there % size]
    else:
        smaller = [there % size] * (remainder == "smaller" and there % size > 0)
        assert numbers == [*smaller, *[size] * (there // size)]
    test = np.arange(15)
    train, other = (
        Split(np.zeros((len(of), 1, 1, 1), np.uint8), np.zeros(len(of), np.int64), of) for of in (held, test)
    )
    tests = partition.share_tests(assignment, Dataset("x", ("a",), train, other, *AS_IS)).tests
    assert [set(part.tolist()) for part in tests] == groups


def test_groups_are_drawn_by_the_seed() -> None:
    """Kills: neighbours that are always together, one draw for all seeds."""
    drawn = {
        tuple(map(tuple, owners_of(assign(np.zeros(28, np.int64), "owner_groups", OWNERS, clients=3, seed=seed))))
        for seed in range(10)
    }
    assert len(drawn) > 5


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "sizes", "clients": 2, "sizes": [1, 2, 3]}, "clients=2: is not the number of sizes, 3; set it to 3"),
        (
            {"name": "sizes", "clients": 2, "sizes": [0.5, 0.4]},
            r"sizes=\[0.5, 0.4\]: must add up to 1.*not to 0.9; for",
        ),
        ({"name": "sizes", "clients": 2, "sizes": [1.5, -0.5]}, r"sizes=\[1.5, -0.5\]: must have numbers from 0 on; f"),
        ({"name": "sizes", "clients": 2, "sizes": [float("nan"), 1.0]}, "sizes.0=nan: must be a finite number"),
        ({"name": "sizes", "sizes": "cubic"}, "sizes=cubic: must be 'linear', 'square' or 'exponential'"),
        ({"name": "sizes", "clients": 2, "sizes": [3, "x"]}, "sizes.1=x: must be a valid number"),
        ({"name": "sizes", "min_samples": 1, "on_small": "repair"}, "min_samples=1: cannot be kept where the sizes"),
        ({"name": "dirichlet_client", "size_sigma": 1, "sizes": "linear"}, "size_sigma=1.0: has no effect where sizes"),
        ({"name": "dirichlet", "alpha": []}, r"alpha=\[\]: must have at least 1; for example"),
        ({"name": "dirichlet", "clients": 2, "alpha": [1, 0]}, r"alpha\.1=0: must be greater than 0; for"),
        ({"name": "dirichlet", "clients": 3, "alpha": [1, 2]}, r"alpha=\[1.0, 2.0\]: has 2 values for 3 clients; give"),
        ({"name": "quantity", "alpha": [1, 2]}, "alpha=.*must be a valid number"),
        (
            {"name": "shards", "shards_per_client": None},
            "shards_per_client=None: must be given where there is no shard",
        ),
        ({"name": "shards", "shard_size": 0}, "shard_size=0: must be at least 1"),
        ({"name": "shards", "shard_size": 5}, "leftover=keep: cannot be kept where both.*set leftover=drop"),
        (
            {"name": "classes_per_client", "assignment": "round"},
            "assignment=round: must be 'random', 'deterministic' or",
        ),
        ({"name": "class_matrix"}, "matrix=None: is required"),
        ({"name": "class_matrix", "matrix": []}, r"matrix=\[\]: must have a number for each client in each row"),
        ({"name": "class_matrix", "matrix": [[1, 2], [3]]}, r"matrix=\[\[1, 2\], \[3\]\]: must have a number for each"),
        ({"name": "class_matrix", "matrix": [[1, -2]]}, "must have numbers from 0 on"),
        ({"name": "class_matrix", "matrix": [[0.5, 0.5], [0.5, 0.4]]}, "but row 1 adds up to 0.9"),
        (
            {"name": "class_matrix", "matrix": [[1, 2]], "clients": 3},
            "clients=3: is not the number of columns of m.* 2;",
        ),
        ({"name": "owner_groups"}, "clients=0: must be given, or owners_per_client; for example clients=10"),
        ({"name": "owner_groups", "clients": 2, "owners_per_client": 2}, "clients=2: cannot be set beside.*clients=0"),
        ({"name": "owner_groups", "clients": 2, "remainder": "drop"}, "remainder=drop: has no effect where clients is"),
        ({"name": "owner_groups", "owners_per_client": 0}, "owners_per_client=0: must be at least 1"),
        ({"name": "owner_groups", "clients": 2, "min_samples": 1, "on_small": "redraw"}, "when clients are groups of"),
    ],
)
def test_a_bad_field_is_named(fields: Fields, message: str) -> None:
    """Kills: a missing check, a sentence without value, rule or repair."""
    with pytest.raises(ConfigError, match=f"^partition.{message}" if "=" in message else message):
        PARTITIONS.build(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "sizes", "clients": 2, "sizes": [3, 4]},
            "add up to 7, but there are 12 tr.*set data.train_samples=7",
        ),
        (
            {"name": "sizes", "clients": 2, "sizes": [9, 4]},
            "add up to 13, but there are 12 training samples; change them",
        ),
        (
            {"name": "sizes", "clients": 2, "sizes": [0, 0]},
            "add up to 0, but there are 12 training samples; change them",
        ),
        ({"name": "dirichlet_client", "clients": 2, "sizes": [3, 4]}, "add up to 7, but there are 12 training samples"),
        ({"name": "dirichlet_client", "alpha": [1, 2], "clients": 2}, "has 2 values for 4 classes; give 4 values, or"),
        ({"name": "class_matrix", "matrix": [[1, 2]]}, "has 1 rows, but the data have 4 classes; give it 4 rows"),
        (
            {"name": "class_matrix", "matrix": [[1], [1], [4], [1]]},
            "asks for 4 samples of class 2, of which there are 3",
        ),
        ({"name": "owner_groups", "clients": 4}, "partition.clients=4: is more than the 3 owners; set it to 3 or less"),
        (
            {"name": "owner_groups", "owners_per_client": 4},
            "owners_per_client=4: is more than the 3 owners; set it to 3",
        ),
        (
            {"name": "owner_groups", "owners_per_client": 2, "remainder": "refuse"},
            "partition.owners_per_client=2: does not divide the 3 owners; set partition.remainder=smaller",
        ),
        (
            {"name": "classes_per_client", "clients": 2, "classes": 2, "assignment": "deterministic"},
            "partition.clients=2: with assignment=deterministic leaves class 3 to nobody; set it to 4 or more",
        ),
        (
            {"name": "shards", "clients": 3, "shards_per_client": None, "shard_size": 6},
            "partition.shard_size=6: makes 2 shards for 3 clients; set it to 4 or less",
        ),
        (
            {"name": "shards", "clients": 3, "shards_per_client": 3, "shard_size": 2, "leftover": "drop"},
            "shards_per_client=3: makes more shards of 2 samples than the 12 training samples allow; set it to 2",
        ),
        (
            {"name": "shards", "clients": 3, "shards_per_client": 1, "shard_size": 5, "leftover": "drop"},
            "makes more shards of 5 samples than the 12 training samples allow; lower partition.shard_size",
        ),
    ],
)
def test_what_the_data_do_not_allow_is_refused(fields: Fields, message: str) -> None:
    """Kills: a split that silently has other sizes than were asked for."""
    with pytest.raises(ConfigError, match=message):
        PARTITIONS.build(fields).assign(np.repeat([0, 1, 2, 3], 3), 4, np.arange(12) % 3)


def test_groups_need_owners() -> None:
    """Kills: a traceback where data have none."""
    with pytest.raises(ConfigError, match=r"partition.name=owner_groups: needs data with owners; use data.name=syn"):
        assign(np.zeros(4, np.int64), "owner_groups", clients=2)
