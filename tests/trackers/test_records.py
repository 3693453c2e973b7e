"""Folders as trackers are told of them: their config by dotted keys, their numbers by table and column."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.base import safe_yaml
from engine.experiment import Experiment
from engine.record.columns import SCHEMAS
from engine.record.run_folder import RunFolder
from fedskew.trackers.records import End, Point, Progress, Push, Record, flat, points_of, run_record, sweep_record
from tests.support.sweep_folders import ALPHA, MU, WARM_UP, make_run, make_sweep


class Listener:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ends: dict[str, list[End]] = {}
        self.points: dict[str, list[Point]] = {}

    def begin(self, record: Record) -> Progress:
        self.records.append(record)
        return Progress()

    def log(self, record: Record, points: Sequence[Point], progress: Progress) -> None:
        self.points.setdefault(record.name, []).extend(points)

    def end(self, record: Record, end: End, progress: Progress) -> None:
        self.ends.setdefault(record.name, []).append(end)

    def close(self) -> None: ...


def test_the_config_by_dotted_keys() -> None:
    """Kills: a stage that hides another one's values, a list or a null that is lost, keys other than the overrides'."""
    values = Experiment(stages=WARM_UP, model={"name": "mlp", "hidden": [8, 9]}).to_mapping()
    keys = flat(values)
    assert keys["stages.warm-up.algorithm.name"] == "fedavg" and keys["stages.main.rounds"] == 7
    assert keys["model.hidden"] == "[8, 9]" and keys["local.lr"] == 0.05 and keys["evaluation.personal_every"] is None
    assert flat(values["local"]) == values["local"]


def test_every_number_of_the_tables_is_told_once(tmp_path: Path) -> None:
    """Kills: a column, a class or a round that is left out; a step that is not the round; a text or null as a number;
    points that come again; rows that are added and never come."""
    run = make_run(tmp_path / "run", rounds=4, summary=False, client_rows=False)
    points, rows, last = points_of(run, 0.0, {})
    values = {(point.key, point.step): point.value for point in points}
    assert len(values) == len(points) and last == 4
    for table in ("rounds", "evaluations"):
        frame = RunFolder(run).frame(table)
        for column in SCHEMAS[table].names:
            if frame[column].dtype.kind in "if" and column != "round":
                expected = {int(n): v for n, v in zip(frame["round"], frame[column], strict=True) if math.isfinite(v)}
                assert {step: v for (key, step), v in values.items() if key == f"{table}/{column}"} == expected, column
    last_row = RunFolder(run).frame("evaluations")["class_accuracy"].iloc[-1]
    assert values["evaluations/class_accuracy/3", 4] == last_row[3]
    assert not any("sha256" in key or "stage" in key for key, _ in values)
    assert points_of(run, 0.0, rows)[0] == []
    grown = RunFolder(run)
    grown.rounds.add({"stage": "train", "round": 5, "lr": 0.5, "seconds": 1.0, "evaluation_seconds": 0.5})
    grown.flush()
    added = points_of(run, 0.0, rows)[0]
    assert {(one.key, one.step, one.value) for one in added} >= {("rounds/lr", 5, 0.5)}
    assert {one.step for one in added} == {5}


def test_rows_are_placed_in_time(tmp_path: Path) -> None:
    """Kills: all rows at one time; rounds of another run that take time here; a row that moves when others come."""
    run = RunFolder(tmp_path)
    for round, reused in ((1, True), (2, False), (3, False)):
        run.rounds.add({"stage": "train", "round": round, "seconds": 2.0, "reused": reused, "lr": 0.1})
    run.flush()
    points, rows, _ = points_of(tmp_path, 1000.0, {})
    assert {one.step: one.time for one in points} == {1: 1000.0, 2: 1002.0, 3: 1004.0}
    run.rounds.add({"stage": "train", "round": 4, "seconds": 2.0, "lr": 0.1})
    run.flush()
    assert {one.step: one.time for one in points_of(tmp_path, 1000.0, rows)[0]} == {4: 1006.0}


def test_stages_and_scopes_have_points_of_their_own(tmp_path: Path) -> None:
    """Kills: two stages' rows of one round under one key; personal accuracy in the curve of the global model."""
    experiment = Experiment(stages=WARM_UP, data={"name": "fashion_mnist_sample"})
    run = make_run(tmp_path, experiment, client_rows=False, scope="personal")
    keys = {one.key for one in points_of(run, 0.0, {})[0]}
    assert {"warm-up/evaluations/accuracy", "main/evaluations/personal/accuracy", "main/rounds/lr"} <= keys
    assert "main/evaluations/accuracy" not in keys


def test_a_sweep_and_its_trials(tmp_path: Path) -> None:
    """Kills: trials without their sweep or their setting; a failed one that is left out; an end before the end, or one
    that is told again; keys that two trials, or two sweeps, have in common."""
    sweep = make_sweep(tmp_path, axes=[MU], seeds=(0,), rounds=2, failed=[1], killed=[3], client_rows=False, code="abc")
    listener = Listener()
    push = Push(sweep, listener)
    push.once()
    records = listener.records
    assert [one.name for one in records] == ["made.mu_alpha (laptop)", "00000", "00001", "00002", "00003"]
    assert records[0].key == "0123456789ab-abc" and all(one.parent == records[0] for one in records[1:])
    assert len({one.key for one in records}) == push.records == 5
    assert (
        records[3].params["setting.mu"] == records[3].params["algorithm.mu"] == 0.1 and records[3].params["seed"] == 0
    )
    assert {name: ends[0].status for name, ends in listener.ends.items()} == {
        "00000": "finished", "00001": "failed", "00002": "finished"
    }  # fmt: skip
    assert listener.ends["00000"][0].tags["fedskew.weights_sha256"]
    assert listener.ends["00001"][0].tags["fedskew.reason"].startswith("RunError")
    summary = json.loads((sweep / "trials/00000/summary.json").read_text())
    assert listener.ends["00000"][0].figures["summary/last10_accuracy"] == summary["last10_accuracy"]
    count = push.points
    push.once()
    assert push.points == count > 0 and all(len(ends) == 1 for ends in listener.ends.values())


def test_tables_are_read_when_they_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a pass that reads all tables again although nothing is new; a new row that is passed over."""
    run = make_run(tmp_path / "run", rounds=2, client_rows=False)
    listener, read = Listener(), list[str]()
    frame = RunFolder.frame

    def reads(self: RunFolder, table: str) -> Any:
        read.append(table)
        return frame(self, table)

    monkeypatch.setattr(RunFolder, "frame", reads)
    push = Push(run, listener)
    push.once()
    assert {*read} == {"rounds", "evaluations"}
    read.clear()
    push.once()
    assert not read
    grown = RunFolder(run)
    grown.rounds.add({"stage": "train", "round": 3, "lr": 0.5, "seconds": 1.0, "evaluation_seconds": 0.5})
    grown.flush()
    push.once()
    assert read and listener.points[listener.records[0].name][-1].step == 3


def test_sweeps_of_one_digest_are_kept_apart(tmp_path: Path) -> None:
    """Kills: the second best candidates' sweep under the key of the best's; a trial that other hardware has computed
    under the key of this one's; one that is told of before its key is known."""

    def key(place: str, begins: str, **fields: Any) -> str:
        sweep = make_sweep(tmp_path / place, axes=[MU], seeds=(0,), failed=[0], client_rows=False, **fields)
        above = sweep_record(sweep, safe_yaml.read(sweep / "sweep.yaml"))
        path = sweep / "trials/00000"
        trial = json.loads((path / "trial.json").read_text())
        failed = run_record(path, trial, above)
        assert failed is not None and failed.key == f"{above.key}/00000"
        run = RunFolder(path)
        run.create(Experiment(rounds=3))
        running = {**trial, "status": "running"}
        assert run_record(path, running, above) is None
        run.rounds.add({"stage": "train", "round": 1, "weights_sha256": begins, "seconds": 0.0})
        run.flush()
        record = run_record(path, running, above)
        assert record is not None
        return record.key

    one = key("one", "ab" * 32, code="abc")
    assert one == key("same", "ab" * 32, code="abc") == "0123456789ab-abc/00000-abababababab"
    assert key("other", "cd" * 32, code="abc") == "0123456789ab-abc/00000-cdcdcdcdcdcd"
    assert key("second", "ab" * 32, code="abc", tuned_rank=1) == "0123456789ab-abc-rank1/00000-abababababab"


def test_a_population_is_told_of_when_it_has_ended(tmp_path: Path) -> None:
    """Kills: rows that are replaced by a copy of another trial's, after a tracker has been told of them."""
    pbt = {"name": "pbt", "every": 2}
    sweep = make_sweep(tmp_path, axes=[ALPHA], seeds=(0,), rounds=2, killed=[1], client_rows=False, scheduler=pbt)
    listener = Listener()
    Push(sweep, listener).once()
    assert [one.name for one in listener.records][1:] == ["00000"]


def test_a_run_is_known_by_its_experiment_and_its_weights(tmp_path: Path) -> None:
    """Kills: two histories of one experiment that become one run of a tracker; a key that changes as a run grows."""

    def key(folder: str, weights: str) -> str:
        run = RunFolder(tmp_path / folder)
        run.create(Experiment(rounds=3))
        assert run_record(run.path) is None  # nothing is known of it yet
        keys = []
        for round, hashed in ((1, weights), (2, "other")):
            run.rounds.add({"stage": "train", "round": round, "weights_sha256": hashed, "seconds": 0.0})
            run.flush()
            record = run_record(run.path)
            assert record is not None
            keys.append(record.key)
        assert keys[0] == keys[1]
        return keys[0]

    assert key("a", "ab" * 32) == key("b", "ab" * 32) != key("c", "cd" * 32)


@pytest.mark.parametrize("change", ["status", "figure", "file"])
def test_an_end_has_a_digest(tmp_path: Path, change: str) -> None:
    """Kills: an end that is told again and again; one that has changed and is not told."""
    (tmp_path / "a").write_text("one")

    def digest(status: str = "finished", time: float = 1.0, figure: float = 1.0) -> str:
        return End(status, time, 3, {"a": figure}, {}, [tmp_path / "a"]).digest

    before = digest()
    assert digest(time=2.0) == before
    if change == "file":
        (tmp_path / "a").write_text("two")
    assert digest(**{"status": {"status": "stopped"}, "figure": {"figure": 2.0}, "file": {}}[change]) != before  # type: ignore[arg-type]
