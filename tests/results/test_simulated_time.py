"""Simulated time: closed forms of two clients and two rounds, drawn and given devices, and where it is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from engine.base import parquet
from engine.base.errors import ConfigError, RunFolderError
from engine.base.owned import owned
from engine.experiment import Experiment
from engine.record.columns import SCHEMAS
from engine.record.metrics import SIMULATED
from engine.record.run_folder import RunFolder
from engine.results.frames import load_results
from engine.results.loading import load
from engine.results.simulated_time import CLOCK, RATES, Devices, seconds_until
from engine.results.trials import read_experiment, stage_order
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.report.folder import PICTURES_AND_TABLES
from tests.support.sweep_folders import BASE, MU, make_run, make_sweep

Call = Callable[..., tuple[int, str, str]]
TWO = (1, 2)
# Client 0 trains slowly and sends slowly, client 1 receives slowly.
GIVEN = pd.DataFrame([(1, 20.0, 4000.0, 1000.0), (0, 10.0, 1000.0, 4000.0)], columns=["client", *RATES])


def write(folder: Path, table: str, rows: list[Mapping[str, Any]]) -> None:
    """Put ``rows`` in the place of those of a table; what they leave out is 0 or null."""
    schema = SCHEMAS[table]
    plain = {field.name: 0 if pa.types.is_integer(field.type) else None for field in schema}
    parquet.write(folder / f"{table}.parquet", pa.Table.from_pylist([{**plain, **row} for row in rows], schema))
    summary = json.loads((folder / "summary.json").read_text())
    summary["rows"][table] = len(rows)
    (folder / "summary.json").write_text(json.dumps(summary))


def two_clients(folder: Path, experiment: Experiment | None = None, **local: Any) -> Path:
    """A run of two rounds: both clients take part in the first one, client 1 alone in the second."""
    values = {**BASE, "rounds": 2, "local": {"batch_size": 10, **local}}
    make_run(folder, experiment or Experiment(**values))
    (stage,) = {row["stage"] for row in RunFolder(folder).arrow("rounds", ["stage"]).to_pylist()}
    sent = {"stage": stage, "floats_up": 1000, "floats_down": 2000}
    slow, fast = ({"client": 0, "samples": 25, "steps": 6}, {"client": 1, "samples": 10, "steps": 2})
    write(folder, "clients", [sent | {"round": round} | one for round, one in ((1, slow), (1, fast), (2, fast))])
    return folder


def seconds(folder: Path, devices: Devices, rounds: tuple[int, ...] = TWO, stage: str = "train") -> list[Any]:
    experiment = read_experiment(folder / "experiment.yaml")
    order = stage_order(experiment)
    return seconds_until(folder, experiment, order, devices, [(stage, round) for round in rounds])


@pytest.fixture
def given(tmp_path: Path) -> Devices:
    GIVEN.to_csv(tmp_path / "devices.csv", index=False)
    return Devices(table=str(tmp_path / "devices.csv"))


# --- closed forms ------------------------------------------------------------------------------------------


def test_a_round_lasts_as_long_as_its_slowest_client(tmp_path: Path, given: Devices) -> None:
    """Kills: a mean or a sum over clients, a slowest step of each kind that is no single client's, up and down or a
    device's rows swapped, floats for bytes, samples for rows trained on, rounds that are not added up."""
    folder = two_clients(tmp_path / "run")
    slow = 8000 / 4000 + 50 / 10 + 4000 / 1000  # 6 steps of batches of 10, 10 and 5 rows
    fast = 8000 / 1000 + 20 / 20 + 4000 / 4000
    assert (slow, fast) == (11, 10)
    assert seconds(folder, given) == [11, 21]
    assert seconds(folder, given, (0, 7)) == [0, 21] and seconds(folder, given, stage="other") == [None, None]
    twice = Experiment(**{**BASE, "rounds": 2, "local": {"batch_size": 10}, "execution": {"precision": "float64"}})
    assert seconds(two_clients(tmp_path / "double", twice), given) == [19, 38]  # client 1: 16 + 1 + 2


@pytest.mark.parametrize(
    ("local", "trained"),
    [
        ({"batch_size": 10, "last_batch": "keep"}, 50),
        ({"batch_size": 10, "last_batch": "drop"}, 60),
        ({"batch_size": 10, "last_batch": "wrap"}, 60),
        ({"batch_size": "full"}, 150),
        ({"batch_size": 100, "last_batch": "drop"}, 0),
    ],
)
def test_a_step_is_a_mean_batch(tmp_path: Path, given: Devices, local: dict[str, Any], trained: int) -> None:
    """Kills: rows of another way to cut batches; a run's batches in the place of its stage's."""
    assert seconds(two_clients(tmp_path / "run", **local), given, (1,)) == [max(6 + trained / 10, 9)]
    stages = [{"name": "train", "rounds": 2, "local": local}]
    staged = two_clients(tmp_path / "staged", Experiment(**{**BASE, "rounds": 2, "stages": stages}))
    assert seconds(staged, given, (1,)) == [max(6 + trained / 10, 9)]
    schedule = [{"round": 2, "set": {f"local.{name}": value for name, value in local.items()}}]
    changed = two_clients(tmp_path / "changed", Experiment(**{**BASE, "rounds": 2, "schedule": schedule}))
    before, after = seconds(changed, given), seconds(two_clients(tmp_path / "always", **local), given)
    assert before[1] - before[0] == after[1] - after[0]


def test_exchanges_take_time_and_other_lineages_none(tmp_path: Path, given: Devices) -> None:
    """Kills: exchanges left out, added up over clients, or taken for one; a branch's rounds in the lineage's time."""
    after = [{"name": name, "needs": ["train"], "rounds": 1} for name in ("beside", "end")]
    folder = make_run(tmp_path / "run", Experiment(**{**BASE, "stages": [{"name": "train", "rounds": 1}, *after]}))
    ways = (("train", 1), ("beside", 2), ("end", 2))
    write(folder, "clients", [{"stage": s, "round": r, "client": 1, "floats_up": 1000} for s, r in ways])
    before = {"stage": "end", "round": 1, "when": "prepare", "floats_up": 500}  # of a stage that begins in round 2
    both = [{"client": 0}, {"client": 1}]
    write(folder, "exchanges", [before | one | {"exchange": n} for n in TWO for one in both])
    assert seconds(folder, given, (1,), "train") == [1]
    assert seconds(folder, given, (2,), "end") == [1 + 2 * 2 + 1]
    found = load_results(folder, devices=given)
    assert "end" in set(found.rounds["stage"])
    by_stage = found.rounds.set_index("stage")[CLOCK]
    assert by_stage[["train", "end"]].tolist() == [1, 6] and math.isnan(by_stage["beside"])


def test_rates_twice_as_high_halve_the_time(tmp_path: Path, given: Devices) -> None:
    """Kills: a part of the time that no device's rate decides."""
    folder = two_clients(tmp_path / "run")
    GIVEN.assign(**{name: 2 * GIVEN[name] for name in RATES}).to_csv(tmp_path / "twice.csv", index=False)
    assert seconds(folder, Devices(table=str(tmp_path / "twice.csv"))) == [11 / 2, 21 / 2]
    drawn = Devices(seed=3)
    faster = replace(drawn, **{name: 2 * getattr(drawn, name) for name in RATES})
    assert [2 * one for one in seconds(folder, faster)] == seconds(folder, drawn)


# --- devices -----------------------------------------------------------------------------------------------


def test_a_client_has_the_same_device_in_every_cohort() -> None:
    """Kills: draws in the order of a cohort, or of all clients' first rates before their second ones; a seed without
    effect; rates that go up and down together; a sigma that is no standard deviation; a mean in a median's place."""
    devices, many = Devices(seed=5, sigma=0.5), np.arange(20_000)
    every = devices.rates(many)
    for some in ([7], [7, 3, 7], [0, 19_999]):
        assert devices.rates(np.array(some)).tolist() == every[some].tolist()
    assert not (replace(devices, seed=6).rates(many) == every).any()
    medians = [100, 1e6, 5e6]
    logarithms = np.log(every / medians)
    np.testing.assert_allclose(logarithms.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(logarithms.T), np.diag([0.25] * 3), atol=0.01)
    assert replace(devices, sigma=0).rates(many[:2]).tolist() == [medians, medians]
    assert devices.rates(many[:0]).shape == (0, 3)


def test_devices_are_given_as_csv_or_parquet(tmp_path: Path, given: Devices) -> None:
    """Kills: rates by place in the file; a file that is read anew after it has changed; a bandwidth without limit."""
    path = tmp_path / "devices.parquet"
    GIVEN.assign(model="phone", up_bytes_per_second=math.inf).to_parquet(path)
    devices = Devices(table=str(path))
    slow, fast = [10, math.inf, 4000], [20, math.inf, 1000]
    assert devices.rates(np.array([0, 1, 0])).tolist() == [slow, fast, slow]
    assert seconds(two_clients(tmp_path / "run"), devices) == [9, 18]
    path.unlink()
    assert devices.rates(np.array([0])).tolist() == [slow]
    assert str(devices) == "devices of devices.parquet"


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (GIVEN.drop(columns="client"), "is no table of devices"),
        (GIVEN.assign(up_bytes_per_second="fast"), "is no table of devices"),
        (GIVEN.assign(down_bytes_per_second=[1, 0]), "with rates above 0"),
        (GIVEN.assign(down_bytes_per_second=[1, None]), "with rates above 0"),
        (GIVEN.assign(client=0), "must name each client once"),
        (GIVEN.assign(client=[0, 0.5]), "must name each client once"),
        (GIVEN.head(1), r"has no row for client \[0\]"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, frame: pd.DataFrame, told: str) -> None:
    frame.to_csv(tmp_path / "devices.csv", index=False)
    with pytest.raises(ConfigError, match=told):
        load(two_clients(tmp_path / "run"), devices=Devices(table=str(tmp_path / "devices.csv")))


# --- where it is shown -------------------------------------------------------------------------------------

CLAIM = {"text": "a weight gets there sooner", "source": "ours", "better": {"mu": 0.1}, "worse": {"mu": 0.0}}
CLAIM |= {"metric": "seconds_to_target", "larger_is_better": False}
SLOWER = Devices(sigma=0.1, examples_per_second=1)


def final(setting: Mapping[str, Any], seed: int) -> float:
    """Reach the target of 0.7 with a weight of 0.1, later without one, and never with 1."""
    return {0.0: 0.75, 0.1: 0.9}.get(setting["mu"], 0.4)


def swept(folder: Path, **fields: Any) -> Path:
    return make_sweep(folder, axes=[{**MU, "values": [0.0, 0.1, 1.0]}], accuracy=final, claims=[CLAIM], **fields)


def test_seconds_stand_beside_rounds(tmp_path: Path) -> None:
    """Kills: a time to the target where there are no rounds to it, or none where there are; the time of another round;
    a whole run's time that is another one's; columns of what nobody supposed."""
    folder = swept(tmp_path / "sweep")
    plain = load(folder)
    assert not {*SIMULATED} & {*plain.trials, *plain.curves()}
    assert load_results(folder).rounds[CLOCK].isna().all() and load_results(folder).trials[CLOCK].isna().all()
    results = load(folder, "seconds_to_target", Devices(sigma=0.5))
    assert results.mode == "min"
    never = results.trials["mu"] == 1
    assert results.trials["rounds_to_target"].isna().eq(never).all()
    assert results.trials["seconds_to_target"].isna().eq(never).all()
    curves = results.curves().set_index(["trial", "round"])[CLOCK]
    for row in results.trials[~never].to_dict("records"):
        assert 0 < row["seconds_to_target"] == curves[row["trial"], row["rounds_to_target"]]
        assert row["seconds_to_target"] < row[CLOCK] == curves[row["trial"]].iloc[-1]
        assert curves[row["trial"]].is_monotonic_increasing
    frames = load_results(folder, devices=Devices(sigma=0.5))
    assert frames.rounds[CLOCK].tolist() == curves.tolist()
    assert frames.trials["seconds_to_target"].equals(results.trials["seconds_to_target"])
    plain.trials.pop("folder")
    for name in plain.trials:  # nothing else moves
        pd.testing.assert_series_equal(plain.trials[name], results.trials[name])


def test_a_trial_that_has_lost_clients_is_damaged(tmp_path: Path) -> None:
    """Kills: rounds that last no time since their clients are gone."""
    folder = swept(tmp_path / "sweep")
    path = folder / "trials" / "00001" / "clients.parquet"
    parquet.write(path, parquet.read(path).slice(1))
    assert set(load(folder).trials["status"]) == {"finished"}
    found = load(folder, devices=Devices()).trials.set_index("trial").loc["00001"]
    assert found["status"] == "damaged" and "clients.parquet has lost rows" in found["reason"]


def test_claims_are_judged_on_the_sweeps_devices_or_others(tmp_path: Path) -> None:
    """Kills: devices of a sweep that are lost, or go before those that were asked for."""
    folder = swept(tmp_path / "sweep", devices=asdict(Devices(sigma=0.1, seed=2)))
    (verdict,) = judge(load(folder))
    assert verdict.verdict == "held" and verdict.effect > 0
    (other,) = judge(load(folder, devices=SLOWER))
    assert other.verdict == "held" and other.effect > 10 * verdict.effect
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | {"devices": {"sigma": -1}}))
    with pytest.raises(RunFolderError, match="is not a sweep of this version"):
        load(folder)
    del values["devices"]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    (verdict,) = judge(load(folder))
    assert verdict.verdict == "undecided" and "seconds_to_target" in verdict.why


@pytest.mark.slow
def test_a_report_says_what_it_supposes(tmp_path: Path, call: Call) -> None:
    """Kills: a claim that does not say on which devices; a figure over rounds in the place of one over time, or one
    that a report without devices leaves behind."""
    folder = swept(tmp_path / "sweep")
    code, out, _ = call("report", str(folder), "--devices", "lognormal:sigma=0.1,examples_per_second=1", "--json")
    assert code == 0 and json.loads(out)["claims"][0]["verdict"] == "held"
    page = (folder / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count(f"on {SLOWER}") >= 2 and "simulated time to target (s)" in page
    names = {path.name for path in owned(folder / "report", PICTURES_AND_TABLES)}
    assert {"curves-accuracy.pdf", "curves-accuracy-seconds.pdf", "curves-accuracy-seconds.png"} <= names
    told = pd.read_csv(folder / "report" / "curves.csv")
    rows = told[(told["mu"] == 0) & (told["quantity"] == "accuracy")]
    mean = load(folder, devices=SLOWER).curves().query("mu == 0").groupby("round")[CLOCK].mean()
    np.testing.assert_allclose(rows[CLOCK], mean)


def test_devices_are_typed(tmp_path: Path, call: Call, given: Devices) -> None:
    """Kills: a field that is not known and does nothing; a file that is taken for a kind of draw."""
    folder = str(two_clients(tmp_path / "run"))
    query = f"select max({CLOCK}) as seconds from trials"
    code, out, _ = call("query", folder, query, "--devices", given.table, "--json")
    assert code == 0 and json.loads(out)["rows"] == [{"seconds": 21.0}]
    for text, told in {
        "lognormal:speed=3": "devices.speed=3: is not a field of devices",
        "lognormal:sigma=-1": "sigma=-1: must be at least 0",
        "nowhere.csv": "devices=nowhere.csv: is no table of devices",
    }.items():
        code, _, err = call("report", folder, "--devices", text)
        assert code == 2 and told in " ".join(err.split()), err
