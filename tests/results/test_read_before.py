"""Trials that an earlier report has read are not read again, and nothing of a trial that has changed is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.results import read_before, trials
from engine.results.loading import load
from engine.results.read_before import FILE
from engine.results.results import Results
from engine.results.simulated_time import Devices
from tests.support.sweep_folders import make_sweep

SETTLED = read_before.SETTLED


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep whose files have all been there for long."""
    monkeypatch.setattr(read_before, "SETTLED", 0)
    return make_sweep(tmp_path / "sweep", rounds=3)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trials whose experiment was read."""
    names: list[str] = []
    original = trials.read_experiment

    def reading(path: Path) -> dict[str, Any]:
        names.append(path.parent.name)
        return original(path)

    monkeypatch.setattr(trials, "read_experiment", reading)
    return names


def check_equal(results: Results, others: Results) -> None:
    pd.testing.assert_frame_equal(results.trials, others.trials)
    pd.testing.assert_frame_equal(results.curves(), others.curves())
    assert results.facts == others.facts and results.completeness == others.completeness


def test_a_trial_is_read_once(sweep: Path, read: list[str]) -> None:
    """Kills: a second report that reads all again, or other figures, curves or facts than the first; one that is kept
    without being asked for."""
    first = load(sweep)
    assert not (sweep / FILE).exists()
    check_equal(load(sweep, keep=True), first)
    ended = set(first.trials.loc[first.trials["status"].isin(["finished", "stopped"]), "trial"])
    assert len(ended) > 1
    read.clear()
    check_equal(load(sweep, keep=True), first)
    assert set(read) == set(first.trials["trial"]) - ended
    load(sweep)
    assert set(read) == set(first.trials["trial"])  # who judges a claim reads the trials


def test_what_has_changed_is_read_again(sweep: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: figures of a trial as it was: of another summary, of one of the same size and time, of one that has gone;
    of a file that may change again within the grain of the clock."""
    names = load(sweep, keep=True).trials.query("status == 'finished'")["trial"].tolist()[:3]
    summaries = [sweep / "trials" / name / "summary.json" for name in names]
    values = json.loads(summaries[0].read_text())
    summaries[0].write_text(json.dumps(values | {"best_accuracy": 0.5}))
    text = summaries[1].read_text()
    before = summaries[1].stat()
    summaries[1].write_text(text.replace("4", "5"))
    os.utime(summaries[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert summaries[1].stat().st_size == before.st_size
    summaries[2].unlink()
    read.clear()
    found = load(sweep, keep=True).trials.set_index("trial")
    assert set(names[:2]) <= set(read)
    assert found.loc[names[0], "best_accuracy"] == 0.5 and found.loc[names[2], "status"] == "damaged"
    check_equal(load(sweep, keep=True), load(sweep))
    read.clear()
    load(sweep, keep=True)
    assert not {*names[:2]} & {*read}
    monkeypatch.setattr(read_before, "SETTLED", 1_000_000 * SETTLED)  # however long this has taken
    load(sweep, keep=True)
    assert {*names[:2]} <= {*read}


def test_all_that_figures_depend_on(sweep: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: figures to another target or on other devices, or made by another version."""
    count = len(load(sweep, keep=True).trials)
    for change in ("target", "devices", "sources"):
        read.clear()
        if change == "target":
            text = (sweep / "sweep.yaml").read_text()
            (sweep / "sweep.yaml").write_text(text.replace("target_accuracy: ", "target_accuracy: 0.1 # "))
        if change == "sources":
            monkeypatch.setattr(read_before, "_made_by", lambda: "another version")
        load(sweep, devices=Devices() if change == "devices" else None, keep=True)
        assert len(set(read)) >= count - 1, change


def test_a_strange_file_is_passed_over(sweep: Path, read: list[str]) -> None:
    """Kills: a report that fails for a file that it could do without; one that believes another sweep's."""
    first = load(sweep, keep=True)
    whole = (sweep / FILE).read_bytes()
    table = pq.read_table(sweep / FILE)

    def with_texts(text: str) -> pa.Table:
        return table.set_column(2, "read", pa.array([text] * len(table)))

    texts = ("[1]", "[1, {}, {}]", "[{}, 1, {}]", "[{}, {}, {}]", '[{}, {}, {"versions": 1}]', "[" * 10_000)
    others = (table.select(["trial"]), table.set_column(3, "evaluations", table["trial"]))
    for content in (whole[:-100], b"", *map(with_texts, texts), *others):
        if isinstance(content, bytes):
            (sweep / FILE).write_bytes(content)
        else:
            pq.write_table(content, sweep / FILE)
        read.clear()
        check_equal(load(sweep, keep=True), first)
        assert len(set(read)) > 1
    (sweep / FILE).unlink()
    (sweep / FILE).mkdir()
    check_equal(load(sweep, keep=True), first)


def test_nothing_of_it_ends_a_report(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a report that fails since no trial has evaluations, or since a file has gone as it is looked at."""
    for path in sweep.glob("trials/*/evaluations.parquet"):
        path.unlink()
    for path in sweep.glob("trials/*/summary.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"rows": dict.fromkeys(values["rows"], 0), "accuracy": None}))
    first = load(sweep)
    assert "finished" in set(first.trials["status"])
    check_equal(load(sweep, keep=True), first)
    gone = SimpleNamespace(walk=os.walk, path=os.path, lstat=lambda path: os.lstat(f"{path}.gone"))
    monkeypatch.setattr(read_before, "os", gone)
    check_equal(load(sweep, keep=True), first)
