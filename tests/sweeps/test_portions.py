"""Trials in portions, on a Tune that is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.sweeps.portions import Portions, portion_for


@dataclass(frozen=True)
class Result:
    path: str
    error: Exception | None = None


@dataclass
class Results(list[Result]):
    num_terminated: int
    num_errors: int = 0


@dataclass
class Tune:
    """Ends the trials that it is asked for, but for those from ``stopped`` on; some of them with an error."""

    broken: tuple[int, ...] = ()
    stopped: int = 1_000_000
    asked: list[int] = field(default_factory=list)

    def __call__(self, samples: int) -> Any:
        first = sum(self.asked)
        self.asked.append(samples)
        self.now = range(first, first + samples)
        return self

    def fit(self) -> Results:
        ended = [n for n in self.now if n < self.stopped]
        results = Results(sum(n not in self.broken for n in ended), sum(n in self.broken for n in ended))
        results += [Result(f"tune/{n:05d}", ValueError(str(n)) if n in self.broken else None) for n in self.now]
        return results


@pytest.mark.parametrize(
    ("total", "portion", "asked"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (3, 200, [3]), (0, 3, []), (1, 1, [1])]
)
def test_portions_are_all_trials_once(total: int, portion: int, asked: list[int]) -> None:
    """Kills: a last portion that is left out or asks for too many; one Tune for all trials, which keeps them."""
    tune = Tune()
    assert Portions(tune, total, portion).fit() == []
    assert tune.asked == asked


def test_errors_of_every_portion_are_kept() -> None:
    """Kills: errors of the last portion alone; a trial that failed taken for one that Ctrl-C left."""
    failed = Portions(Tune(broken=(1, 5)), 6, 2).fit()
    assert [one.path for one in failed] == ["tune/00001", "tune/00005"]
    assert [str(one.error) for one in failed] == ["1", "5"]


def test_no_portion_comes_after_ctrl_c() -> None:
    """Kills: trials that begin after the sweep was asked to stop."""
    tune = Tune(stopped=3)
    Portions(tune, 9, 2).fit()
    assert tune.asked == [2, 2]


def test_portions_grow_with_what_runs_at_a_time() -> None:
    """Kills: a cluster whose places stand empty for a good part of a portion."""
    assert portion_for(2) == 200
    assert portion_for(64) >= 10 * 64
