"""Folders as trackers are told of them: their config by dotted keys, their numbers by table and column."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from engine.base import safe_yaml
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.schemas import SCHEMAS
from fedskew.trackers.reading import Folder, RunRows, RunUnit, SweepUnit, flat
from fedskew.trackers.records import End
from tests.support.sweep_folders import ALPHA, MU, WARM_UP, make_run, make_sweep


def test_the_config_by_dotted_keys() -> None:
    """Kills: a stage that hides another one's values, a list or a null that is lost, keys other than the overrides'."""
    values = Experiment(stages=WARM_UP, model={"name": "mlp", "hidden": [8, 9]}).to_mapping()
    told = flat(values)
    assert told["stages.warm-up.algorithm.name"] == "fedavg" and told["stages.main.rounds"] == 7
    assert told["model.hidden"] == "[8, 9]" and told["local.lr"] == 0.05 and told["evaluation.personal_every"] is None
    assert flat(values["local"]) == values["local"]


def test_every_number_of_the_tables_is_told_once(tmp_path: Path) -> None:
    """Kills: a column, a class or a round that is left out; a step that is not the round; a text or null as a number;
    points that come again; rows that are added and never come."""
    run = make_run(tmp_path / "run", rounds=4, summary=False, client_rows=False)
    rows = RunRows(run, staged=False)
    points = rows.new()
    told = {(point.key, point.step): point.value for point in points}
    assert len(told) == len(points)
    for table in ("rounds", "evaluations"):
        frame = RunFolder(run).frame(table)
        for column in SCHEMAS[table].names:
            if frame[column].dtype.kind in "if" and column != "round":
                expected = {int(n): v for n, v in zip(frame["round"], frame[column], strict=True) if math.isfinite(v)}
                assert {step: v for (key, step), v in told.items() if key == f"{table}/{column}"} == expected, column
    assert told["evaluations/class_accuracy/3", 4] == RunFolder(run).frame("evaluations")["class_accuracy"].iloc[-1][3]
    assert not any("sha256" in key or "stage" in key for key, _ in told)
    rows.taken(points)
    assert rows.new() == []
    grown = RunFolder(run)
    grown.rounds.add({"stage": "train", "round": 5, "lr": 0.5, "seconds": 1.0, "evaluation_seconds": 0.5})
    grown.flush()
    assert {(one.key, one.step, one.value) for one in rows.new()} >= {("rounds/lr", 5, 0.5)}
    assert {one.step for one in rows.new()} == {5}


def test_rows_are_placed_in_time(tmp_path: Path) -> None:
    """Kills: all rows at the time of the look; rounds that overlap; rounds of another run that take time here; a row
    that moves when others come."""
    run = RunFolder(tmp_path)
    for round, reused in ((1, True), (2, False), (3, False)):
        row = {"stage": "train", "round": round, "seconds": 2.0, "evaluation_seconds": 1.0, "reused": reused}
        run.rounds.add({**row, "lr": 0.1})
    run.flush()
    os.utime(run.rounds.path, (1000.0, 1000.0))
    rows = RunRows(tmp_path, staged=False)
    assert {one.step: one.time for one in rows.new()} == {1: 994.0, 2: 997.0, 3: 1000.0}
    run.rounds.add({"stage": "train", "round": 4, "seconds": 2.0, "evaluation_seconds": 1.0, "lr": 0.1})
    run.flush()
    os.utime(run.rounds.path, (1500.0, 1500.0))
    assert {one.step: one.time for one in rows.new()} == {1: 994.0, 2: 997.0, 3: 1000.0, 4: 1500.0}


def test_stages_and_scopes_have_points_of_their_own(tmp_path: Path) -> None:
    """Kills: two stages' rows of one round under one key; personal accuracy in the curve of the global model."""
    experiment = Experiment(stages=WARM_UP, data={"name": "fashion_mnist_sample"})
    run = make_run(tmp_path, experiment, client_rows=False, scope="personal")
    keys = {one.key for one in RunRows(run, staged=True).new()}
    assert {"warm-up/evaluations/accuracy", "main/evaluations/personal/accuracy", "main/rounds/lr"} <= keys
    assert "main/evaluations/accuracy" not in keys


def test_a_sweep_and_its_trials(tmp_path: Path) -> None:
    """Kills: trials without their sweep or their setting; a failed one that is left out; an end before the end; keys
    that two trials, or two sweeps, have in common."""
    sweep = make_sweep(tmp_path, axes=[MU], seeds=(0,), rounds=2, failed=[1], killed=[3], client_rows=False, code="abc")
    units = list(Folder(sweep).units())
    records = [record for unit in units if (record := unit.record()) is not None]
    assert [one.name for one in records] == ["made.mu_alpha (laptop)", "00000", "00001", "00002", "00003"]
    assert records[0].key == "0123456789ab-abc" and {one.parent for one in records[1:]} == {records[0].key}
    assert len({one.key for one in records}) == 5
    assert (
        records[3].params["setting.mu"] == records[3].params["algorithm.mu"] == 0.1 and records[3].params["seed"] == 0
    )
    ends = [unit.end() for unit in units]
    assert [end.status if end else None for end in ends] == [None, "finished", "failed", "finished", None]
    assert ends[1] is not None and ends[1].tags["fedskew.weights_sha256"] and ends[2] is not None
    assert ends[2].tags["fedskew.reason"].startswith("RunError")
    summary = json.loads((sweep / "trials/00000/summary.json").read_text())
    assert ends[1].figures["summary/last10_accuracy"] == summary["last10_accuracy"]


def test_sweeps_of_one_digest_are_kept_apart(tmp_path: Path) -> None:
    """Kills: the second best candidates' sweep under the key of the best's; a trial that other hardware has computed
    under the key of this one's, one that is told of before its key is known, a failed one that keeps its key when it is
    retried."""

    def key(place: str, begins: str, **fields: Any) -> str:
        sweep = make_sweep(tmp_path / place, axes=[MU], seeds=(0,), failed=[0], client_rows=False, **fields)
        unit = RunUnit(sweep / "trials/00000", sweep=SweepUnit(sweep, safe_yaml.read(sweep / "sweep.yaml")).record())
        failed, path = unit.record(), unit.path / "trial.json"
        assert failed is not None and failed.key == f"{failed.parent}/00000"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "running"}))
        run = RunFolder(unit.path)
        run.create(Experiment(rounds=3))
        assert RunUnit(unit.path, sweep=unit.sweep).record() is None
        run.rounds.add({"stage": "train", "round": 1, "weights_sha256": begins, "seconds": 0.0})
        run.flush()
        record = unit.record()
        assert record is not None and unit.rows is not None and unit.rows.new()
        return record.key

    one = key("one", "ab" * 32, code="abc")
    assert one == key("same", "ab" * 32, code="abc") == "0123456789ab-abc/00000-abababababab"
    assert key("other", "cd" * 32, code="abc") == "0123456789ab-abc/00000-cdcdcdcdcdcd"
    assert key("second", "ab" * 32, code="abc", tuned_rank=1) == "0123456789ab-abc-rank1/00000-abababababab"


def test_a_population_is_told_of_when_it_has_ended(tmp_path: Path) -> None:
    """Kills: rows that are replaced by a copy of another trial's, after a tracker has been told of them."""
    pbt = {"name": "pbt", "every": 2}
    sweep = make_sweep(tmp_path, axes=[ALPHA], seeds=(0,), rounds=2, killed=[1], client_rows=False, scheduler=pbt)
    told = [record.name for unit in Folder(sweep).units() if (record := unit.record()) is not None]
    assert told[1:] == ["00000"]


def test_a_run_is_known_by_its_experiment_and_its_weights(tmp_path: Path) -> None:
    """Kills: two histories of one experiment that become one run of a tracker; a key that changes as a run grows."""

    def key(folder: str, weights: str) -> str:
        run = RunFolder(tmp_path / folder)
        run.create(Experiment(rounds=3))
        unit = RunUnit(run.path)
        assert unit.record() is None  # nothing is known of it yet
        run.rounds.add({"stage": "train", "round": 1, "weights_sha256": weights, "seconds": 0.0})
        run.flush()
        record = unit.record()
        assert record is not None
        run.rounds.add({"stage": "train", "round": 2, "weights_sha256": "other", "seconds": 0.0})
        run.flush()
        again = RunUnit(run.path).record()
        assert again is not None and again.key == record.key
        return record.key

    assert key("a", "ab" * 32) == key("b", "ab" * 32) != key("c", "cd" * 32)


@pytest.mark.parametrize("change", ["status", "figure", "artifact"])
def test_an_end_has_a_digest(tmp_path: Path, change: str) -> None:
    """Kills: an end that is told again and again; one that has changed and is not told."""
    (tmp_path / "a").write_text("one")

    def digest(**fields: object) -> str:
        return End(**{"status": "finished", "time": 1.0, "step": 3, "figures": {"a": 1.0}, **fields}).digest  # type: ignore[arg-type]

    before = digest(artifacts=[tmp_path / "a"])
    assert digest(artifacts=[tmp_path / "a"], time=2.0) == before
    if change == "artifact":
        (tmp_path / "a").write_text("two")
    changed = {"status": {"status": "stopped"}, "figure": {"figures": {"a": 2.0}}, "artifact": {}}[change]
    assert digest(artifacts=[tmp_path / "a"], **changed) != before
