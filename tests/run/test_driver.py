"""The round loop: cohorts, blocks, stages, cadences, rows, checkpoints, states."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Algorithm, Kind, Tensors
from engine.base.errors import ConfigError, ResourceError, RunError, RunFolderError
from engine.data import Assignment
from engine.experiment import Participation
from engine.record.checkpoints import Checkpoints, Position
from engine.record.columns import SCHEMAS
from engine.record.numerics import numerics
from engine.record.run_folder import RunFolder
from engine.record.states import DiskStore, MemoryStore
from engine.run.log import Messages
from engine.run.preparing import prepare
from engine.run.recording import weights_sha256
from engine.server.cohort import draw_cohort, expected_cohort
from engine.worker import in_process as pool_module
from tests.support.tiny import SIZES, assignment, dataset, drive, experiment, open_driver

# --- cohorts and blocks -------------------------------------------------------------------------------


def test_cohorts_are_keyed_by_round_and_drawn_without_replacement() -> None:
    """Kills: the same cohort each round, a client twice, a draw that depends on earlier ones."""
    clients = list(range(3, 40))
    cohorts = [draw_cohort(0, number, clients, Participation(count=10)) for number in range(1, 200)]
    assert all(len(set(cohort)) == 10 and set(cohort) <= set(clients) for cohort in cohorts)
    assert all(list(cohort) == sorted(cohort) for cohort in cohorts)
    assert cohorts[7] == draw_cohort(0, 8, clients, Participation(count=10))
    assert len(set(cohorts)) > 190
    counts = Counter(client for cohort in cohorts for client in cohort)
    assert min(counts.values()) > 25  # each is drawn 54 times on average
    assert cohorts[0] != draw_cohort(1, 1, clients, Participation(count=10))


def test_binomial_cohorts_vary_and_may_be_empty() -> None:
    """Kills: a binomial scheme of fixed size; the observed size in place of the expected one."""
    scheme = Participation(fraction=0.1, scheme="binomial")
    sizes = [len(draw_cohort(0, number, list(range(20)), scheme)) for number in range(400)]
    assert min(sizes) == 0
    assert 1.7 < np.mean(sizes) < 2.3
    assert expected_cohort(20, scheme) == 2.0


@pytest.mark.parametrize(
    ("clients", "participation", "expected"),
    [
        (100, {"fraction": 0.1}, 10),
        (100, {"fraction": 0.29}, 29),
        (39, {"fraction": 0.1}, 3),
        (5, {"fraction": 0.1}, 1),
        (7, {}, 7),
        (7, {"count": 2}, 2),
    ],
)
def test_cohort_size(clients: int, participation: dict[str, Any], expected: int) -> None:
    """Kills: rounding up, a float that falls just short, an empty cohort from a small fraction."""
    assert expected_cohort(clients, Participation(**participation)) == expected


def test_an_empty_cohort_changes_nothing_and_counts(tmp_path: Path) -> None:
    """Kills: aggregate of nothing, a round that is not counted."""
    settings = experiment(participation={"fraction": 0.01, "scheme": "binomial"}, rounds=3)
    run = drive(tmp_path, settings)
    assert run.summary["rounds"] == 3
    assert run.folder.frame("rounds")["clients"].tolist() == [0, 0, 0]
    assert torch.equal(run.server["weights"], run.driver.federation.fresh["weights"])
    assert run.folder.frame("rounds")["loss_before"].isna().all()


# --- stages -------------------------------------------------------------------------------------------

TWO = [
    {"name": "warm-up", "rounds": 2},
    {"name": "main", "rounds": 2, "needs": ["warm-up"], "algorithm": {"name": "fedprox", "mu": 0.0}},
]


def test_two_stages_go_on_counting(tmp_path: Path) -> None:
    """Kills: a second stage that starts at round 1, from fresh weights, or with lr decay set back.

    FedAvg for 2 rounds, then FedProx(mu=0) for 2, is FedAvg for 4 to the bit.
    """
    part = {"participation": {"count": 4}, "local": {"lr_decay": 0.8}}
    staged = drive(tmp_path / "staged", experiment(stages=TWO, **part))
    straight = drive(tmp_path / "straight", experiment(rounds=4, **part))
    assert staged.sha == straight.sha
    rounds = staged.folder.frame("rounds")
    assert rounds["round"].tolist() == [1, 2, 3, 4]
    assert rounds["stage"].tolist() == ["warm-up", "warm-up", "main", "main"]
    assert rounds["lr"].tolist() == pytest.approx([0.1 * 0.8**k for k in range(4)])


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_stages_resume(tmp_path: Path, stop: int) -> None:
    """Kills: a resume at a stage's end that runs it again, or loses the parent's weights."""
    stages = [*TWO, {"name": "branch", "rounds": 1, "needs": ["warm-up"], "algorithm": {"name": "scaffold"}}]
    settings = experiment(stages=stages, checkpoint={"every": 1, "keep": 1})
    straight = drive(tmp_path / "straight", settings)
    assert straight.folder.frame("rounds")["round"].tolist() == [1, 2, 3, 4, 3]
    driver = open_driver(tmp_path / "stopped", settings)
    for _ in range(stop):
        driver.advance()
    driver.close()
    resumed = drive(tmp_path / "stopped", settings)
    assert resumed.sha == straight.sha
    assert resumed.folder.frame("rounds")["round"].tolist() == [1, 2, 3, 4, 3]


def test_fedprox_after_fedavg_is_neither(tmp_path: Path) -> None:
    """Kills: a second stage that runs the first one's algorithm."""
    with_mu = [TWO[0], {**TWO[1], "algorithm": {"name": "fedprox", "mu": 1.0}}]
    shas = {
        drive(tmp_path / "a", experiment(stages=with_mu)).sha,
        drive(tmp_path / "b", experiment(rounds=4)).sha,
        drive(tmp_path / "c", experiment(rounds=4, algorithm={"name": "fedprox", "mu": 1.0})).sha,
    }
    assert len(shas) == 3


# --- rows ---------------------------------------------------------------------------------------------


def test_cadences_and_rows(tmp_path: Path) -> None:
    """Kills: an evaluation too many or too few, the last round left out, a column that is never filled."""
    settings = experiment(
        rounds=5, participation={"count": 3}, evaluation={"every": 2, "local_every": 3}, checkpoint={"every": 2}
    )
    run = drive(tmp_path, settings)
    evaluations, rounds, clients = (run.folder.frame(name) for name in ("evaluations", "rounds", "clients"))
    assert evaluations["round"].tolist() == [2, 4, 5]
    assert rounds["round"].tolist() == [1, 2, 3, 4, 5]
    assert len(clients) == 15
    assert clients.groupby("round")["local_accuracy"].count().tolist() == [0, 0, 3, 0, 0]
    assert rounds["local_accuracy"].notna().tolist() == [False, False, True, False, False]
    mean = np.average(clients["loss_before"][:3], weights=clients["samples"][:3])
    assert rounds["loss_before"][0] == pytest.approx(mean)
    assert rounds["samples"].tolist() == clients.groupby("round")["samples"].sum().tolist()
    assert (rounds["update_norm"] > 0).all()
    for row in evaluations.itertuples():
        weighted = np.average(np.asarray(row.class_accuracy), weights=np.asarray(row.class_samples))
        assert weighted == pytest.approx(row.accuracy)
        assert sum(row.class_samples) == row.samples == 40
    for name, schema in SCHEMAS.items():
        assert run.folder.frame(name).columns.tolist() == schema.names


def test_local_accuracy_is_that_of_the_client_before_aggregation(tmp_path: Path) -> None:
    """Kills: measuring the global model: with one client both are the same, with two they are not."""
    one = Assignment((np.arange(120),))
    settings = experiment(rounds=1, evaluation={"local_every": 1})
    alone = drive(tmp_path / "one", settings, parts=one)
    assert alone.folder.frame("clients")["local_accuracy"][0] == alone.summary["accuracy"]
    labels = dataset().train.labels
    split = Assignment((np.flatnonzero(labels < 2), np.flatnonzero(labels >= 2)))
    apart = drive(tmp_path / "two", settings, parts=split)
    assert (apart.folder.frame("clients")["local_accuracy"] <= 0.55).all()  # each knows two of four classes


@pytest.mark.parametrize(("every", "measured"), [(2, [2, 4, 6, 8, 10, 12]), (3, [3, 6, 9, 12])])
def test_local_models_of_the_last_ten_rounds(tmp_path: Path, every: int, measured: list[int]) -> None:
    """Kills: rounds that did not measure, or before the last ten; a branch's; nothing where no round trains at the end.

    Rounds 1 to 12 and a calibration after them: the last ten are 3 to 12.
    """
    stages = [
        {"name": "first", "rounds": 5},
        {"name": "aside", "rounds": 4, "needs": ["first"]},
        {"name": "main", "rounds": 7, "needs": ["first"]},
        {"name": "end", "rounds": 0, "needs": ["main"], "algorithm": {"name": "ccvr"}},
    ]
    run = drive(tmp_path, experiment(stages=stages, participation={"count": 2}, evaluation={"local_every": every}))
    rounds = run.folder.frame("rounds").query("stage != 'aside'").dropna(subset=["local_accuracy"])
    assert rounds["round"].tolist() == measured
    assert run.summary["local_last10_accuracy"] == pytest.approx(rounds.query("round >= 3")["local_accuracy"].mean())
    assert run.summary["last10_std"] is None  # of the calibrated model alone


def test_summary_has_what_is_promised(tmp_path: Path) -> None:
    """Kills: a figure that is not derived from the tables."""
    run = drive(tmp_path, experiment(rounds=12))
    summary = json.loads((tmp_path / "summary.json").read_text())
    evaluations, rounds = run.folder.frame("evaluations"), run.folder.frame("rounds")
    assert summary["accuracy"] == evaluations["accuracy"].iloc[-1]
    assert summary["best_accuracy"] == evaluations["accuracy"].max()
    assert summary["last10_accuracy"] == pytest.approx(evaluations["accuracy"].tail(10).mean())
    assert summary["last10_std"] == pytest.approx(evaluations["accuracy"].tail(10).std(ddof=1))
    assert summary["local_last10_accuracy"] is None
    assert summary["rounds"] == 12
    assert summary["floats_up"] == rounds["floats_up"].sum() == 12 * 8 * run.driver.layout.size
    assert summary["floats_down"] == summary["floats_up"]
    assert summary["seconds_per_round"] == rounds["seconds"].median()
    assert summary["status"] == "finished"
    assert len(summary["weights_sha256"]) == 64
    assert {"fedskew", "torch", "numpy", "device", "hardware"} <= set(summary["versions"])


def test_weights_sha256_is_of_weights_and_buffers() -> None:
    """Kills: a hash that leaves out BatchNorm or depends on the precision it is held in."""
    weights, buffers = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    first = weights_sha256(weights, buffers)
    assert first == weights_sha256(weights.double(), buffers.double())
    assert first != weights_sha256(weights, buffers + 1)
    # struct.pack("<3f", 1, 2, 3) through sha256
    assert first == "8e628779e6a74ee0b36991c10158f63cafec7d340ad4e075592502c8708524dd"


def test_driver_memory_does_not_hold_rows(tmp_path: Path) -> None:
    """Kills: rows that pile up in the driver: after a checkpoint none are pending."""
    driver = open_driver(tmp_path, experiment(rounds=6, checkpoint={"every": 2}))
    for number in range(1, 7):
        driver.advance()
        pending = [len(table._pending) for table in driver.folder.tables]
        assert (not any(pending)) == (number % 2 == 0)


def test_long_rounds_are_saved_before_their_number_is_due(tmp_path: Path) -> None:
    """Kills: ten rounds of a minute that a kill takes back; a checkpoint by the clock that nobody asked for, or that
    pushes out one that was due."""
    driver = open_driver(tmp_path, experiment(rounds=11, checkpoint={"every": 4, "keep": 2, "seconds": 1e-9}))
    found = []
    for round in range(1, 11):
        driver.advance(until=round)
        found.append([int(path.stem[-6:]) for path in checkpoints(tmp_path)])
    assert found[:5] == [[1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert found[5:] == [[4, 6], [4, 7], [4, 8], [8, 9], [8, 10]]
    driver.close()
    slow = open_driver(tmp_path / "slow", experiment(rounds=6, checkpoint={"every": 4, "seconds": None}))
    slow.advance(60.0, until=5)
    assert checkpoints(tmp_path / "slow")[-1].name == "00-train-000004.safetensors"
    slow.close()


# --- checkpoints --------------------------------------------------------------------------------------


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str, messages: Messages) -> None:
    """Kills: a resume from half a file, or one that goes back without a word."""
    settings = experiment(rounds=6, algorithm={"name": "scaffold"}, checkpoint={"every": 2})
    straight = drive(tmp_path / "straight", settings)
    driver = open_driver(tmp_path / "run", settings)
    for _ in range(4):
        driver.advance()
    driver.close()
    assert [path.name for path in checkpoints(tmp_path / "run")] == [
        "00-train-000002.safetensors",
        "00-train-000004.safetensors",
    ]
    newest = checkpoints(tmp_path / "run")[-1]
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        newest.write_bytes(content[:-100])
    elif damage == "flip":
        content[len(content) // 2] ^= 1  # of a weight, which safetensors alone would not notice
        newest.write_bytes(content)
    else:
        newest.write_bytes(b"")
    resumed = open_driver(tmp_path / "run", settings)
    assert resumed.round == 2
    assert any("000004.safetensors" in text and "falling back" in text for text in messages.drain())
    assert resumed.folder.frame("rounds")["round"].tolist() == [1, 2]
    while not resumed.finished:
        resumed.advance()
    assert resumed.close()["weights_sha256"] == straight.sha


def test_without_a_whole_checkpoint_the_run_starts_again(tmp_path: Path, messages: Messages) -> None:
    """Kills: a run that cannot go on because its only checkpoint is damaged."""
    settings = experiment(rounds=2, checkpoint={"every": 1, "keep": 1})
    straight = drive(tmp_path, settings)
    for path in checkpoints(tmp_path):
        path.write_bytes(b"no")
    assert drive(tmp_path, settings).sha == straight.sha
    assert "falling back" in messages.drain()[0]


def test_a_missing_state_file_falls_back(tmp_path: Path, messages: Messages) -> None:
    """Kills: weights of one round with client states of none."""
    settings = experiment(rounds=4, algorithm={"name": "scaffold"}, checkpoint={"every": 1, "keep": 3})
    straight = drive(tmp_path, settings)
    newest, before = checkpoints(tmp_path)[-1], checkpoints(tmp_path)[-2]
    store = Checkpoints(tmp_path / "checkpoints", settings.digest, 3, ("train",))
    only_newest = set(store.load(newest).states.values()) - set(store.load(before).states.values())
    (tmp_path / "checkpoints" / "states" / f"{only_newest.pop()}.safetensors").unlink()
    assert drive(tmp_path, settings).sha == straight.sha
    assert "misses a client state" in messages.drain()[0]


def test_a_checkpoint_of_another_experiment_is_not_used(tmp_path: Path) -> None:
    """Kills: a checkpoint that is taken for what its name says."""
    drive(tmp_path, experiment())
    other = Checkpoints(tmp_path / "checkpoints", "0" * 12, 2, ("train",))
    with pytest.raises(RunFolderError, match="belongs to another experiment"):
        other.load(other.path(Position(0, 3)))


def test_old_checkpoints_and_states_are_deleted(tmp_path: Path) -> None:
    """Kills: a disk that fills up; deleting what a kept checkpoint needs."""
    settings = experiment(rounds=6, algorithm={"name": "scaffold"}, checkpoint={"every": 1, "keep": 2})
    drive(tmp_path, settings)
    store = Checkpoints(tmp_path / "checkpoints", settings.digest, 2, ("train",))
    kept = [store.load(path) for path in checkpoints(tmp_path)]
    assert [checkpoint.position.round for checkpoint in kept] == [5, 6]
    needed = {digest for checkpoint in kept for digest in checkpoint.states.values()}
    assert {path.stem for path in (tmp_path / "checkpoints" / "states").iterdir()} == needed


def test_an_interrupted_commit_is_never_saved(tmp_path: Path) -> None:
    """Kills: a checkpoint that mixes the states of one round with the weights of another."""
    settings = experiment(rounds=3, algorithm={"name": "scaffold"}, checkpoint={"every": 1})
    straight = drive(tmp_path / "straight", settings)
    driver = open_driver(tmp_path / "run", settings)
    driver.advance()
    original = driver.lineage.states.store.commit

    def half(states: Any) -> None:
        original(dict(list(states.items())[:2]))
        raise KeyboardInterrupt

    driver.lineage.states.store.commit = half  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        driver.advance()
    driver.close()
    assert drive(tmp_path / "run", settings).sha == straight.sha


# --- states -------------------------------------------------------------------------------------------


def state(value: float, size: int = 4) -> Tensors:
    return {"control": torch.full((size,), float(value))}


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_store_gives_back_what_was_committed(tmp_path: Path, kind: str) -> None:
    """Kills: a store that mixes up clients, forgets, or gives a client without history somebody's state."""

    def open_store() -> MemoryStore | DiskStore:
        fetch = lambda handle: handle  # noqa: E731
        return MemoryStore(tmp_path, fetch) if kind == "memory" else DiskStore(tmp_path, fetch, cache_mb=0)

    store = open_store()
    store.commit({1: state(1), 2: state(2)})
    first = store.save()
    store.commit({2: state(3)})
    assert [None if s is None else s["control"][0] for s in store.read([2, 1, 0])] == [3, 1, None]
    second = store.save()
    assert first[1] == second[1]
    assert first[2] != second[2]
    for files, value in ((first, 2), (second, 3)):
        again = open_store()
        again.restore(files)
        assert again.read([2])[0]["control"][0] == value  # type: ignore[index]
    store.prune(first.values())
    assert {path.stem for path in tmp_path.iterdir()} == {*first.values(), *second.values()}
    store.prune([])
    assert {path.stem for path in tmp_path.iterdir()} == set(second.values())


def test_the_disk_store_keeps_a_bounded_cache(tmp_path: Path) -> None:
    """Kills: a cache that grows with the clients."""
    store = DiskStore(tmp_path, lambda handle: handle, cache_mb=1)
    for client in range(8):
        store.commit({client: state(client, 2**16)})  # a quarter of a megabyte each
    assert sum(array.nbytes for cached in store._cache.values() for array in cached.values()) <= 2**20
    assert store.read([0])[0]["control"][0] == 0  # type: ignore[index]


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    """Kills: a state file whose content is not what its name says."""
    store = DiskStore(tmp_path, lambda handle: handle, cache_mb=0)
    store.commit({1: state(1), 2: state(2)})
    path = tmp_path / f"{store.files[1]}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="is damaged"):
        store.read([1])


# --- what algorithms may ask of the driver --------------------------------------------------------------


def mean_image(view: Any, shared: Tensors) -> Tensors:
    rows = list(view.rows())
    return {
        "image": torch.cat([batch.x for batch in rows]).sum(0, keepdim=True),
        "count": torch.tensor([view.client.num_examples]),
    }


def double(bench: Any, shared: Tensors) -> Tensors:
    noise = torch.rand(1, generator=bench.rng("noise"))
    return {"weights": shared["weights"] * 2, "noise": noise}


@dataclass(frozen=True)
class Asks(FedAvg):
    """Uses prepare, before_round, address and finish."""

    entries: ClassVar = {
        **Algorithm.entries,
        "image": Kind.IMAGES,
        "count": Kind.IMAGES,
        "images": Kind.IMAGES,
        "noise": Kind.MOMENTS,
        "mine": Kind.SCALAR,
    }

    def prepare(self, server: Tensors, clients: Any, context: Any) -> Tensors:
        stacked = clients.map(mean_image, server, reduce="stack")
        total = clients.map(mean_image, server, reduce="sum")
        return {**server, "images": stacked["image"], "image": total["image"], "count": stacked["count"]}

    def before_round(self, server: Tensors, compute: Any, context: Any) -> Tensors:
        return {**server, "noise": compute(double, server)["noise"]}

    def broadcast_to(self, server: Tensors, cohort: Any, context: Any) -> Tensors:
        return {"mine": torch.tensor([float(number) for number in cohort.num_examples])}

    def loss(self, net: Any, batch: Any, received: Tensors, state: Tensors) -> Any:
        assert float(received["mine"]) == batch.client.num_examples
        return super().loss(net, batch, received, state)

    def finish(self, server: Tensors, clients: Any, compute: Any, context: Any) -> Tensors:
        return {**server, "weights": compute(double, server)["weights"]}


def test_map_compute_address_prepare_and_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: rows given to the wrong client, a map out of order, a compute that is not keyed, a finish unused."""
    monkeypatch.setitem(ALGORITHMS, "asks", Asks)
    settings = experiment(algorithm={"name": "asks"}, rounds=2, execution={"actors": 0, "device": "cpu", "block": 3})
    run = drive(tmp_path / "a", settings)
    data, parts = dataset(), assignment(SIZES)
    images = (data.train.images / 255.0 - 0.5) / 0.25
    for client, rows in enumerate(parts.clients):
        np.testing.assert_allclose(run.server["images"][client].numpy(), images[rows].sum(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(run.server["image"][0].numpy(), images.sum(0), rtol=1e-3, atol=1e-3)
    assert run.server["count"].tolist() == SIZES
    plain = drive(tmp_path / "b", experiment(rounds=2, execution=settings.execution))
    assert torch.equal(run.server["weights"], plain.server["weights"] * 2)
    assert run.folder.frame("clients")["floats_down"][0] == run.driver.layout.size + 1


@dataclass(frozen=True)
class Stacks(FedAvg):
    stack_uploads: ClassVar = True

    def aggregate(self, server: Tensors, pooled: Any, context: Any) -> Tensors:
        assert pooled.stacked is not None
        assert pooled.stacked["weights"].shape == (len(pooled.ids), context.layout.size)
        return {**server, "weights": pooled.stacked["weights"].double().median(0).values}


def test_single_uploads_come_stacked_in_client_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: stacked uploads in completion order, or of the mean."""
    monkeypatch.setitem(ALGORITHMS, "stacks", Stacks)
    runs = [
        drive(
            tmp_path / str(block),
            experiment(algorithm={"name": "stacks"}, execution={"actors": 0, "device": "cpu", "block": block}),
        )
        for block in (1, 4)
    ]
    assert runs[0].sha == runs[1].sha
    assert runs[0].sha != drive(tmp_path / "mean", experiment()).sha


def test_tables_are_readable_at_any_moment(tmp_path: Path) -> None:
    """Kills: a parquet file that is only whole when the run is closed."""
    driver = open_driver(tmp_path, experiment(rounds=4, checkpoint={"every": 1}))
    for number in range(1, 4):
        driver.advance()
        assert len(pd.read_parquet(tmp_path / "rounds.parquet")) == number
        assert len(RunFolder(tmp_path).frame("clients")) == number * 8


@dataclass(frozen=True)
class Heir(FedAvg):
    """Counts its participations, over stages too."""

    entries: ClassVar = {**Algorithm.entries, "visits": Kind.SCALAR, "old": Kind.SCALAR}

    def init_server(self, parent: Tensors, context: Any) -> Tensors:
        return {"weights": parent["weights"], "old": parent.get("old", torch.zeros(())) + 1}

    def init_state(self, received: Tensors, parent: Tensors, client: Any) -> Tensors:
        return {"visits": parent.get("visits", torch.zeros(())) + 100}

    def upload(self, run: Any, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, {"visits": state["visits"] + 1}


@pytest.mark.parametrize("stop", [None, 2, 3])
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_stage_is_offered_what_the_one_before_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int | None, store: str
) -> None:
    """Kills: entries and states that end at a stage's border, or that are inherited twice after a resume."""
    monkeypatch.setitem(ALGORITHMS, "heir", Heir)
    stages = [{"name": "one", "rounds": 2}, {"name": "two", "rounds": 2, "needs": ["one"]}]
    execution = {"actors": 0, "device": "cpu", "state_store": store}
    settings = experiment(algorithm={"name": "heir"}, stages=stages, execution=execution, checkpoint={"every": 1})
    if stop is not None:
        driver = open_driver(tmp_path, settings)
        for _ in range(stop):
            driver.advance()
        driver.close()
    run = drive(tmp_path, settings)
    assert run.server["old"] == 2
    visits = [float(state["visits"]) for state in run.driver.lineage.states.store.read(range(8))]  # type: ignore[index]
    assert visits == [204.0] * 8  # twice made from what there was, four rounds


def test_parquet_grows_in_parts_and_folds_into_bounded_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a table written anew at every flush, so that rounds become slower, or read whole, so that memory grows;
    rows lost at a border, or twice there after a fold that was killed."""
    import pyarrow.parquet as pq

    from engine.record import tables as results

    monkeypatch.setattr(results, "GROUP_ROWS", 10)
    monkeypatch.setattr(results, "PART_ROWS", 4)
    table = results.Table(tmp_path / "rounds.parquet", SCHEMAS["rounds"])
    written: list[int] = []
    for number in range(1, 48):
        table.add({"stage": "train", "round": number})
        if number % 3 == 0:
            before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
            table.flush()
            changed = [path for path in tmp_path.rglob("*.parquet") if path.stat().st_mtime_ns != before.get(path)]
            written += [len(pd.read_parquet(path)) for path in changed]
            assert table.frame()["round"].tolist() == list(range(1, number + 1))
    table.flush()
    assert len(written) == 15 and max(written) <= 12 and max(written[5:]) <= 6
    parts = sorted((tmp_path / "rows").iterdir())
    assert [path.name for path in parts[:2]] == ["rounds.000000000012.parquet", "rounds.000000000018.parquet"]
    assert table.frame()["round"].tolist() == list(range(1, 48))
    kept = {path: path.read_bytes() for path in parts}
    table.fold()
    assert not (tmp_path / "rows").exists()
    (tmp_path / "rows").mkdir()
    for path, content in kept.items():  # as if the fold had been killed before it removed them
        path.write_bytes(content)
    assert table.frame()["round"].tolist() == list(range(1, 48))
    table.add({"stage": "train", "round": 48})
    table.flush()
    table.truncate({"train": 47})
    with pq.ParquetFile(tmp_path / "rounds.parquet") as file:
        groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sum(groups) == 47
    assert max(groups) <= 10
    assert len(groups) <= 6
    assert pd.read_parquet(tmp_path / "rounds.parquet")["round"].tolist() == list(range(1, 48))


# --- what was found by reading ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stumbles(FedAvg):
    """Fails where it is told to."""

    where: str = ""

    def prepare(self, server: Tensors, clients: Any, context: Any) -> Tensors:
        return self._stumble("prepare", server)

    def finish(self, server: Tensors, clients: Any, compute: Any, context: Any) -> Tensors:
        return self._stumble("finish", server)

    def _stumble(self, where: str, server: Tensors) -> Tensors:
        if where == self.where:
            raise RunError(f"stumbled in {where}")
        return server


@pytest.mark.parametrize("where", ["prepare", "finish"])
def test_an_error_at_a_stages_border_leaves_nothing_false(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Kills: a checkpoint of a stage that never began, a run called finished whose last step failed."""
    monkeypatch.setitem(ALGORITHMS, "stumbles", Stumbles)
    stages = [
        {"name": "one", "rounds": 2},
        {"name": "two", "rounds": 2, "needs": ["one"], "algorithm": {"name": "stumbles", "where": where}},
    ]
    settings = experiment(stages=stages)
    driver = open_driver(tmp_path, settings)
    with pytest.raises(RunError, match="stumbled"):
        while not driver.finished:
            driver.advance()
    with pytest.raises(RunError, match="interrupted half-way"):
        driver.advance()
    driver.close()
    assert RunFolder(tmp_path).summary().get("status") != "finished"
    with monkeypatch.context() as patch:  # the cause is repaired
        patch.setattr(Stumbles, "_stumble", lambda self, where, server: server)
        resumed = drive(tmp_path, settings)
    plain = drive(tmp_path / "plain", experiment(rounds=4))
    assert resumed.sha == plain.sha
    assert resumed.folder.frame("rounds")["round"].tolist() == [1, 2, 3, 4]


def test_a_damaged_client_state_falls_back_and_is_written_again(tmp_path: Path, messages: Messages) -> None:
    """Kills: a state file that exists and is trusted for it, in a checkpoint and when it is computed again."""
    settings = experiment(rounds=4, algorithm={"name": "scaffold"}, checkpoint={"every": 1, "keep": 3})
    straight = drive(tmp_path, settings)
    newest, before = checkpoints(tmp_path)[-1], checkpoints(tmp_path)[-2]
    store = Checkpoints(tmp_path / "checkpoints", settings.digest, 3, ("train",))
    digest = (set(store.load(newest).states.values()) - set(store.load(before).states.values())).pop()
    path = tmp_path / "checkpoints" / "states" / f"{digest}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert drive(tmp_path, settings).sha == straight.sha
    assert "names a client state that is damaged" in messages.drain()[0]
    assert newest.with_name(newest.name + ".damaged").exists()
    assert drive(tmp_path, settings).sha == straight.sha
    assert messages.drain() == []


def test_a_damaged_parent_falls_back(tmp_path: Path, messages: Messages) -> None:
    """Kills: a second stage that cannot be resumed since the first one's last checkpoint is damaged."""
    settings = experiment(stages=TWO, algorithm={"name": "scaffold"}, checkpoint={"every": 1, "keep": 1})
    straight = drive(tmp_path, settings)
    parent = tmp_path / "checkpoints" / "00-warm-up-000002.safetensors"
    parent.write_bytes(parent.read_bytes()[:-5])
    assert drive(tmp_path, settings).sha == straight.sha
    assert "falling back" in messages.drain()[0]


def test_a_change_of_numerics_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    """Kills: a resume under another torch that still promises the same bits."""
    settings = experiment(rounds=2)
    driver = open_driver(tmp_path, settings)
    driver.advance()
    driver.close()
    monkeypatch.setattr(pool_module, "numerics", lambda *asked: {**numerics(*asked), "torch": "9.9"})
    with pytest.raises(ResourceError, match=r"began with torch .* and would go on with 9.9.*mixed_hardware=true"):
        open_driver(tmp_path, settings)
    open_driver(tmp_path, settings.replace({"execution.mixed_hardware": True}))
    assert any("began with torch" in text and "goes on with 9.9" in text for text in messages.drain())


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Kills: a table whose columns are fewer than today's, on which a resume ends with a traceback."""
    import pyarrow.parquet as pq

    settings = experiment(rounds=4, checkpoint={"every": 1})
    driver = open_driver(tmp_path, settings)
    driver.advance(seconds=60, until=2)
    driver.close()
    path = tmp_path / "rounds.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["scalars"]), path)
    rounds = drive(tmp_path, settings).folder.frame("rounds")
    assert rounds["round"].tolist() == [1, 2, 3, 4]
    assert rounds["scalars"].notna().tolist() == [False, False, True, True]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Kills: two processes that write one run's rows twice."""
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(RunFolderError, match="is being written by another process"), folder.locked():
        pass
    with folder.locked():
        pass


def test_the_summary_of_stages_is_that_of_the_last(tmp_path: Path) -> None:
    """Kills: a summary of the sections above the stages, or one that mixes branches."""
    stages = [*TWO, {"name": "branch", "rounds": 1, "needs": ["warm-up"], "algorithm": {"name": "scaffold"}}]
    run = drive(tmp_path, experiment(stages=stages))
    assert run.summary["algorithm"]["name"] == "scaffold"
    assert run.summary["rounds"] == 3
    evaluations = run.folder.frame("evaluations")
    own = evaluations[evaluations["stage"].isin(["warm-up", "branch"])]
    assert run.summary["best_accuracy"] == own["accuracy"].max()
    assert run.driver.rounds_done == 5
    assert run.summary["floats_up"] == run.folder.frame("rounds")["floats_up"].sum()


def test_a_start_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """Kills: a folder that is refused for what a kill left of a file on its way to its place."""
    settings = experiment(rounds=1)
    (tmp_path / ".experiment.yaml.123.tmp").write_text("half")
    (tmp_path / ".before-k3x9_q2z").mkdir()
    RunFolder.for_experiment(settings, tmp_path)
    (tmp_path / "mine.txt").write_text("a user's file")
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        RunFolder.for_experiment(settings, tmp_path)


def test_a_start_killed_half_way_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an experiment that is there before what a resume of it reads."""
    settings = experiment(rounds=1, data={"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50})
    prepared = prepare(settings, tmp_path, False)
    monkeypatch.setattr(Assignment, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepared.write()
    monkeypatch.undo()
    assert not prepared.folder.has_experiment()
    prepare(settings, tmp_path, False).write()
    assert prepare(settings, tmp_path, False).folder.has_experiment()
