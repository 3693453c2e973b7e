"""The script for a lent card: who has a turn when, with work and a clock that are made up; and its rehearsal."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_quarter_hour
from benchmarks.common import load
from benchmarks.gpu import Setting, executors
from benchmarks.gpu_quarter_hour import BFLOAT16, COMPILED, TF32, Results, equal_bits, measured, settings
from benchmarks.turns import Job, Turns

ROOT = Path(__file__).parents[2]
PATIENCE, LONGEST = 150.0, 60.0


def work() -> Iterator[dict[str, Any]]:
    yield from ()


class Clock:
    """Seconds, and what happens in them: a part that is begun has its answer so much later."""

    def __init__(self, minutes: float) -> None:
        self.now, self.over = 0.0, 60 * minutes
        self.workers: list[Made] = []
        self.events: list[tuple[float, str, str, dict[str, Any]]] = []

    def left(self) -> float:
        return self.over - self.now

    def keep(self, job: Job, part: str, answer: dict[str, Any]) -> None:
        self.events.append((self.now, job.key, part, answer))

    def ready(self, pipes: Sequence[Made], limit: float) -> Collection[Made]:
        """Let time pass until one of them is ready, at most ``limit`` seconds."""
        assert limit > 0
        self.now += min([limit, *(one.at - self.now for one in pipes)])
        return [one for one in pipes if one.at <= self.now]


class Made:
    """A worker whose parts take as long as the numbers of its plan; a word in place of one is why it fails."""

    def __init__(self, clock: Clock, plan: Sequence[float | str]) -> None:
        self.clock, self.plan, self.pipe = clock, list(plan), self
        self.at, self.why = clock.now, ""
        self.closed: float | None = None
        clock.workers.append(self)
        self.go_on()

    def go_on(self) -> None:
        part = self.plan.pop(0)
        self.at, self.why = (self.clock.now, part) if isinstance(part, str) else (self.clock.now + part, "")

    def answer(self, limit: float) -> dict[str, Any]:
        self.clock.now = min(max(self.clock.now, self.at), self.clock.now + limit)
        if self.at > self.clock.now:
            return {"failed": "took longer"}
        return {"failed": self.why} if self.why else {}

    def close(self, patience: float = 5.0) -> None:
        self.closed = patience


def turns(plans: dict[str, Sequence[float | str]], minutes: float = 9.0, at_once: int = 16) -> Clock:
    """Jobs of warm, rounds, again, as many of them as their plan has parts."""
    clock = Clock(minutes)
    jobs = [Job(key, ("warm", "rounds", "again")[: max(2, len(plan))], work) for key, plan in plans.items()]
    Turns(
        jobs,
        {"rounds"},
        clock.left,
        clock.keep,
        at_once,
        PATIENCE,
        LONGEST,
        start=lambda job: Made(clock, plans[job.key]),
        ready=clock.ready,
    ).run()
    assert all(worker.closed is not None for worker in clock.workers)
    return clock


def test_one_that_fails_and_one_that_is_late() -> None:
    """Kills: a barrier that waits for one that has failed, or a second time for one that is late; one that is timed
    while another is, or is not said to be beside a late one; a late one that never has its turn."""
    clock = turns({"late": [200.0, 8.0], "fails": ["no memory"], "slow": [70.0, 5.0, 10.0], "fast": [20.0, 6.0, 10.0]})
    assert clock.events == [
        (0.0, "fails", "warm", {"failed": "no memory"}),
        (20.0, "fast", "warm", {}),
        (70.0, "slow", "warm", {}),
        (155.0, "slow", "rounds", {"beside": ["late"]}),
        (161.0, "fast", "rounds", {"beside": ["late"]}),
        (171.0, "slow", "again", {}),
        (171.0, "fast", "again", {}),
        (200.0, "late", "warm", {}),
        (208.0, "late", "rounds", {}),
    ]


def test_one_that_is_never_ready() -> None:
    """Kills: an end that waits for it, others that do; a part that is timed for longer than it may; turns out of
    order, and nothing said of what there was no time for."""
    clock = turns({"never": [1e9], "hangs": [10.0, 1e9], "other": [30.0, 5.0], "queued": [10.0, 5.0]}, at_once=3)
    assert clock.events == [
        (10.0, "hangs", "warm", {}),
        (30.0, "other", "warm", {}),
        (150.0 + LONGEST, "hangs", "rounds", {"failed": "took longer", "beside": ["never"]}),
        (215.0, "other", "rounds", {"beside": ["never"]}),
        (225.0, "queued", "warm", {}),
        (230.0, "queued", "rounds", {"beside": ["never"]}),
        (540.0, "never", "warm", {"failed": "was not ready in time"}),
    ]
    assert clock.workers[0].closed == 0.0


def test_nothing_is_begun_when_time_is_over() -> None:
    """Kills: a turn that goes beyond the end, one that begins after it."""
    clock = turns({"long": [10.0, 1e9], "next": [10.0, 5.0]}, minutes=0.5)
    assert [event[:3] for event in clock.events] == [
        (10.0, "long", "warm"),
        (10.0, "next", "warm"),
        (30.0, "long", "rounds"),
    ]


def test_what_tells_most_comes_first() -> None:
    """Kills: a setting that is done twice or left out, one that an experiment refuses, a compiled one with nothing to
    compare it with."""
    found = settings()
    assert [one.key for one in found[:2]] == [
        f"a, block_graph, actors=0, {COMPILED}, {TF32}",
        f"a, block_graph, actors=0, {COMPILED}, {BFLOAT16}",
    ]
    assert len(set(found)) == len(found) and all(Setting.of(one.key) == one for one in found)
    ways = {(one.part, one.executor, one.overrides) for one in found if one.lanes in (1, gpu_quarter_hour.LANES)}
    assert {way[1] for way in ways} < set(executors())
    for part in "abc":
        for own in ((), (TF32,), (BFLOAT16,)):
            for executor, more in (("loop", ()), ("graph", ()), ("block_graph", ()), ("block_graph", (COMPILED,))):
                assert (part, executor, (*more, *own)) in ways
    for one in found:
        one.experiment(Path("there"), "cuda")


def test_another_card_begins_anew(tmp_path: Path) -> None:
    """Kills: seconds of two cards in one file."""
    card = Job("ceilings", ("warm", "ceilings"), work)
    Results(tmp_path, "a card", "made up").keep(card, "ceilings", {"copy_gb_per_s": 1.0})
    assert not Results(tmp_path, "a card", "made up").lacks(card)
    assert Results(tmp_path, "another", "made up").lacks(card)


def setting_job(setting: Setting) -> Job:
    return Job(setting.key, ("warm", "rounds", "again"), measured)


def test_results_are_on_disk_at_once(tmp_path: Path) -> None:
    """Kills: a failure that hides rounds, a part that is lost, what is done being done again or what failed not;
    weights that are compared with another precision's."""
    plain, compiled = (Setting("a", "block_graph", 0, (*more, TF32)) for more in ((), (COMPILED,)))
    results = Results(tmp_path, "a card", "made up")
    for setting, weights in (
        (compiled, [3.0, 4.5]),
        (Setting("a", "block_graph", 0, (BFLOAT16,)), [9.0, 9.0]),
        (plain, [3.0, 4.0]),
    ):
        answer = {"seconds": 70.0, "digests": ["one", "two"], "weights": np.array(weights)}
        results.keep(setting_job(setting), "warm", answer)
    assert load("gpu", tmp_path)["settings"][compiled.key]["distance"] == 0.1
    assert results.lacks(setting_job(compiled))
    results.keep(setting_job(compiled), "rounds", {"seconds_per_round": 0.5, "rounds": [0.5] * 3})
    results.keep(setting_job(compiled), "again", {"failed": "no memory"})
    results.keep(setting_job(plain), "rounds", {"failed": "took longer"})
    entries = load("gpu", tmp_path)["settings"]
    assert entries[compiled.key]["seconds_per_round"] == 0.5 and "failed" not in entries[compiled.key]
    assert entries[plain.key]["failed"] == "rounds: took longer"
    again = Results(tmp_path, "a card", "made up")
    assert again.lacks(setting_job(compiled))
    again.keep(setting_job(compiled), "rounds", {"seconds_per_round": 0.6, "rounds": [0.6] * 3, "beside": ["late"]})
    again.keep(setting_job(compiled), "rounds", {"seconds_per_round": 0.5, "rounds": [0.5] * 3})
    again.keep(setting_job(compiled), "again", {"digests": ["one", "two"]})
    assert set(load("gpu", tmp_path)["settings"][compiled.key]) == {
        "warm",
        "distance",
        "seconds_per_round",
        "rounds",
        "again",
    }
    assert not again.lacks(setting_job(compiled)) and again.lacks(setting_job(plain))
    card = Job("ceilings", ("warm", "ceilings"), work)
    assert again.lacks(card)
    again.keep(card, "warm", {})
    assert again.lacks(card)
    again.keep(card, "ceilings", {"copy_gb_per_s": 1.0})
    assert not again.lacks(card) and load("gpu", tmp_path)["ceilings"] == {"copy_gb_per_s": 1.0}


def test_equal_bits_by_hand() -> None:
    """Kills: digests of two rounds taken for those of three, lanes of another precision compared with these."""

    def entry(two: str, three: str, *again: str) -> dict[str, Any]:
        return {"warm": {"digests": [two, three]}, **({"again": {"digests": list(again)}} if again else {})}

    found = equal_bits(
        {
            "a, graph, actors=0": entry("p", "q", "p", "other"),
            "a, graph, actors=0, lanes=4": entry("p", "q"),
            "a, graph, actors=0, execution.tf32=true": entry("r", "s"),
            "a, graph, actors=0, lanes=8, execution.tf32=true": entry("r", "t"),
            "a, block_graph, actors=0": {"warm": {"failed": "no memory"}},
        }
    )
    assert found == {
        "a, graph, actors=0: twice": True,
        "a, graph, actors=0: resumed": False,
        "a, graph, actors=0: in any lanes": True,
        "a, graph, actors=0, execution.tf32=true: in any lanes": False,
    }


@pytest.mark.long
def test_the_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a part that does not run at all, one that fails and takes others along."""
    monkeypatch.setenv("OUT", str(tmp_path))
    subprocess.run([ROOT / "benchmarks" / "gpu_quarter_hour.sh", "--rehearse"], cwd=ROOT, check=True)
    found = load("gpu", tmp_path)
    refused = found["settings"].pop("a, graph, actors=0")
    assert refused["failed"].startswith("warm: ConfigError: execution.executor=graph: replays steps on a GPU")
    assert len(found["settings"]) == len(gpu_quarter_hour.rehearsed()) - 1
    assert all(entry["seconds_per_round"] > 0 for entry in found["settings"].values())
    assert all(entry["kernels"]["count"] for key, entry in found["settings"].items() if key[0] == "a")
    assert len(found["equal_bits"]) == 4 and all(found["equal_bits"].values())
    assert found["ceilings"]["bfloat16_tflops"] > 0 and found["plain"]["seconds_per_round"]["float32"] > 0
    assert found["table1"]["chunks"][0]["rounds"][1] >= 1
    assert (tmp_path / "kept.tgz").exists()
