"""The stopwatch of a round, where it is turned, and its gauges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.client.jobs import JobRunner
from engine.client.messages import TrainResult
from engine.record.columns import HOW_IT_WENT, PHASES
from engine.record.run_folder import RunFolder
from engine.run.lineage import Lineage
from engine.server import round as server_round
from engine.server.evaluation import Evaluation
from engine.server.round import RoundRunner
from engine.worker import stopwatch as module
from engine.worker.ray import gauges
from engine.worker.stopwatch import Stopwatch
from tests.support.tiny import drive, experiment


class Clock:
    """Stands for the module ``time``: it goes on where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.patch = monkeypatch
        monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def takes(self, owner: Any, name: str, seconds: float) -> None:
        """Let each call of ``owner.name`` take so long."""
        plain = getattr(owner, name)

        def slow(*args: Any, **named: Any) -> Any:
            self.now += seconds
            return plain(*args, **named)

        self.patch.setattr(owner, name, slow)


def test_phases_add_up_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a phase that is not left, also after an error; seconds that count in two; an evaluation in the round's
    seconds."""
    clock = Clock(monkeypatch)
    watch = Stopwatch()
    clock.now += 1
    watch.turn("training")
    clock.now += 2
    with pytest.raises(ValueError, match="late"), watch("addition"):
        clock.now += 4
        raise ValueError("late")
    clock.now += 8
    with watch("evaluation"):
        clock.now += 16
        with watch("wait"):
            clock.now += 32
    row = watch.row()
    found = {phase: row[f"{phase}_seconds"] for phase in PHASES if row[f"{phase}_seconds"]}
    assert found == {"draw": 1, "training": 10, "addition": 4, "evaluation": 16, "wait": 32}
    assert row["seconds"] == 47 and {*row, "actor"} == {*HOW_IT_WENT}


def test_where_a_round_turns_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kills: a part of the round that counts to another phase, or to none."""
    clock = Clock(monkeypatch)
    for owner, name, seconds in (
        (RoundRunner, "_calls", 1),
        (server_round, "broadcast", 2),
        (JobRunner, "train", 4),
        (TrainResult, "merge", 16),
        (TrainResult, "pooled", 64),
        (Lineage, "commit", 128),
        (Lineage, "finish", 256),
        (Evaluation, "after", 512),
    ):
        clock.takes(owner, name, seconds)
    drive(tmp_path / "run", experiment(rounds=2, participation={"count": 3}, execution={"block": 1}))
    rows = RunFolder(tmp_path / "run").frame("rounds").to_dict("records")
    wanted = {"draw": 1, "broadcast": 2, "training": 12, "addition": 48, "aggregation": 64 + 128 + 256}
    wanted |= {"wait": 0, "transfer": 0, "evaluation": 512}
    assert {phase: rows[1][f"{phase}_seconds"] for phase in PHASES} == wanted
    assert rows[1]["seconds"] == sum(wanted.values()) - 512
    assert rows[0]["aggregation_seconds"] == 64 + 128


def test_gauges_are_of_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a gauge of an earlier round; phases under one tag; a session without a round that sets some."""
    told: dict[tuple[str, ...], Any] = {}

    def gauge(name: str, description: str, tags: tuple[str, ...]) -> Any:
        return SimpleNamespace(set=lambda value, of: told.update({(name, *(of[tag] for tag in tags)): value}))

    monkeypatch.setattr(gauges, "Gauge", gauge)
    gauges._gauges.cache_clear()
    gauges.show(Path("runs/mine"), [])
    assert not told
    row = Stopwatch().row() | {"addition_seconds": 0.5, "bytes_in": 12}
    gauges.show(Path("runs/mine"), [row | {"addition_seconds": 0.25}, row])
    gauges._gauges.cache_clear()
    assert told["fedskew_phase_seconds", "mine", "addition"] == 0.5 and told["fedskew_bytes_in", "mine"] == 12
    assert len(told) == len(PHASES) + 1
