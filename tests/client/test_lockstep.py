"""In which order clients that are trained together take their steps, and how a cohort is cut into blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.blocks import TOGETHER, cut_blocks, cut_together
from engine.client.vmap.block_rows import lockstep

BATCHES = st.lists(st.lists(st.integers(1, 4), max_size=5), max_size=7)  # of each client the sizes of its batches


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([], []),
        ([[], []], []),
        ([[8, 8, 4]], [(0, 1), (0, 1), (0, 1)]),
        ([[8, 8], [8, 8]], [(0, 2), (0, 2)]),
        # 20, 16, 12 and 5 rows by eight: full batches of all, of the first two, then the short ones.
        ([[8, 8, 4], [8, 8], [8, 4], [5]], [(0, 3), (0, 2), (3, 4), (0, 1), (2, 3)]),
        # Who has the same size but is no neighbour goes alone, in the same turn.
        ([[4], [8], [4]], [(1, 2), (0, 1), (2, 3)]),
        # A short batch comes before a full one where the client has it first.
        ([[8], [4, 8]], [(0, 1), (1, 2), (1, 2)]),
        ([[], [3], [3], []], [(1, 3)]),
    ],
)
def test_by_hand(sizes: list[list[int]], wanted: list[tuple[int, int]]) -> None:
    """Kills: the smallest first, ranges across a client of another size or without a batch, a turn that is lost."""
    assert [step[:2] for step in lockstep(sizes)] == wanted


@given(BATCHES)
def test_every_step_once_and_in_order(sizes: list[list[int]]) -> None:
    """Kills: a step left out or taken twice, a range of unequal batches or one that is empty, another order."""
    done = [0] * len(sizes)
    for first, last, _ in lockstep(sizes):
        assert 0 <= first < last <= len(sizes)
        assert len({sizes[client][done[client]] for client in range(first, last)}) == 1  # each has one left
        for client in range(first, last):
            done[client] += 1
    assert done == [len(own) for own in sizes]


@given(BATCHES)
def test_neighbours_with_equal_batches_go_together(sizes: list[list[int]]) -> None:
    """Kills: one client at a time, which would be right and slow."""
    done = [0] * len(sizes)
    for first, last, _ in lockstep(sizes):
        heads = [own[at] if at < len(own) else 0 for own, at in zip(sizes, done, strict=True)]
        assert last == len(sizes) or heads[last] != heads[first]
        for client in range(first, last):
            done[client] += 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 9))
def test_full_batches_are_prefixes(rows: list[int], batch: int) -> None:
    """Kills: clients in another order than their rows, for which passes would fall apart."""
    rows.sort(reverse=True)
    sizes = [[batch] * (own // batch) + ([own % batch] if own % batch else []) for own in rows]
    found, done = [step[:2] for step in lockstep(sizes)], [0] * len(rows)
    full = rows[0] // batch
    for first, last in found[:full]:
        assert first == 0
        assert all(sizes[client][done[client]] == batch for client in range(last))
        done[:last] = [count + 1 for count in done[:last]]
    assert [last for _, last in found[:full]] == [sum(own // batch > number for own in rows) for number in range(full)]
    assert all(count == own // batch for count, own in zip(done, rows, strict=True))  # only short ones are left


# --- blocks -------------------------------------------------------------------------------------------


@given(st.integers(0, 300), st.one_of(st.just("auto"), st.integers(1, 50)), st.integers(1, 20))
def test_blocks_are_the_cohort_in_order(clients: int, block: Any, workers: int) -> None:
    """Kills: a client left out or sent twice; one block that is larger than was asked for; trained in one pass, a small
    block at the end, for which everybody waits; otherwise a worker without work, or blocks that are no subtrees."""
    cohort = [7 * client for client in range(clients)]
    for cut in (cut_together(cohort, block), cut_blocks(cohort, block, workers)):
        assert [client for ids in cut for client in ids] == cohort
        assert all(one >= other for one, other in pairwise(map(len, cut)))
        assert max(map(len, cut), default=0) <= (clients if block == "auto" else block)
    together = [len(ids) for ids in cut_together(cohort, block)]
    assert not together or (max(together) - min(together) <= 1 and min(together) > 0)
    most = min(-(-clients // 2), TOGETHER) if block == "auto" else block
    assert len(together) == (-(-clients // most) if clients else 0)
    if block == "auto":
        apart = [len(ids) for ids in cut_blocks(cohort, block, workers)]
        assert len(apart) >= min(clients, max(4 * workers, 16)) and len(apart) <= 2 * max(4 * workers, 16) + 1
        assert all(length.bit_count() == 1 for length in apart[:-1])


@pytest.mark.parametrize(
    ("clients", "together", "lengths"),
    [
        (10, True, [5, 5]),
        (11, True, [6, 5]),
        (1, True, [1]),
        (2, True, [1, 1]),
        (50, True, [25, 25]),
        (64, True, [32, 32]),
        (65, True, [22, 22, 21]),
        (100, True, [25] * 4),
        (10, False, [1] * 10),
        (50, False, [2] * 25),
        (57, False, [2] * 28 + [1]),
        (100, False, [4] * 25),
    ],
)
def test_auto(clients: int, together: bool, lengths: list[int]) -> None:
    """Kills: the rule of the one executor for the other; a half rounded down, which makes a third block; a block that
    grows with the cohort for ever."""
    cut = cut_together(range(clients), "auto") if together else cut_blocks(range(clients), "auto", workers=3)
    assert [len(ids) for ids in cut] == lengths
