"""Uploads added up, from one client's to a cohort's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.algorithm import Tensors, seeds
from engine.base.errors import RunError
from engine.client.sums import Subtotal, WeightedSum

WEIGHTS = (3.0, 7.0, 1021.0, 0.1, 12.0)
NUMBERS = 100


def uploads(
    dtype: torch.dtype, clients: int = len(WEIGHTS), scale: Callable[[int], float] = lambda at: 1
) -> list[Tensor]:
    rng = seeds.generator(0, "test")
    return [torch.randn(NUMBERS, generator=rng).to(dtype) * scale(number) for number in range(clients)]


def block(
    vectors: Sequence[Tensor], places: Sequence[int], weights: Sequence[float], failed: frozenset[int] = frozenset()
) -> WeightedSum:
    added = WeightedSum()
    for place in places:
        if place in failed:
            added.leave_out(place)
        else:
            added.add(place, {"weights": vectors[place]}, vectors[place], weights[place], place + 1)
    return added


def by_the_tree(terms: list[Tensor | None]) -> Tensor | None:
    """Add neighbours, then their sums: the definition, written out."""
    while len(terms) > 1:
        pairs = [terms[at : at + 2] for at in range(0, len(terms), 2)]
        there = [[term for term in pair if term is not None] for pair in pairs]
        terms = [sum(pair[1:], pair[0]) if pair else None for pair in there]
    return terms[0]


def same(one: Subtotal, other: Subtotal) -> bool:
    numbers = (one.weight, one.num_examples, one.clients) == (other.weight, other.num_examples, other.clients)
    return (
        numbers
        and torch.equal(one.mean()["weights"], other.mean()["weights"])
        and torch.equal(one.mean_buffers(), other.mean_buffers())
    )


def test_what_a_client_sent_is_not_written_to() -> None:
    """Kills: a sum that goes on in a client's upload, which is float64 already."""
    vectors = uploads(torch.float64)
    before = [vector.clone() for vector in vectors]
    block(vectors, range(5), WEIGHTS).whole()
    assert all(torch.equal(vector, old) for vector, old in zip(vectors, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("failed", [(), (1,), (0, 1, 2, 3), (2, 4)])
def test_the_sum_is_the_trees(dtype: torch.dtype, failed: tuple[int, ...]) -> None:
    """Kills: neighbours that are not places 0 and 1, 2 and 3; a sum in the run's precision; buffers that are weighted
    as uploads are; a client that failed and moves those after it."""
    vectors = uploads(dtype)
    total = block(vectors, range(5), WEIGHTS, frozenset(failed)).whole()
    there = [number for number in range(5) if number not in failed]
    terms = [vector.double() * weight for vector, weight in zip(vectors, WEIGHTS, strict=True)]
    shared = [vector.double() * (number + 1) for number, vector in enumerate(vectors)]
    weight = by_the_tree(
        [torch.tensor(one, dtype=torch.float64) if at in there else None for at, one in enumerate(WEIGHTS)]
    )
    wanted = by_the_tree([term if at in there else None for at, term in enumerate(terms)])
    buffers = by_the_tree([term if at in there else None for at, term in enumerate(shared)])
    assert wanted is not None and weight is not None and buffers is not None
    examples = sum(number + 1 for number in there)
    assert torch.equal(total.mean()["weights"], wanted / total.weight) and total.weight == weight.item()
    assert torch.equal(total.mean_buffers(), buffers / examples)
    assert (total.num_examples, total.clients) == (examples, len(there))


@given(st.integers(1, 40), st.randoms(use_true_random=False), st.sampled_from([torch.float32, torch.float64]))
def test_no_cut_no_order_and_no_tree_changes_a_bit(clients: int, chance: random.Random, dtype: torch.dtype) -> None:
    """Random cuts of the cohort into blocks, even scattered ones, merged two at a time in random order. Magnitudes over
    60 decades, denormals among them, and cancellation. Kills: parts that are added though they are not the halves of a
    subtree; a weight or a count of samples that is added as it comes."""
    decades = 60 if dtype is torch.float64 else 30
    vectors = uploads(dtype, clients, lambda at: 10.0 ** (chance.uniform(-decades, decades) / 2))
    for number in range(1, clients, 3):
        vectors[number] = -vectors[number - 1]
    vectors[0] = vectors[0] * torch.finfo(dtype).smallest_normal
    weights = [chance.choice([1.0, 600.0, 0.1, 0.01 + chance.random()]) for _ in range(clients)]
    failed = frozenset(number for number in range(1, clients) if chance.random() < 0.1)
    in_order = block(vectors, range(clients), weights, failed).whole()
    places = [*range(clients)]
    if chance.random() < 0.5:
        chance.shuffle(places)
    cuts = sorted(chance.sample(range(1, clients), chance.randint(0, clients - 1))) if clients > 1 else []
    sums = [
        block(vectors, places[first:last], weights, failed)
        for first, last in zip([0, *cuts], [*cuts, clients], strict=True)
    ]
    while len(sums) > 1:
        one = sums.pop(chance.randrange(len(sums)))
        sums[chance.randrange(len(sums))].merge(one)
    assert same(in_order, sums[0].whole())


def test_a_block_that_is_a_subtree_is_one_vector() -> None:
    """Kills: a sum that is only added at the end, and holds every upload till then."""
    vectors = uploads(torch.float32, 24)
    assert len(block(vectors, range(8, 16), [1.0] * 24).parts) == 1
    assert len(block(vectors, range(24), [1.0] * 24, frozenset({3})).parts) == 2
    assert len(block(vectors, range(3, 9), [1.0] * 24).parts) == 3  # 3, 4 to 7, 8


def test_clients_of_one_place_are_added_as_they_come() -> None:
    """Kills: a block trained in one pass whose sum is several vectors, or is lost behind a client that failed."""
    vectors = uploads(torch.float32)
    total, wanted = WeightedSum(), torch.zeros(NUMBERS, dtype=torch.float64)
    total.leave_out(7)
    for vector, weight in zip(vectors, WEIGHTS, strict=True):
        total.add(7, {"weights": vector}, vector, weight)
        wanted += vector.double() * weight
    assert [(part.first, part.places) for part in total.parts] == [(7, 1)]
    total.add(6, {"weights": vectors[0]}, vectors[0], 2.0)
    assert torch.equal(total.whole().total()["weights"], vectors[0].double() * 2 + wanted)


@pytest.mark.parametrize("clients", [2, 3, 100, 1000])
def test_the_error_is_within_the_bound(clients: int) -> None:
    """log2(n) roundings of the sum of magnitudes and one of each product. Kills: sums one after the other, float32."""
    chance = random.Random(clients)
    vectors = uploads(torch.float32, clients, lambda at: 10.0 ** chance.uniform(-15, 15))
    weights = [chance.random() for _ in range(clients)]
    total = block(vectors, range(clients), weights).whole().total()["weights"].tolist()
    for number in range(NUMBERS):
        terms = [vector[number].item() * weight for vector, weight in zip(vectors, weights, strict=True)]
        bound = math.ceil(math.log2(clients)) * 2.0**-53 * math.fsum(map(abs, terms))
        assert abs(total[number] - math.fsum(terms)) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "uploads", [({}, {"b": torch.ones(1)}), ({"a": torch.ones(2), "b": torch.ones(1)}, {"a": torch.ones(2)})]
)
def test_an_entry_that_some_leave_out(uploads: tuple[Tensors, ...]) -> None:
    """Kills: a mean in which clients that did not send an entry count as if they had sent zeros."""
    total = WeightedSum()
    total.add(0, uploads[0])
    with pytest.raises(RunError, match=r"^some clients upload 'b', and others of the same round do not: send zeros"):
        total.add(1, uploads[1])
