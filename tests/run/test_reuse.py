"""Rounds shared through a store: the same weights, rows and costs as computed ones. In process, without Ray."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from engine.base.errors import RunFolderError
from engine.record import snapshots
from engine.record.columns import HOW_IT_WENT
from engine.record.numerics import mixed
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run import reuse
from engine.run.driver import Driver
from engine.run.reuse import Reuse, may_share
from engine.worker.in_process import InProcessPool
from tests.support.tiny import SIZES, assignment, dataset, drive_with_store, experiment, open_driver, with_tests

SCAFFOLD: dict[str, Any] = {"algorithm": {"name": "scaffold"}, "participation": {"count": 4}, "rounds": 5}


def tables(folder: Path) -> list[pd.DataFrame]:
    frames = [RunFolder(folder).frame(name) for name in ("rounds", "clients", "evaluations")]
    unequal = [*HOW_IT_WENT, "reused"]
    return [frame.drop(columns=unequal, errors="ignore") for frame in frames]


def assert_equal(a: Path, b: Path) -> None:
    for mine, its in zip(tables(a), tables(b), strict=True):
        pd.testing.assert_frame_equal(mine, its)


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "store", heartbeat=0.05, patience=0.5)


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path: Path, store: StageStore) -> None:
    """Kills: client states that stay behind, rows that are lost or doubled, cohorts that begin anew."""
    drive_with_store(tmp_path / "short", experiment(**{**SCAFFOLD, "rounds": 3}), store)
    longer = drive_with_store(tmp_path / "long", experiment(**SCAFFOLD), store)
    plain = drive_with_store(tmp_path / "plain", experiment(**SCAFFOLD), None)
    assert (longer["rounds_asked"], longer["rounds_computed"]) == (5, 2)
    assert longer["weights_sha256"] == plain["weights_sha256"]
    assert_equal(tmp_path / "long", tmp_path / "plain")
    for cost in ("floats_up", "floats_down", "rounds"):
        assert longer[cost] == plain[cost]
    assert not list((tmp_path / "long" / "fetched").glob("*"))


def test_the_whole_run_again_computes_nothing(tmp_path: Path, store: StageStore) -> None:
    """Kills: a finished run that is trained again, or that comes without its last evaluation."""
    first = drive_with_store(tmp_path / "first", experiment(**SCAFFOLD), store)
    again = drive_with_store(tmp_path / "again", experiment(**SCAFFOLD, name="other"), store)
    assert again["rounds_computed"] == 0
    assert (again["weights_sha256"], again["accuracy"]) == (first["weights_sha256"], first["accuracy"])
    assert_equal(tmp_path / "again", tmp_path / "first")
    assert RunFolder(tmp_path / "again").frame("clients")["reused"].all()


def test_the_last_evaluation_of_one_is_none_of_another(tmp_path: Path, store: StageStore) -> None:
    """Kills: an evaluation off the cadence that is taken over; one at the end that is missing."""
    seldom = {**SCAFFOLD, "evaluation": {"every": 2}}
    drive_with_store(
        tmp_path / "short", experiment(**{**seldom, "rounds": 3}), store
    )  # evaluated after 2, and 3 since it ends
    drive_with_store(tmp_path / "long", experiment(**seldom), store)
    drive_with_store(tmp_path / "plain", experiment(**seldom), None)
    assert_equal(tmp_path / "long", tmp_path / "plain")
    # The other way: what another run passed through is where this one ends.
    config = {**seldom, "checkpoint": {"every": 3}}
    drive_with_store(tmp_path / "passing", experiment(**{**config, "seed": 7}), store, until=3)
    ends = drive_with_store(tmp_path / "ends", experiment(**{**config, "seed": 7, "rounds": 3}), store)
    assert ends["rounds_computed"] == 0
    assert [int(round) for round in tables(tmp_path / "ends")[2]["round"]] == [2, 3]


def test_nothing_is_shared_that_differs(tmp_path: Path, store: StageStore) -> None:
    """Kills: a hash that leaves out the seed, a hyper-parameter, the schedule, or what is measured."""
    drive_with_store(tmp_path / "base", experiment(**SCAFFOLD), store)
    schedule = [{"round": 3, "set": {"local.lr": 0.01}}]
    for number, change in enumerate(
        ({"seed": 1}, {"local": {"lr": 0.2}}, {"evaluation": {"every": 3}}, {"algorithm": {"name": "fedavg"}})
    ):
        other = drive_with_store(tmp_path / str(number), experiment(**{**SCAFFOLD, **change}), store)
        assert other["rounds_computed"] == 5, change
    changed = drive_with_store(tmp_path / "schedule", experiment(**SCAFFOLD, schedule=schedule), store)
    assert changed["rounds_computed"] == 5  # the stored end lies beyond the change
    again = drive_with_store(tmp_path / "again", experiment(**SCAFFOLD, schedule=schedule), store)
    assert (again["rounds_computed"], again["weights_sha256"]) == (0, changed["weights_sha256"])


def test_a_schedule_shares_what_was_before_its_change(tmp_path: Path, store: StageStore) -> None:
    """Kills: a change that alters the key of rounds before it, or none of those after it."""
    base = {**SCAFFOLD, "checkpoint": {"every": 1}}
    drive_with_store(tmp_path / "base", experiment(**base), store, until=2)
    schedule = [{"round": 3, "set": {"local.lr": 0.01}}]
    changed = drive_with_store(tmp_path / "changed", experiment(**base, schedule=schedule), store)
    plain = drive_with_store(tmp_path / "plain", experiment(**base, schedule=schedule), None)
    assert changed["rounds_computed"] == 3
    assert changed["weights_sha256"] == plain["weights_sha256"]


def test_until_is_not_passed(tmp_path: Path, store: StageStore) -> None:
    """Kills: a stored end that is taken although the run is to stop before it."""
    drive_with_store(tmp_path / "base", experiment(**SCAFFOLD), store)
    stopped = drive_with_store(tmp_path / "stopped", experiment(**SCAFFOLD), store, until=2)
    plain = drive_with_store(tmp_path / "plain", experiment(**SCAFFOLD), None, until=2)
    assert stopped["rounds"] == 2
    assert stopped["weights_sha256"] == plain["weights_sha256"]


@pytest.mark.slow
def test_two_at_once_compute_each_round_once(tmp_path: Path, store: StageStore) -> None:
    """Kills: two holders of one prefix; a waiter that waits for the end of a run that passes what it needs."""
    summaries: dict[str, dict[str, Any]] = {}

    def one(name: str, rounds: int) -> None:
        summaries[name] = drive_with_store(tmp_path / name, experiment(**{**SCAFFOLD, "rounds": rounds}), store)

    threads = [threading.Thread(target=one, args=("a", 6)), threading.Thread(target=one, args=("b", 6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(summary["rounds_computed"] for summary in summaries.values()) == 6
    assert len({summary["weights_sha256"] for summary in summaries.values()}) == 1


def test_a_dead_holders_rounds_are_taken_over(tmp_path: Path, store: StageStore) -> None:
    """Kills: waiting for ever for a holder that is gone; starting at round 1 where it had stored two."""
    base = {**SCAFFOLD, "checkpoint": {"every": 2}}
    data, folder = dataset(), RunFolder(tmp_path / "dead")
    parts = with_tests(assignment(SIZES), data)
    config = experiment(**base)
    folder.create(config)
    mine = Reuse(store, tmp_path / "dead/fetched")
    driver = Driver(config, folder, data, parts, InProcessPool(config, data, parts), mine)
    for _ in range(3):
        driver.advance()
    lease = mine._lease
    assert lease is not None
    lease._stop.set()  # as if its process had been killed: no beat, no release
    heir = drive_with_store(tmp_path / "heir", config, store)
    assert heir["rounds_computed"] == 3
    assert heir["weights_sha256"] == drive_with_store(tmp_path / "plain", config, None)["weights_sha256"]


@pytest.mark.parametrize("given", [False, True])
def test_a_stage_without_rounds_is_waited_for(
    tmp_path: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """Kills: a run that waits for a calibration and ends without it, fails at its next look, or begins twice."""
    monkeypatch.setattr(reuse, "WAIT", 0.05)
    stages = [
        {"name": "train", "rounds": 1},
        {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": "ccvr"}},
    ]
    config = experiment(stages=stages)
    plain = drive_with_store(tmp_path / "plain", config, None)
    first = open_driver(tmp_path / "first", config, None, None, Reuse(store, tmp_path / "first/fetched"))
    ended: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(reuse.Reuse, "ended", lambda self, *more: ended.append(more))
        first.advance()
        first.close()
    [(segments, write)] = ended
    lease = store.lease(segments[-1].key, "another run")
    assert lease is not None

    waits = open_driver(tmp_path / "waits", config, None, None, Reuse(store, tmp_path / "waits/fetched"))
    for _ in range(2):
        waits.advance()
        assert (waits.round, waits.finished, waits.is_before(1)) == (1, False, True)
    assert waits.summary()["status"] == "stopped"
    if given:
        Reuse(store, tmp_path / "fetched").ended(segments, write)
    lease.release()
    waits.advance(until=1)
    found = waits.close()
    assert (waits.finished, found["rounds_computed"]) == (True, 0)
    assert (found["weights_sha256"], found["accuracy"]) == (plain["weights_sha256"], plain["accuracy"])
    assert_equal(tmp_path / "waits", tmp_path / "plain")


def test_mixed_numerics_are_not_shared() -> None:
    """Kills: results that depend on who computed what, under a hash that says they do not."""
    assert may_share({"torch": "2.13.0", "hardware": "AVX2"})
    assert not may_share({"torch": "2.13.0", "hardware": mixed("AVX2", "AVX512")})
    assert mixed("b | a", "a") == "a | b"


def test_rounds_after_another_hardware_came_are_not_shared(tmp_path: Path, store: StageStore) -> None:
    """Kills: rounds of mixed bits under the key of pure ones, where an actor's place has gone to another machine."""
    config = experiment(**SCAFFOLD, checkpoint={"every": 1})
    data, folder = dataset(), RunFolder(tmp_path / "mixed")
    parts = with_tests(assignment(SIZES), data)
    folder.create(config)
    driver = Driver(config, folder, data, parts, InProcessPool(config, data, parts), Reuse(store, tmp_path / "fetched"))
    driver.advance()
    driver.pool.numerics["hardware"] = mixed("AVX2", "AVX512")
    while not driver.finished:
        driver.advance()
    driver.close()
    heir = drive_with_store(tmp_path / "heir", config, store)
    assert heir["rounds_computed"] == heir["rounds"] - 1


def test_a_folder_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    """Kills: a half-written snapshot that a run goes on from."""
    (tmp_path / "snapshot.json").write_text("{}")
    with pytest.raises(RunFolderError, match="holds no whole snapshot"):
        snapshots.read(tmp_path)
