"""Messages outside rounds: counted as they are given, carried through resumes and shared rounds, part of all costs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Algorithm, Client, Clients, ClientView, Compute, Context, Kind, LocalRun, Tensors
from engine.base.errors import RunError
from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.results import load
from engine.server.client_map import EveryClient
from tests.support.tiny import (
    CLASSES,
    SIZES,
    assignment,
    context_of,
    dataset,
    drive,
    drive_with_store,
    every_client,
    experiment,
    open_driver,
)

TABLES = ("rounds", "clients", "evaluations", "exchanges")
D = 12  # features of the tiny network
MOMENTS = 1 + D + D * (D + 1) // 2  # of a class: its number, mean, and covariance packed


def moments(view: ClientView, shared: Tensors, packed: bool) -> Tensors:
    """Of each class that the client has, as CCVR sends them."""
    batches = list(view.rows())
    z = torch.cat([view.net.features(batch.x) for batch in batches]).detach().double()
    y = torch.cat([batch.y for batch in batches])
    sent = {}
    for label in y.unique().tolist():
        own = z[y == label]
        square = (own - own.mean(0)).T @ (own - own.mean(0))
        rows, columns = torch.triu_indices(D, D)
        covariance = square[rows, columns] if packed else square.flatten()
        sent[f"class_{label}"] = torch.cat((torch.tensor([len(own)], dtype=torch.float64), own.mean(0), covariance))
    return sent


def count(view: ClientView, shared: Tensors) -> Tensors:
    return {"total": torch.tensor(float(view.client.num_examples))}


@dataclasses.dataclass(frozen=True)
class Asking(FedAvg):
    """FedAvg that asks its clients twice before a stage and once after it."""

    packed: bool = True
    entries = {  # noqa: RUF012
        **Algorithm.entries,
        "total": Kind.SCALAR,
        **{f"class_{label}": Kind.MOMENTS for label in range(CLASSES)},
    }

    def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
        server = {**server, **clients.map(count, {})}
        return {**server, **clients.map(count, {"word": torch.zeros(3)})}

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        model = {"weights": server["weights"], "buffers": server["buffers"]}
        return {**server, **clients.map(partial(moments, packed=self.packed), model)}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "asking", Asking)


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    unequal = [*HOW_IT_WENT, "reused"]
    return {name: RunFolder(folder).frame(name).drop(columns=unequal, errors="ignore") for name in TABLES}


def assert_equal(a: Path, b: Path) -> None:
    mine, its = tables(a), tables(b)
    assert len(mine["exchanges"])
    for name in TABLES:
        pd.testing.assert_frame_equal(mine[name], its[name])


COSTS = ("floats_up", "floats_down", "exchange_floats_up", "exchange_floats_down", "rounds", "weights_sha256")


def costs(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: summary[name] for name in COSTS}


TWO_STAGES: dict[str, Any] = {
    "stages": [
        {"name": "first", "rounds": 2, "algorithm": {"name": "asking"}},
        {"name": "second", "rounds": 3, "algorithm": {"name": "asking"}, "needs": ["first"]},
    ],
    "participation": {"count": 3},
}


# --- what is counted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_what_is_sent_is_what_is_counted(tmp_path: Path, packed: bool) -> None:
    """Kills: a message that counts as something other than its numbers; classes that a client lacks; empty clients."""
    parts = assignment([20, 13, 0, 7, 1])
    data = dataset(41)
    run = drive(tmp_path, experiment(rounds=2, algorithm={"name": "asking", "packed": packed}), data, parts)
    exchanges = run.folder.frame("exchanges")
    size = run.driver.layout.size + run.driver.layout.buffers
    assert sorted({(row.when, row.exchange, row.round) for row in exchanges.itertuples()}) == [
        ("finish", 1, 2),
        ("prepare", 1, 0),
        ("prepare", 2, 0),
    ]
    assert exchanges.groupby(["when", "exchange"])["client"].apply(list).tolist() == [[0, 1, 3, 4]] * 3
    assert exchanges["samples"].tolist() == [20, 13, 7, 1] * 3
    first, second = (exchanges.query(f"when == 'prepare' and exchange == {number}") for number in (1, 2))
    assert set(first["floats_up"]) == {1} and set(first["floats_down"]) == {0}
    assert set(second["floats_up"]) == {1} and set(second["floats_down"]) == {3}
    finish = exchanges.query("when == 'finish'").set_index("client")
    of_a_class = MOMENTS if packed else 1 + D + D * D
    for client, rows in enumerate(parts.clients):
        if len(rows):
            present = len(set(data.train.labels[rows].tolist()))
            assert finish["floats_up"][client] == present * of_a_class
            assert finish["floats_down"][client] == size
    rounds = run.folder.frame("rounds")
    for way in ("floats_up", "floats_down"):
        assert run.summary[f"exchange_{way}"] == exchanges[way].sum() > 0
        assert run.summary[way] == rounds[way].sum() + exchanges[way].sum()
    assert float(run.server["total"]) == 41


def test_a_sum_keeps_entries_that_only_some_clients_send(tmp_path: Path) -> None:
    """Kills: sums over the entries of the last client alone."""
    run = drive(tmp_path, experiment(rounds=1, algorithm={"name": "asking"}))
    numbers = [float(run.server[f"class_{label}"][0]) for label in range(CLASSES)]
    assert numbers == [float((dataset().train.labels == label).sum()) for label in range(CLASSES)]
    assert run.server["class_0"].dtype == torch.float64


def test_blocks_do_not_matter(tmp_path: Path) -> None:
    """Kills: a count per block, or rows in the order in which blocks come back."""
    runs = [
        drive(tmp_path / str(b), experiment(**TWO_STAGES, execution={"actors": 0, "device": "cpu", "block": b}))
        for b in (1, 3)
    ]
    pd.testing.assert_frame_equal(*[run.folder.frame("exchanges") for run in runs])


def test_a_net_that_was_not_sent_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: results that depend on what a worker did before; a model that travels uncounted."""

    @dataclasses.dataclass(frozen=True)
    class Peeking(Asking):
        def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
            return {**server, **clients.map(partial(moments, packed=True), {})}

    monkeypatch.setitem(ALGORITHMS, "asking", Peeking)
    message = "client 0, asked by the server after round 0: TypeError: clients were sent no model"
    with pytest.raises(RunError, match=message):
        drive(tmp_path, experiment(rounds=1, algorithm={"name": "asking"}))


def kept(view: ClientView, shared: Tensors) -> Tensors:
    return {"kept": torch.tensor([float(len(view.state))])}


def test_states_come_along_only_where_they_are_asked_for(tmp_path: Path) -> None:
    """Kills: every client's state read for every pass of a calibration that never looks at one."""
    driver = open_driver(tmp_path, experiment(algorithm={"name": "scaffold"}, participation={"count": 3}))
    driver.advance()
    context = context_of(driver, 1)
    clients = every_client(driver, context, "finish")
    found = clients.map(kept, {}, reduce="stack", states=True)["kept"]
    assert (found > 0).sum() == 3
    with pytest.raises(RunError, match=r"TypeError: .*; call clients.map with states=True to use view.state"):
        clients.map(kept, {})

    def nothing(ids: Any) -> Any:
        raise AssertionError("states were read")

    unread = EveryClient(driver.exchanges, "train", context, "finish", nothing, {})
    assert unread.map(count, {})["total"] == sum(SIZES)


@dataclasses.dataclass(frozen=True)
class Counting(FedAvg):
    """Counts each client's rounds in its state, and at the end asks all for it."""

    entries = {**Algorithm.entries, "seen": Kind.SCALAR, "kept": Kind.TENSOR}  # noqa: RUF012
    stateful = True

    def init_state(self, received: Tensors, previous: Tensors, client: Client) -> Tensors:
        return {"seen": torch.zeros(())}

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return super().upload(run, received, state)[0], {"seen": state["seen"] + 1}

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        return {**server, **clients.map(kept, {}, reduce="stack", states=True)}


def test_a_stages_end_sees_its_own_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the stage before's state of a client that has not taken part in this one."""
    monkeypatch.setitem(ALGORITHMS, "counting", Counting)
    stages = [
        {"name": name, "rounds": rounds, "algorithm": {"name": "counting"}, "needs": needs}
        for name, rounds, needs in (("first", 3, []), ("second", 1, ["first"]))
    ]
    run = drive(tmp_path, experiment(stages=stages, participation={"count": 2}))
    assert int(run.server["kept"].sum()) == 2


def test_no_exchange_no_file(tmp_path: Path) -> None:
    """Kills: an empty table beside every run."""
    run = drive(tmp_path, experiment(rounds=1))
    assert not (tmp_path / "exchanges.parquet").exists()
    assert run.summary["exchange_floats_up"] == run.summary["exchange_floats_down"] == 0


# --- resumes and shared rounds ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("config", [TWO_STAGES, {"algorithm": {"name": "fedmix", "mash": 5}, "rounds": 5}])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_resumes_neither_lose_nor_double_exchanges(tmp_path: Path, stop: int, config: dict[str, Any]) -> None:
    """Kills: rows before round 1 that a resume drops; a stage that is prepared, and counted, again."""
    driver = open_driver(tmp_path / "stopped", experiment(**config))
    for _ in range(stop):
        driver.advance()
    driver.close()
    again = drive(tmp_path / "stopped", experiment(**config))
    straight = drive(tmp_path / "straight", experiment(**config))
    assert_equal(tmp_path / "stopped", tmp_path / "straight")
    assert costs(again.summary) == costs(straight.summary)


def test_a_crash_between_rows_and_checkpoint(tmp_path: Path) -> None:
    """Kills: the exchange of a stage that begins again, beside that of its first beginning."""
    driver = open_driver(tmp_path / "torn", experiment(**TWO_STAGES))
    for _ in range(3):
        driver.advance()  # one round into the second stage; the last checkpoint is the first one's end
    driver.folder.flush()
    drive(tmp_path / "torn", experiment(**TWO_STAGES))
    drive(tmp_path / "straight", experiment(**TWO_STAGES))
    assert_equal(tmp_path / "torn", tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("before", [1, 2, 4, 5])
def test_shared_rounds_cost_what_computed_ones_do(tmp_path: Path, before: int, every: int) -> None:
    """Kills: an exchange that stays behind with the run that made it, or that two runs count."""
    store = StageStore(tmp_path / "store", heartbeat=0.05, patience=0.5)
    config = experiment(**TWO_STAGES, checkpoint={"every": every})
    drive_with_store(tmp_path / "donor", config, store, until=before)
    taken = drive_with_store(tmp_path / "taken", config, store)
    plain = drive_with_store(tmp_path / "plain", config, None)
    if before in (2, 5):  # a stage's end
        assert taken["rounds_computed"] == 5 - before
    assert_equal(tmp_path / "taken", tmp_path / "plain")
    assert costs(taken) == costs(plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asking", "fedmix"])
def test_a_longer_stage_finishes_for_itself(tmp_path: Path, name: str) -> None:
    """Kills: the shorter stage's last exchange among the longer one's costs, or none at all."""
    store = StageStore(tmp_path / "store", heartbeat=0.05, patience=0.5)
    setting: dict[str, Any] = {"algorithm": {"name": name}, "participation": {"count": 3}, "checkpoint": {"every": 1}}
    drive_with_store(tmp_path / "short", experiment(**setting, rounds=2), store)
    drive_with_store(tmp_path / "long", experiment(**setting, rounds=4), store)
    again = drive_with_store(tmp_path / "again", experiment(**setting, rounds=4), store)
    plain = drive_with_store(tmp_path / "plain", experiment(**setting, rounds=4), None)
    assert again["rounds_computed"] == 0
    for folder in ("long", "again"):
        assert_equal(tmp_path / folder, tmp_path / "plain")
    assert costs(again) == costs(plain)


def test_a_shared_stage_without_rounds_is_counted_once(tmp_path: Path) -> None:
    """Kills: what the stage's beginning asked of clients, once as of this run and once as of the stored one."""
    store = StageStore(tmp_path / "store", heartbeat=0.05, patience=0.5)
    end = {"name": "end", "rounds": 0, "algorithm": {"name": "asking"}, "needs": ["first"]}
    config = experiment(**{**TWO_STAGES, "stages": [TWO_STAGES["stages"][0], end]})
    for folder in ("donor", "taken"):
        summary = drive_with_store(tmp_path / folder, config, store)
    plain = drive_with_store(tmp_path / "plain", config, None)
    assert summary["rounds_computed"] == 0
    assert_equal(tmp_path / "taken", tmp_path / "plain")
    assert costs(summary) == costs(plain)


def test_snapshots_carry_them(tmp_path: Path) -> None:
    """Kills: exchanges that a trial loses when Ray Tune moves it."""
    config = experiment(**TWO_STAGES)
    for rounds in (1, 3, 5):
        source = open_driver(tmp_path / f"source-{rounds}", config)
        for _ in range(rounds):
            source.advance()
        (tmp_path / f"handed-{rounds}").mkdir()
        source.write_snapshots(tmp_path / f"handed-{rounds}")
        target = open_driver(tmp_path / f"target-{rounds}", config)
        target.adopt_snapshots(tmp_path / f"handed-{rounds}")
        target.close()
        source.close()
        assert_equal(tmp_path / f"target-{rounds}", tmp_path / f"source-{rounds}")


# --- bytes to the target ------------------------------------------------------------------------------


def test_bytes_to_the_target_include_exchanges_before_it(tmp_path: Path) -> None:
    """Kills: a prepared stage that costs nothing; the next stage's exchange, which comes after; a side branch's."""
    stages = [TWO_STAGES["stages"][0], {"name": "aside", "rounds": 1, "algorithm": {"name": "asking"}}]
    settings = experiment(stages=[*stages, TWO_STAGES["stages"][1]])
    run = drive(tmp_path / "run", settings)
    frames = tables(tmp_path / "run")
    evaluations = frames["evaluations"].query("stage != 'aside'")
    for stage, number in (("first", 1), ("first", 2), ("second", 3), ("second", 5)):
        accuracy = {row.round: float(row.round >= number) for row in evaluations.itertuples()}
        table = pd.read_parquet(tmp_path / "run" / "evaluations.parquet")
        table["accuracy"] = [accuracy.get(round, 0.0) for round in table["round"]]
        table.to_parquet(tmp_path / "run" / "evaluations.parquet")
        row = load(sweep_of(tmp_path, run.folder.path)).trials.iloc[0]
        assert row["rounds_to_target"] == number
        clients = 8
        size = run.driver.layout.size + run.driver.layout.buffers
        floats = 2 * number * clients * size
        prepared = clients * (1 + 4)  # a number up; three down and a number up
        exchanges = frames["exchanges"]
        finished = exchanges[(exchanges["when"] == "finish") & exchanges["stage"].isin(["first", "second"])]
        finished = finished[(finished["stage"] == "first") & (number >= 2) | (finished["round"] <= number)]
        floats += prepared * (1 if stage == "first" else 2)
        floats += int((finished["floats_up"] + finished["floats_down"]).sum())
        assert row["bytes_to_target"] == 4 * floats
        assert row["floats_up"] == run.summary["floats_up"]


def sweep_of(folder: Path, run: Path) -> Path:
    """A sweep of that one run."""
    sweep = folder / "sweep"
    shutil.copytree(run, sweep / "trials" / "0", dirs_exist_ok=True)
    trial = {"trial": "0", "setting": {}, "seed": 0, "status": "finished", "reason": None}
    (sweep / "trials" / "0" / "trial.json").write_text(json.dumps(trial))
    values = {
        "name": "s", "title": "s", "profile": None, "metric": "accuracy", "mode": "max", "target_accuracy": 0.5,
        "axes": [], "seeds": [0], "tables": [], "claims": [],
    }  # fmt: skip
    (sweep / "sweep.yaml").write_text(yaml.safe_dump(values))
    return sweep
