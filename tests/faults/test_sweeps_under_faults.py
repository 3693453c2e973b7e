"""One schedule of the fault harness over a sweep, and the harness itself; ``make chaos`` runs fifty."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from engine.record.store import StageStore
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import load
from engine.sweeps.options import How
from tests.faults import inject, sweep_harness
from tests.faults.launching import Ended, bad_end
from tests.faults.sweep_schedules import ENDING, KINDS, Fault, Schedule, draw
from tests.faults.sweep_workloads import WORKLOADS
from tests.support import small_sweeps
from tests.support.small_sweeps import Alone

pytestmark = pytest.mark.faults
NOTHING_WRONG: list[str] = []
EVENTS = ["worker-replace"] * 154  # of the undisturbed grid; the moment below need not be exact


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    """Kills: a file that is put in its place half written, a trial that is counted as failed for its process's death,
    rounds in the store that another process finds half there, processes that outlive the sweep."""
    faults = (Fault("kill trial", 0.3),)
    outcome = sweep_harness.happen(Schedule(0, "grid", faults), tmp_path, EVENTS)
    assert outcome.problems == NOTHING_WRONG
    assert [(launch.happened, launch.code) for launch in outcome.launches] == [(True, 0)]


def test_other_weights_and_other_rows_of_a_trial_are_found(tmp_path: Path) -> None:
    """Kills: a harness that passes whatever comes."""
    named = load(f"{small_sweeps.__file__}:pair", "laptop", ["execution.actors=0", "rounds=2"], {})
    experiment = named.sweep.experiment({"mu": 0.0}, 0).resolve()
    one = SweepFolder(tmp_path / "one")
    one.create(named, How().to_mapping())
    one.write(TrialRecord("00000", {"mu": 0.0}, 0))
    assert Alone(one.path, experiment).step()["done"]
    [record] = one.records()
    assert sweep_harness.differences(one.path, one.path) == NOTHING_WRONG
    assert sweep_harness.alone(one.path, record, tmp_path / "alone") == NOTHING_WRONG
    other = SweepFolder(tmp_path / "other")
    shutil.copytree(one.path, other.path)
    summary = other.run_folder("00000").path / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "weights_sha256": "00"}))
    other.run_folder("00000").clients.truncate({"train": 1})
    problems = sweep_harness.differences(one.path, other.path)
    assert problems[0].startswith("trial 00000: weights_sha256 is 00, should be ")
    assert problems[1].startswith("trial 00000: clients.parquet has ")
    assert len(sweep_harness.alone(other.path, record, tmp_path / "alone")) == 2


def test_a_seed_is_a_schedule_of_a_sweep() -> None:
    """Kills: a kind of fault or a sweep that fifty schedules leave out; a fault after one that a launch survives, which
    has no launch; two trials at a time where their order decides."""
    schedules = [draw(seed) for seed in range(50)]
    assert schedules == [draw(seed) for seed in range(50)]
    drawn = Counter(fault.kind for schedule in schedules for fault in schedule.faults)
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) >= 2
    assert {schedule.workload for schedule in schedules} == set(WORKLOADS)
    assert all(fault.kind in ENDING for schedule in schedules for fault in schedule.faults[:-1])
    assert {n for schedule in schedules if schedule.workload == "asha" for n in schedule.concurrent} == {1}
    moments = [fault.moment for schedule in schedules for fault in schedule.faults]
    assert min(moments) < 0 < max(moments) < 0.9


def test_damage_reaches_entries(tmp_path: Path) -> None:
    """Kills: a damage that changes nothing, or that is counted where there was no entry."""
    store = StageStore(tmp_path / "store")
    assert not sweep_harness.damage(tmp_path / "store", random.Random(0))
    for round in range(1, 9):
        store.publish("abcd", round, lambda folder: [(folder / "weights").write_bytes(bytes(40))][0])  # type: ignore[arg-type,return-value]
    assert sweep_harness.damage(tmp_path / "store", random.Random(0))
    assert sum(store.open("abcd", round) is None for round in range(1, 9)) == 4


@pytest.mark.parametrize(
    ("code", "text", "wrong"),
    [
        (0, "4 trials: 4 finished", None),
        (2, "rounds\nerror: no room; make some", None),
        (130, "continue with: fedskew resume runs/a", None),
        (-9, "anything", None),
        (-15, "", "exit -15, which is not documented"),
        (1, "error: this\n[2026 E 1 1] raylet died", "exit 1 without a sentence at the end"),
        (1, "Traceback (most recent call last)\nerror: this", "exit 1, with a traceback"),
    ],
)
def test_the_rule_of_ends(code: int, text: str, wrong: str | None) -> None:
    """Kills: an end that no table has, words of Ray after ours, and both taken for a good end."""
    found = bad_end(Ended(code, text, 1.0, True, True), killed=code == -9)
    assert (found or "").startswith(wrong or "")
    assert (found is None) == (wrong is None)


def test_a_fault_waits_at_its_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a fault that happens to two, one that happens at another event than the one that was counted."""
    monkeypatch.setattr(inject, "PATIENCE", 0.0)
    fault = inject.Fault("wait", "fsync", 3, str(tmp_path / "events"), "worker")
    fault.arm()
    worker, command = (inject._Process(fault, role) for role in ("worker", "command"))
    for _ in range(2):
        worker.event("fsync")
        command.event("fsync")
    worker.event("replace")
    assert not fault.has_happened
    worker.event("fsync")
    assert fault.has_happened and fault.waiting is not None
    fault.let_go()
    worker.event("fsync")
    assert fault.waiting is None
    assert inject.counts(tmp_path / "events") == {"worker-fsync": 4, "command-fsync": 2, "worker-replace": 1}
