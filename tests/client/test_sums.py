"""Uploads added up, from one client's to a cohort's."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.algorithm import seeds
from engine.client.sums import WeightedSum

WEIGHTS = (3.0, 7.0, 1021.0, 0.1, 12.0)


def uploads(dtype: torch.dtype) -> list[Tensor]:
    rng = seeds.generator(0, "test")
    return [torch.randn(100, generator=rng).to(dtype) for _ in WEIGHTS]


def test_nothing_that_is_added_is_written_to() -> None:
    """Kills: a sum that goes on in a client's upload, which is float64 already, or in the sum of the first block."""
    vectors = uploads(torch.float64)
    before = [vector.clone() for vector in vectors]
    blocks = [WeightedSum(), WeightedSum(), WeightedSum()]
    for block, members in zip(blocks, ((0, 1), (2, 3), (4,)), strict=True):
        for number in members:
            block.add({"weights": vectors[number]}, vectors[number], WEIGHTS[number], number + 1)
    totals = [block.total()["weights"] for block in blocks]
    cohort = WeightedSum()
    for block in blocks:
        cohort.merge(block)
    assert all(torch.equal(vector, old) for vector, old in zip(vectors, before, strict=True))
    assert all(torch.equal(block.total()["weights"], old) for block, old in zip(blocks, totals, strict=True))


def test_blocks_are_added_in_their_order() -> None:
    """Kills: another order of additions, or a sum in the run's precision; a block of one client that is not weighted;
    buffers that are weighted as uploads are."""
    vectors = uploads(torch.float32)
    cohort, wanted, buffers = WeightedSum(), torch.zeros(100).double(), torch.zeros(100).double()
    for members in ((0,), (1, 2), (3,), (4,)):
        block, part, samples = WeightedSum(), torch.zeros(100).double(), torch.zeros(100).double()
        for number in members:
            block.add({"weights": vectors[number]}, vectors[number], WEIGHTS[number], number + 1)
            part += vectors[number].double() * WEIGHTS[number]
            samples += vectors[number].double() * (number + 1)
        cohort.merge(block)
        wanted, buffers = wanted + part, buffers + samples
    assert torch.equal(cohort.mean()["weights"], wanted / cohort.weight)
    assert torch.equal(cohort.mean_buffers(), buffers / 15)
    assert (cohort.weight, cohort.num_examples, cohort.clients) == (3.0 + (7.0 + 1021.0) + 0.1 + 12.0, 15, 5)


def test_entries_that_some_leave_out() -> None:
    """Kills: an answer of ``clients.map`` that is lost since an earlier client had none."""
    total = WeightedSum()
    for answer in ({}, {"a": torch.ones(2)}, {}, {"a": torch.ones(2), "b": torch.ones(1)}):
        total.add(answer)
    assert {name: tensor.tolist() for name, tensor in total.total().items()} == {"a": [2, 2], "b": [1]}
