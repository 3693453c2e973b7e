"""Ray: the same bits on any number of actors, after deaths and resumes; GPU shares; deadlines. One shared session."""

from __future__ import annotations

import logging
import os
import pickle
import re
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from algorithms import ALGORITHMS
from engine.algorithm import PostTraining
from engine.base.errors import ConfigError, ResourceError, RunError
from engine.client.messages import TrainResult
from engine.client.sums import WeightedSum
from engine.experiment import Experiment
from engine.models import MODELS
from engine.record.run_folder import RunFolder
from engine.run.local_driver import LocalDriver
from engine.run.log import Messages
from engine.run.preparing import prepare
from engine.run.run import Run, run
from tests.support.outcomes import SHORT
from tests.support.tiny import SUITED, TinyNorm
from tests.support.waiting import settle

pytestmark = pytest.mark.usefixtures("ray_session", "small_model")


@pytest.fixture(scope="module")
def small_model() -> Iterator[None]:
    """A network with BatchNorm, of the tests' own, which travels to actors with its experiment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "tiny_norm", TinyNorm)
        yield


def cell(actors: int = 0, algorithm: str = "fedavg", **execution: Any) -> Experiment:
    """A network with BatchNorm on the embedded images, a few seconds of work."""
    return Experiment(
        rounds=4,
        data={"name": "fashion_mnist_sample", "train_samples": 300, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.1},
        model={"name": "tiny_norm"},
        algorithm={"name": algorithm},
        local={"batch_size": 32, "lr": 0.05},
        participation={"count": 5},
        checkpoint={"every": 1},
        execution={"actors": actors, "device": "cpu", "start_timeout": 120, **execution},
    )


def begin_and_kill(under_way: Run, victim: int) -> Any:
    """Start a round and kill an actor that has blocks to compute: stopped first, so that it cannot have begun them."""
    os.kill(victim, signal.SIGSTOP)
    pending = under_way.driver.begin(0.0)  # type: ignore[attr-defined]
    os.kill(victim, signal.SIGKILL)
    return pending


def assert_all_free() -> None:
    """No actor holds a CPU any more; Ray counts them a moment after they are gone."""
    import ray

    assert settle(lambda: ray.available_resources().get("CPU") == 8)


# Of each way of using the engine one: state of clients, scalars, frozen models, exchanges, clients' own models, work at
# the end. Each is a stage of one run: two rounds, or none.
DISTURBED = ("scaffold", "fednova", "moon", "fedmix", "pflego", "fedavg", "ccvr", "iid_calibration")
# The run is stopped before these rounds, in the middle of a stage whose clients have states, and goes on with so many
# actors; test_who_takes_part_... has a stop between two others.
REOPENED = {5: 1}
KILLED = (2, 6)
# Fields that keep a stage short.
QUICK: dict[str, dict[str, Any]] = {**SUITED, **SHORT}
DISTILLING = [name for name, cls in ALGORITHMS.items() if issubclass(cls, PostTraining) and cls.mixed_models]


def chain(actors: int) -> Experiment:
    """A stage for each of ``DISTURBED``, all checkpoints kept; those without rounds go on from the last with some."""
    stages: list[dict[str, Any]] = []
    needs: list[str] = []
    for name in DISTURBED:
        rounds = 0 if issubclass(ALGORITHMS[name], PostTraining) else 2
        stages.append(
            {"name": name, "rounds": rounds, "needs": needs, "algorithm": {"name": name, **QUICK.get(name, {})}}
        )
        needs = [name] if rounds else needs
    values = {**cell(actors).to_mapping(), "stages": stages, "checkpoint": {"every": 1, "keep": 100}}
    return Experiment.from_mapping({**values, "model": {"name": "tiny_norm", "projection": True}})


def checkpoints(folder: Path) -> dict[str, dict[str, Any]]:
    """What the server had and the digests of what clients kept, after each round and at the end of each stage."""
    paths = sorted((folder / "checkpoints").glob("*.safetensors"))
    return {path.name: {key: value.tolist() for key, value in load_file(path).items()} for path in paths}


def disturbed(folder: Path) -> dict[str, Any]:
    """The summary of a run on two actors, of which one is killed in the rounds ``KILLED``, stopped and gone on with as
    ``REOPENED`` says."""
    under_way = Run.open(chain(2), folder)
    for number in range(1, under_way.total_rounds + 1):
        if number in REOPENED:
            stopped = under_way.close()
            assert (stopped["status"], stopped["rounds"]) == ("stopped", number - 1)
            under_way = Run.open(chain(REOPENED[number]), folder)
        if number not in KILLED:
            under_way.advance()
            continue
        *others, victim = under_way.driver.placement()  # type: ignore[attr-defined]
        texts = under_way.driver.end(begin_and_kill(under_way, victim["pid"])).messages  # type: ignore[attr-defined]
        assert any(f"actor {len(others)} died" in text and "will run again" in text for text in texts)
    under_way.advance()  # there is nothing left to do: what follows the last round was done with it
    assert under_way.finished
    return under_way.close()


def test_bits_do_not_depend_on_actors_deaths_and_resumes(tmp_path: Path, messages: Messages) -> None:
    """Kills: sums in completion order, state that lives in an actor, a block lost or added twice after a death, a
    resume that forgets; two actors of which one is killed in the middle of a round, a stop, and a resume on one, whose
    only actor is killed."""
    reference = run(chain(0), tmp_path / "reference")
    summary = disturbed(tmp_path / "disturbed")
    wanted, found = checkpoints(tmp_path / "reference"), checkpoints(tmp_path / "disturbed")
    assert len(wanted) >= reference["rounds"]
    assert found == wanted
    for figure in ("weights_sha256", "states_sha256", "accuracy", "status"):
        assert summary[figure] == reference[figure]


@pytest.mark.long
def test_clients_in_one_pass_have_the_same_bits_on_actors(tmp_path: Path, messages: Messages) -> None:
    """Kills: stacks that depend on where a block runs or on what an actor stacked before; a state that is a view of one
    that was lost; on two actors of which one is killed under its blocks."""

    def stacked(actors: int) -> Experiment:
        return cell(actors, "scaffold", executor="block", block=2).override(["model.name=mlp", "model.hidden=[30]"])

    reference = run(stacked(0), tmp_path / "reference")
    under_way = Run.open(stacked(2), tmp_path / "disturbed")
    pending = begin_and_kill(under_way, under_way.driver.placement()[1]["pid"])  # type: ignore[attr-defined]
    texts = under_way.driver.end(pending).messages  # type: ignore[attr-defined]
    assert any("actor 1 died" in text and "will run again" in text for text in texts)
    while not under_way.finished:
        under_way.advance()
    disturbed = under_way.close()
    assert disturbed["weights_sha256"] == reference["weights_sha256"]
    assert disturbed["states_sha256"] == reference["states_sha256"]


@pytest.mark.long
@pytest.mark.parametrize("head", ["normalised", "linear"])
def test_the_other_algorithms_have_the_same_bits_on_actors(tmp_path: Path, head: str) -> None:
    """Kills: an algorithm with something of its own that differs between processes (each is a stage of one run); a row
    of clients.parquet that is lost or doubled on the way from an actor; ray.init or ray.shutdown under somebody else's
    feet; an actor that outlives its run."""
    import ray

    linear = [name for name, cls in ALGORITHMS.items() if cls.requires.model.get("head") == "linear"]
    others = [name for name in ALGORITHMS if name not in (*DISTURBED, *DISTILLING, *linear)]
    others = linear if head == "linear" else others
    stages = [
        {
            "name": name,
            "rounds": 1,
            "algorithm": {"name": name, **QUICK.get(name, {})},
            "needs": others[number - 1 : number],
        }
        for number, name in enumerate(others)
    ]
    summaries = []
    for actors in (0, 2):
        values = {**cell(actors).to_mapping(), "stages": stages, "model": {"name": "tiny_norm", "head": head}}
        values["participation"] = {"count": 3}
        summaries.append(run(Experiment.from_mapping(values), tmp_path / str(actors)))
    assert summaries[0]["rounds"] == len(others)
    assert summaries[1]["weights_sha256"] == summaries[0]["weights_sha256"]
    frames = [RunFolder(tmp_path / actors).frame("clients").drop(columns=["seconds", "actor"]) for actors in ("0", "2")]
    assert frames[0].equals(frames[1])
    assert ray.is_initialized()
    assert_all_free()


@pytest.mark.long
def test_clients_of_different_architectures_side_by_side(tmp_path: Path, messages: Messages) -> None:
    """Kills: an actor that trains a client in another one's network, first weights or answers that depend on where a
    client ran, teachers that are lost with an actor; every student, of which an actor was killed under its teachers."""
    students = [name for name in DISTILLING if name != "answers"]
    asked = {"name": "answers", "rounds": 0, "needs": ["teachers"], "algorithm": {"name": "answers", "per_class": 5}}
    config = Experiment(
        data={"name": "fashion_mnist_sample", "train_samples": 1500, "test_samples": 100},
        partition={"name": "class_sets", "sets": "IS-1", "per_class": 20, "public_per_class": 5},
        client_models=[{"name": name} for name in ("mlp", "lenet", "cnn3", "resnet8", "resnet20")],
        model={"name": "resnet8"},
        stages=[
            {"name": "teachers", "rounds": 2, "algorithm": {"name": "local"}},
            asked,
            *(
                {"name": name, "rounds": 0, "needs": ["answers"], "algorithm": {"name": name, "epochs": 1}}
                for name in students
            ),
        ],
        checkpoint={"every": 1},
        execution={"actors": 0, "device": "cpu", "start_timeout": 120},
    )
    reference = run(config, tmp_path / "reference")
    under_way = Run.open(config.replace({"execution.actors": 2}), tmp_path / "disturbed")
    under_way.advance()
    pending = begin_and_kill(under_way, under_way.driver.placement()[1]["pid"])  # type: ignore[attr-defined]
    texts = under_way.driver.end(pending).messages  # type: ignore[attr-defined]
    assert any("actor 1 died" in text and "will run again" in text for text in texts)
    while not under_way.finished:
        under_way.advance()
    disturbed = under_way.close()
    assert disturbed["states_sha256"] == reference["states_sha256"]
    hashes = [RunFolder(tmp_path / name).frame("rounds")["weights_sha256"] for name in ("reference", "disturbed")]
    assert len(set(hashes[0][-len(students) :])) == len(students)
    assert hashes[0].equals(hashes[1])


@pytest.fixture(scope="module")
def plain(small_model: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """``cell(0)`` and its summary, once for all that are compared with it."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    return RunFolder(folder), run(cell(0), folder)


def test_who_takes_part_and_when_a_run_ends_is_the_same_on_actors(tmp_path: Path) -> None:
    """Kills: a table of who is there, held-out clients, shares of epochs or a stop rule that the driver actor does not
    know, or forgets where it goes on in the middle; a finished run that is not said to be."""
    there = tmp_path / "there.parquet"
    rows = [(round, client) for round in range(1, 9) for client in range(20) if (round + client) % 3]
    pd.DataFrame(rows, columns=["round", "client"]).to_parquet(there)
    changes = {
        "rounds": 8,
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": "ditto"},
        "local.epochs": 0.5,
        "participation.availability": str(there),
        "participation.held_out": 0.2,
        "stop.patience": 3,
        "stop.min_delta": 0.9,
    }
    wanted = run(cell(0).replace(changes), tmp_path / "plain")
    under_way = Run.open(cell(1).replace(changes), tmp_path / "actors")
    under_way.advance(until=3)
    under_way.close()
    found = run(cell(0).replace(changes), tmp_path / "actors")
    for figure in ("weights_sha256", "states_sha256", "stopped_by", "stopped_after", "status", "held_out_accuracy"):
        assert found[figure] == wanted[figure], figure
    assert (found["stopped_by"], found["stopped_after"], found["status"]) == ("patience", 4, "finished")
    for table in ("clients", "evaluations", "personal"):
        frames = [RunFolder(tmp_path / name).frame(table) for name in ("plain", "actors")]
        kept = [frame.drop(columns=["seconds", "actor"], errors="ignore") for frame in frames]
        pd.testing.assert_frame_equal(kept[0], kept[1])
    assert_all_free()


class Counted:
    """An actor, with the size of what each call batch for it carries itself."""

    def __init__(self, actor: Any, sizes: list[int]) -> None:
        self.actor = actor
        self._sizes = sizes

    @property
    def call(self) -> Any:
        return self

    def remote(self, *args: Any) -> Any:
        _, _, _, calls, *_ = args
        self._sizes.append(len(pickle.dumps(calls)))
        return self.actor.call.remote(*args)


def test_a_round_puts_one_object_into_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a broadcast for each block, client or actor; one that travels again with each call batch."""
    import ray

    from engine.worker.ray.pool import RayPool

    cohort, actors = 18, 2
    puts: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    experiment = cell(actors, block=1).replace(
        {"participation.count": cohort, "evaluation.every": 0, "model.name": "mlp"}
    )
    ready = prepare(experiment.resolve(), tmp_path, False)
    ready.write()
    pools: list[RayPool] = []

    def make_pool() -> RayPool:
        pools.append(RayPool(ready.experiment, put(ready.dataset), ready.assignment))
        return pools[0]

    driver = LocalDriver(ready, make_pool=make_pool)
    slots = [pools[0]._actors[number] for number in range(actors)]
    handles = [slot.handle for slot in slots]
    sizes: list[int] = []
    for slot in slots:
        slot.handle = Counted(slot.handle, sizes)
    try:
        puts.clear()
        for _ in range(3):
            driver.advance(0.0)
        assert len(puts) == 3
        shared, _ = puts[0]
        assert shared["weights"].nbytes > 3e5 and len(sizes) > 3 * actors
        assert max(sizes) < 1000 * cohort
    finally:
        for slot, handle in zip(slots, handles, strict=True):
            slot.handle = handle
        driver.close()


def test_uploads_are_added_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an upload or a sum that the driver receives beside the whole one; other bits where actors add, in blocks
    of any size, also after a death in the middle of it."""
    import ray

    from engine.worker.ray import pool
    from engine.worker.ray.pool import RayPool

    monkeypatch.setattr(pool, "ADDED_APART", 0)
    got: list[Any] = []
    get = ray.get
    monkeypatch.setattr(ray, "get", lambda refs, **options: got.append(value := get(refs, **options)) or value)
    weights = []
    for number, (actors, block) in enumerate([(0, 3), (2, 1), (2, 2)]):
        experiment = cell(actors, "scaffold", block=block, executor="loop").replace({"participation.count": 7})
        ready = prepare(experiment.resolve(), tmp_path / str(number), False)
        ready.write()
        make = partial(RayPool, ready.experiment, ray.put(ready.dataset), ready.assignment)
        driver = LocalDriver(ready, make_pool=make) if actors else LocalDriver(ready)
        try:
            for round in range(2):
                if actors and round == 1:
                    os.kill(driver.driver.federation.pool.placement[1]["pid"], signal.SIGKILL)  # type: ignore[attr-defined]
                got.clear()
                driver.advance(0.0)
            weights.append(driver.driver.lineage.server["weights"])
        finally:
            driver.close()
        if actors:
            sums = [len(value.parts) for value in got if isinstance(value, WeightedSum)]
            replies = [reply[1] for reply in got if isinstance(reply, tuple) and reply[1]]
            blocks = [value for values in replies for value in values if isinstance(value, TrainResult)]
            assert sums == [1] and len(blocks) == -(-7 // block)
            assert not any(value.sum.parts for value in blocks)
    assert all(torch.equal(weights[0], other) for other in weights[1:])


@pytest.mark.long
def test_a_trial_before_and_blocks_that_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a trial that leaves a trace, or is of another process; a bound that stops a round, changes its order or is
    told in each round; rates that nobody measures."""
    from engine.base.devices import device_class
    from engine.worker import preflight
    from engine.worker.ray.cluster import share
    from engine.worker.ray.pool import RayPool

    monkeypatch.setattr(preflight, "SMALL", 0.0)
    prepared = prepare(cell(2, "scaffold").resolve(), tmp_path / "actors", False)
    prepared.write()
    made: list[RayPool] = []

    def make() -> RayPool:
        made.append(RayPool(prepared.experiment, share(prepared.dataset), prepared.assignment))
        made[0]._measurements.limit = 1.0  # bytes
        return made[0]

    with caplog.at_level(logging.INFO, "fedskew"):
        driver = LocalDriver(prepared, make_pool=make)
        while not driver.driver.finished:
            driver.advance(0.0)
        kinds, rate = made[0]._actors.kinds, made[0]._measurements.rates.seconds_per_cost("train", device_class("cpu"))
        summary = driver.close()
    texts = [record.getMessage() for record in caplog.records]
    assert summary["weights_sha256"] == run(cell(0, "scaffold"), tmp_path / "reference")["weights_sha256"]
    [told] = [text for text in texts if "a worker takes" in text]
    assert "and this machine has" in told
    assert sum("blocks wait until there is room" in text for text in texts) == 1
    assert kinds == [device_class("cpu")] * 2
    assert rate is not None and rate > 0


@pytest.mark.long
def test_four_halves_land_two_on_each_card(
    tmp_path: Path, plain: tuple[RunFolder, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: shares that are not given to Ray, or that pile up on one card; bits that depend on them."""
    for place in ("engine.run.preparing", "engine.worker.ray.cluster"):
        monkeypatch.setattr(f"{place}.check_share", lambda execution: None)  # these cards are none, and a CPU computes
    under_way = Run.open(cell(4, gpus_per_actor=0.5, cpus_per_actor=1), tmp_path / "gpus")
    cards = Counter(gpu for where in under_way.driver.placement() for gpu in where["gpus"])  # type: ignore[attr-defined]
    assert sorted(cards.values()) == [2, 2]
    while not under_way.finished:
        under_way.advance()
    assert under_way.close()["weights_sha256"] == plain[1]["weights_sha256"]


def test_a_share_is_snapped_to_a_part_of_a_card(messages: Messages) -> None:
    """Kills: 0.3 taken as it is, which leaves a tenth of each card to nobody."""
    from engine.worker.ray.cluster import check_resources, gpu_share

    assert [gpu_share(share) for share in (0, 0.25, 0.3, 0.5, 0.6, 1)] == [0, 0.25, 0.3333, 0.5, 1, 1]
    check_resources(cell(1, gpus_per_actor=0.3).execution)
    assert messages.drain() == ["execution.gpus_per_actor=0.3 is taken as 1/3, so that 3 actors share a card"]
    check_resources(cell(1, gpus_per_actor=0.5).execution)
    assert messages.drain() == []


def test_a_share_that_spans_cards_is_refused() -> None:
    """Kills: passing 1.5 on to Ray, whose message names no field."""
    with pytest.raises(ConfigError, match=r"execution.gpus_per_actor=1.5: must be at least 0 and at most 1"):
        cell(1, gpus_per_actor=1.5)


def test_actors_that_cannot_start_end_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: waiting for ever for resources that nobody has; a folder left behind by a run that never began."""
    import ray

    from engine.worker.ray.cluster import share
    from engine.worker.ray.pool import RayPool

    ready = prepare(cell(3, cpus_per_actor=4, start_timeout=1).resolve(), tmp_path / "run", False)
    monkeypatch.setattr(ray, "wait", lambda references, **_: ([], references))  # nobody is ever ready
    with pytest.raises(ResourceError, match="the driver actor could not start within 1 s"):
        Run.open(ready.experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ResourceError) as error:
        RayPool(ready.experiment, share(ready.dataset), ready.assignment)
    assert "execution.actors=3: 3 of them could not start within 1 s" in str(error.value)
    assert re.search(r"asked for {'CPU': 4.0} each, available CPU: \d free of 8", str(error.value))
    assert_all_free()


def test_an_error_of_a_client_arrives_as_it_was_raised(tmp_path: Path) -> None:
    """Kills: RayTaskError with a page of remote traceback where a sentence is due."""
    experiment = cell(1).override(["local.lr=1e30", "local.epochs=4"])
    under_way = Run.open(experiment, tmp_path)
    with pytest.raises(RunError, match=r"client \d+ diverged in round \d: its weights are not finite"):
        while not under_way.finished:
            under_way.advance()
    under_way.close()


@pytest.mark.long
def test_a_block_that_fails_too_often_ends_the_run(tmp_path: Path) -> None:
    """Kills: an endless loop of dying actors."""
    under_way = Run.open(cell(1, retries=0), tmp_path)
    victim = under_way.driver.placement()[0]["pid"]  # type: ignore[attr-defined]
    pending = begin_and_kill(under_way, victim)
    with pytest.raises(RunError, match=r"a round twice: clients .* failed 1 times, last because actor 0 died"):
        under_way.driver.end(pending)  # type: ignore[attr-defined]
    under_way.close()
