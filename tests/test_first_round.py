"""The benchmark of starts, in process."""

from __future__ import annotations

import pytest

from benchmarks.first_round import first_round


def test_a_start_is_timed_and_one_that_fails_is_not() -> None:
    """Kills: a clock that stops at the command's end, which here is never, or at an error; a run left behind."""
    small = ["execution.actors=0", "data.train_samples=200", "data.test_samples=20", "model.name=logistic"]
    assert 0 < first_round(small, limit=60.0) < 60
    with pytest.raises(RuntimeError, match=r"participation.count=21.*must be at most partition.clients=20"):
        first_round(["execution.actors=0", "participation.count=21"], limit=60.0)
