"""Seconds from the command to its first row, its last one and its end: what is looked at, and when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import first_round
from benchmarks.first_round import END_LIMIT, Times, few, judged, stages, timed, times_of

SMALL = ["data.name=fashion_mnist_sample", "data.train_samples=400", "data.test_samples=20", "rounds=2"]


@dataclass
class Command:
    """Stands for the process and for the clock: with each tick a table of so many rows; it ends at a tick, with a code.

    begin: puts it in the place of both
    """

    table: Path
    rows: dict[int, int]  # by tick
    end: int
    code: int = 0
    now: int = 0

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> Command:
        process = SimpleNamespace(Popen=lambda command, **outputs: self, DEVNULL=None)
        monkeypatch.setattr(first_round, "subprocess", process)
        monkeypatch.setattr(first_round, "time", SimpleNamespace(perf_counter=lambda: 100 + self.now, sleep=self.sleep))
        return self

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += 1
        if self.now in self.rows:
            fresh = self.table.with_suffix(".new")
            pq.write_table(pa.table({"round": list(range(self.rows[self.now]))}), fresh)
            fresh.replace(self.table)

    def poll(self) -> int | None:
        return self.code if self.now >= self.end else None

    def wait(self) -> int:
        self.now = max(self.now, self.end)
        return self.code


def test_rows_are_timed_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a table without rows, or without the last ones, that is taken for what is waited for; an end that is that
    of the rows; rows that a command writes as its last deed, not seen."""
    command = Command(tmp_path / "rounds.parquet", {1: 0, 3: 1, 4: 2, 6: 3, 8: 3}, end=11)
    found = timed([], command.begin(monkeypatch).table, 3)
    assert found == Times(first_row=3, last_row=6, end=11)
    assert found.after_last_row == 5
    command = Command(tmp_path / "others.parquet", {4: 3}, end=4)
    assert timed([], command.begin(monkeypatch).table, 3) == Times(4, 4, 4)


@pytest.mark.parametrize(("rows", "code"), [({1: 2}, 0), ({}, 0), ({1: 3}, 4)], ids=["too few", "none", "failed"])
def test_a_command_that_fails_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: dict[int, int], code: int
) -> None:
    """Kills: a time of a run that ended early, or that failed after its last row; a wait without an end."""
    command = Command(tmp_path / "rounds.parquet", rows, end=5, code=code).begin(monkeypatch)
    with pytest.raises(RuntimeError, match=rf"ended with {code}, and not with 3 rows in rounds\.parquet"):
        timed(["fedskew"], command.table, 3)


def test_limits() -> None:
    """Kills: a limit on the best of several, a limit that is met only below it; the limit of many clients for few."""
    assert judged("a run", "to the end", {"limit": 1.5, "median": 1.5}) == ("a run: 1.50 s to the end, limit 1.5", True)
    assert not judged("a run", "to the end", {"limit": 1.5, "median": 1.51})[1]
    assert END_LIMIT == 1.5
    assert [case.limits for case in first_round.CASES.values()] == [{0: 2.0, 2: 15.0}, {0: 5.0, 2: 15.0}]


@pytest.mark.long
def test_a_runs_command() -> None:
    """Kills: a command that is not the one that is typed; stages of a run's end among those of its first round."""
    experiment = few().override(SMALL)
    found = times_of(experiment)
    assert isinstance(found, Times) and 0 < found.first_row <= found.last_row < found.end
    whole = [stage["stage"] for stage in stages(experiment, last=None)]
    assert whole[-4:] == ["first round", "further rounds", "summary and pictures", "last words"]
    assert [stage["stage"] for stage in stages(experiment)] == whole[:-3]
