"""What a job's log, where there is no terminal, has of runs and sweeps while they go on."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep
from engine.sweeps.observers import SweepStart
from engine.sweeps.planning import Mode
from fedskew.lab import run_line, shown
from fedskew.lab.run_line import RunLine
from fedskew.lab.shown import Shown
from fedskew.lab.sweeping import live
from fedskew.lab.sweeping.live import LiveTable
from tests.support.small_sweeps import grid


class Log:
    """A console of no terminal, and a clock that is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (shown, live, run_line):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.file = StringIO()
        self.console = Console(file=self.file, width=40)
        self.read = 0

    def new(self) -> list[str]:
        lines = self.file.getvalue().splitlines()[self.read :]
        self.read += len(lines)
        return lines


def test_a_sweep_has_a_line_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: nothing until the end; a table that nobody sees; a line for each report, or broken at the console's width;
    time left that counts the trials of an earlier process as if they had just been computed."""
    log = Log(monkeypatch)
    monkeypatch.setattr(LiveTable, "_table", None)
    table = LiveTable(log.console)
    named, mode = NamedSweep("own", "laptop", (), "", grid("laptop")), Mode("inside", 0, ({"CPU": 1.0},), 1, "asked")
    table.on_start(SweepStart(named, SweepFolder(tmp_path), 8, 2, 1, mode, 8))
    for trial in ("00000", "00001"):  # that have ended before
        table.on_trial_end(trial, "finished", None)
    log.new()
    log.now = 90.0
    table.on_trial_start("00002", {"mu": 1.0})
    assert log.new() == ["2 of 8 trials have ended: 2 finished, 1 running"]
    log.now = 120.0
    report: dict[str, Any] = {"round": 1, "accuracy": 0.5, "loss": 1.0, "failed": False}
    table.on_trial_result("00002", {"mu": 1.0}, report | {grid("laptop").metric: 0.5})
    assert log.new() == []
    log.now = 150.0
    table.on_trial_end("00002", "failed", "gone")
    best = f"best {grid('laptop').metric}: 50 % (trial 00002)"
    line = f"3 of 8 trials have ended: 2 finished, 1 failed; {best}; 0:12:30 left"
    assert log.new() == [line, "trial 00002 failed: gone"]
    log.now = 300.0
    table.on_end()
    assert len(log.new()) == 1


def test_a_run_has_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: nothing until the end; a line for each round; time left that counts rounds of an earlier process."""
    log = Log(monkeypatch)
    line = RunLine(Shown(log.console))
    run: Any = SimpleNamespace(total_rounds=10, done=4, finished=False)
    progress: Any = SimpleNamespace(rows=[{"accuracy": 0.5, "loss": None}])
    line.on_start(run)
    for log.now, run.done in ((30.0, 5), (90.0, 7), (100.0, 8)):
        line.on_round(run, progress)
    assert log.new() == ["round 7 of 10  accuracy 0.500  loss -; 0:01:30 left"]
