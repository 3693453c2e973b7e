"""What the benchmark of many clients weighs: of each round all that is held, and the heaps apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.many_clients import setting, weigh
from benchmarks.memory import tree

SMALL = ["data.name=fashion_mnist_sample", "data.train_samples=400", "data.test_samples=20", "execution.actors=0"]


@pytest.mark.slow
def test_heaps_are_weighed_apart(tmp_path: Path) -> None:
    """Kills: heaps that have libraries in them, whose share is other programs' doing; a look left out."""
    if not tree(os.getpid()):
        pytest.skip("this system does not tell")
    found = weigh(setting(40, "fedavg", cohort=4, rounds=3).override(SMALL), tmp_path / "run")
    assert len(found["heaps_per_round"]) == len(found["per_round"]) == 3
    pairs = zip(found["heaps_per_round"], found["per_round"], strict=True)
    assert all(0 < heap < whole for heap, whole in pairs)
