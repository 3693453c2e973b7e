"""The speed benchmark: the same work for all, fair arithmetic, and a page that says what the file says."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import speed, speed_page
from benchmarks.common import RESULTS, write_orders
from benchmarks.contestants import Engine
from benchmarks.footprint import Footprint
from benchmarks.memory import tree
from benchmarks.peers import launch
from benchmarks.peers.given import Given, images, initial, rows
from benchmarks.plain_loop import Site, cohorts, task_of
from benchmarks.speed import Measured, beside_others, give, in_turns, judged, of_peers
from benchmarks.workloads import WORKLOADS, Inputs, Workload
from engine.data.samples.batches import Rows
from engine.experiment import Experiment

pytestmark = pytest.mark.slow

SMALL = ["data.name=fashion_mnist_sample", "data.train_samples=400", "data.test_samples=20", "participation.count=4"]
RAGGED = [*SMALL, "partition.name=dirichlet", "partition.alpha=0.1", "partition.clients=40"]


def small(name: str = "W2", overrides: list[str] = RAGGED) -> Experiment:
    return WORKLOADS[name].experiment(name, [*overrides, "execution.actors=0"])


# --- the workloads ------------------------------------------------------------------------------------


def test_workloads_are_those_of_the_page() -> None:
    """Kills: another cohort, batch or rate; an evaluation that is timed; a limit of another workload."""
    settings = {name: workload.experiment(name, []).to_mapping() for name, workload in WORKLOADS.items()}
    for values in settings.values():
        assert values["data"]["name"] == "fashion_mnist" and values["evaluation"]["every"] == 0
        local = values["local"]
        assert (local["epochs"], local["batch_size"], local["lr"], local["optimizer"]) == (1, 32, 0.05, "sgd")
    shapes = {
        name: (values["model"]["name"], values["partition"]["clients"], values["participation"]["count"])
        for name, values in settings.items()
    }
    assert shapes == {"W1": ("mlp", 100, 10), "W2": ("logistic", 1000, 50), "W3": ("cnn", 100, 10)}
    assert settings["W3"]["partition"] | {"name": "dirichlet", "alpha": 0.1} == settings["W3"]["partition"]
    assert [workload.limit for workload in WORKLOADS.values()] == [0.5, 1 / 3, 1.0]


def test_cohorts_are_those_that_the_engine_draws(tmp_path: Path) -> None:
    """Kills: cohorts of clients that hold nothing, of another seed, or one round late."""
    experiment = small()
    inputs = Inputs(experiment, tmp_path)
    assert min(map(len, inputs.clients)) == 0  # or the second mutation would go unseen
    engine = Engine(experiment, tmp_path / "run")
    assert engine.turn(range(1, 4)) > 0
    assert engine.turn(range(4, 6)) > 0
    with pytest.raises(AssertionError, match="has done 5 rounds, not 3"):
        engine.turn(range(4, 6))
    engine._run.driver.close()
    drawn = cohorts(tmp_path / "run" / "clients.parquet")
    assert drawn == {number: inputs.cohort(number) for number in range(1, 6)}


@pytest.mark.parametrize("name", ["W1", "W2"])
def test_the_plain_loop_does_the_engines_arithmetic(name: str, tmp_path: Path) -> None:
    """Kills: other layers or initial weights, an average that is not by samples, rows of other clients."""
    experiment = small(name)
    inputs = Inputs(experiment, tmp_path)
    engine = Engine(experiment, tmp_path / "run")
    engine.turn(range(1, 2))
    ours = engine._run.driver.driver.weights[0]  # pyright: ignore[reportAttributeAccessIssue]
    engine._run.driver.close()
    cohort = inputs.cohort(1)
    write_orders(experiment, tmp_path / "run", {1: cohort}, tmp_path)
    site = Site(task_of(inputs.plan, tmp_path), torch.from_numpy(np.load(tmp_path / "weights.npy")))
    theirs = torch.empty_like(site.weights)
    total = sum(len(inputs.clients[client]) for client in cohort)
    site.train(theirs, 1, {client: len(inputs.clients[client]) / total for client in cohort})
    torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-6)
    assert (theirs - site.weights).abs().max() > 1e-3


def test_a_peer_is_given_the_same_work(tmp_path: Path) -> None:
    """Kills: rows of another client, images on another scale, other weights, rounds that are one short."""
    experiment = small()
    inputs = Inputs(experiment, tmp_path)
    give(inputs, processes=2, count=5)
    given = Given.read(tmp_path)
    assert given.cohorts == [inputs.cohort(number) for number in range(1, 1 + given.warm_up + 5)]
    assert (given.model, given.lr, given.batch_size, given.epochs, given.clients) == ("logistic", 0.05, 32, 1, 40)
    assert [part.tolist() for part in rows(tmp_path)] == [list(part) for part in inputs.clients]
    x, y = images(tmp_path)
    dataset = experiment.data.load()
    engines, labels = Rows(dataset, dataset.train, torch.device("cpu"), torch.float32).batch(torch.arange(len(y)))
    torch.testing.assert_close(x, engines)
    assert torch.equal(y, labels)
    model = initial(given, tmp_path, x, y)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert np.array_equal(flat.numpy(), np.load(tmp_path / "weights.npy"))


# --- turns and ratios ---------------------------------------------------------------------------------


class Fake:
    """A contestant of a known pace that notes what it was asked for."""

    asked: list[tuple[str, range]]

    def __init__(self, name: str, pace: float) -> None:
        self._name, self._pace = name, pace

    def turn(self, rounds: range) -> float:
        self.asked.append((self._name, rounds))
        return self._pace * (10 if rounds.start == 1 else 1)  # at first it begins its processes

    def close(self) -> None:
        pass


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    Fake.asked = []

    def engine(experiment: Experiment, folder: Path) -> Fake:
        actors = experiment.execution.actors
        return Fake(f"actors={actors}", 0.05 if actors else 0.2)

    monkeypatch.setattr(speed, "Engine", engine)
    monkeypatch.setattr(speed, "Plain", lambda inputs, processes: Fake("plain", 0.1))
    monkeypatch.setattr(speed, "busy_cores", lambda seconds: 0.0)
    return Fake


def test_turns_go_round_over_the_same_rounds(fakes: type[Fake], tmp_path: Path) -> None:
    """Kills: a turn of other rounds for one of them, the same order in each cycle, a ratio upside down; turns as
    long as the first rounds say, which are cold."""
    inputs = Inputs(small(), tmp_path)
    found, count, _ = in_turns(inputs, processes=2, cycles=3, seconds=0.4)
    assert count == 4  # of the plain loop's 0.1 s
    turns = [fakes.asked[start : start + 3] for start in range(6, len(fakes.asked), 3)]
    assert [{rounds for _, rounds in cycle} for cycle in turns] == [
        {range(start, start + 4)} for start in (5, 9, 13, 17)
    ]
    assert len({cycle[0][0] for cycle in turns[:3]}) == 3
    assert all(len({name for name, _ in cycle}) == 3 for cycle in turns)
    assert [(one.name, one.turns) for one in found] == [
        ("engine, actors=2", [0.05] * 3),
        ("engine, actors=0", [0.2] * 3),
        ("plain loop, 2 processes", [0.1] * 3),
    ]
    assert [one.entry()["ratio"] for one in found] == [0.5, 2.0, 1.0]


def test_medians_and_quartiles() -> None:
    """Kills: a ratio of medians where turns are paired, quartiles beyond what was measured."""
    entry = Measured("engine", turns=[1.0, 2.0, 9.0], beside=[1.0, 4.0, 3.0]).entry()
    assert (entry["seconds_per_round"], entry["ratio"], entry["ratio_quartiles"]) == (2.0, 1.0, [0.75, 2.0])
    assert Measured("engine", turns=[3.0], beside=[2.0]).entry()["ratio_quartiles"] == [1.5, 1.5]


def test_peers_run_between_turns_of_the_plain_loop(
    fakes: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a first run that counts, other rounds for the plain loop, a failed peer that ends all or runs again."""
    ran = []

    def run(name: str, python: Path, folder: Path, limit: float, weigh: bool) -> launch.Ran:
        fakes.asked.append((name, range(0)))
        ran.append((name, weigh))
        if name == "flower":
            raise launch.PeerFailed("ended with code 1, saying: nothing")
        return launch.Ran([0.1, 0.5], {"pfl": "0.6.0"}, 700.0 if weigh else None)

    monkeypatch.setattr(launch, "run", run)
    pythons = dict.fromkeys(launch.PEERS, Path(sys.executable))
    failed, other = of_peers(Inputs(small(), tmp_path), pythons, processes=2, count=5, blocks=3)
    assert ran == [("flower", True), *(("pfl_research", block == 0) for block in range(3))]
    assert [entry for entry in fakes.asked if entry[0] == "plain"][1:] == [("plain", range(4, 9))] * 4
    assert failed.entry() == {"name": "flower", "failed": "ended with code 1, saying: nothing"}
    entry = other.entry()
    assert (entry["turns"], entry["plain_turns"]) == ([0.3, 0.3], [0.1, 0.1])
    assert entry["ratio"] == pytest.approx(3.0)
    assert (entry["megabytes"], entry["versions"]) == (700.0, {"pfl": "0.6.0"})


def test_a_peer_without_an_answer_says_why(tmp_path: Path) -> None:
    """Kills: an answer made up of nothing; a Python that is given and not taken."""
    with pytest.raises(
        launch.PeerFailed, match=r"ended with code 1, saying: .*No module named benchmarks.peers.nobody"
    ):
        launch.run("nobody", Path(sys.executable), tmp_path, limit=60.0)
    assert launch.pythons({"flower": None, "pfl_research": Path("/there")})["pfl_research"] == Path("/there")


# --- limits -------------------------------------------------------------------------------------------


def result(default_actors: int = 2, **changes: tuple[float, float]) -> dict[str, Any]:
    """Of one workload; (ratio, megabytes) of ``actors0`` and ``actors2``."""
    figures = {"actors2": (0.8, 1300.0), "actors0": (0.95, 900.0)} | changes
    entries: list[dict[str, Any]] = [
        {
            "name": f"engine, actors={name[-1]}",
            "actors": int(name[-1]),
            "seconds_per_round": ratio / 10,
            "ratio": ratio,
            "ratio_quartiles": [ratio, ratio],
            "megabytes": megabytes,
        }
        for name, (ratio, megabytes) in figures.items()
    ]
    return {
        "title": "some clients",
        "executor": "loop",
        "experiment": {"model": {"name": "mlp"}},
        "limit": 0.9,
        "default_actors": default_actors,
        "entries": entries,
    }


def test_limits_hold_for_the_better_one() -> None:
    """Kills: a limit on the worse one, a default that is not looked at, Ray's own memory counted as ours."""

    def missed(of: dict[str, Any], idle_ray: float | None = 400.0) -> list[str]:
        return [text for text, met in judged("W1", of, idle_ray) if not met]

    assert missed(result()) == []
    assert missed(result(default_actors=0)) == [
        "W1: engine, actors=2 is the better one, the default is actors=0",
    ]
    assert missed(result(default_actors=0, actors0=(0.83, 900.0))) == []  # within noise of the better one
    assert missed(result(actors2=(0.91, 900.0), actors0=(1.5, 900.0))) == [
        "W1: engine, actors=2: 0.910 of the plain loop's time, limit 0.900",
    ]
    assert missed(result(actors2=(0.8, 1425.0), actors0=(0.9, 1025.0))) == [
        "W1: engine, actors=2: 1025 MB beside an idle Ray, limit 1024",
        "W1: engine, actors=0: 1025 MB, limit 1024",
    ]
    assert missed(result(actors2=(0.8, 1e6)), idle_ray=None) == []  # nothing was weighed


def test_limits_beside_others() -> None:
    """Kills: actors held to nothing, a limit on the floor or a peer turned round, a peer that is not there missed."""
    three = Workload("", "cnn", {}, 10, limit=1.0, by_process=1.15, floor_share=0.6, at_most_peer="pfl_research")

    def missed(workload: Workload, **changes: Any) -> list[str]:
        entries = result(**changes)["entries"]
        entries[1]["floor_share"] = 0.59
        entries.append({"name": "pfl_research", "ratio": 0.94})
        return [text for text, met in beside_others(workload, "W", entries) if not met]

    assert missed(three, actors2=(1.1, 0.0)) == [
        "W: engine, actors=2: 1.16 of the time in process, limit 1.15",
        "W: engine, actors=0: 59% of the floor, at least 60%",
        "W: engine, actors=0: 0.950 of the plain loop's time, pfl_research has 0.940",
    ]
    assert missed(replace(three, floor_share=0.5, at_most_peer="flower")) == []
    assert missed(Workload("", "mlp", {}, 10, limit=1.0, on_actors=0.79)) == [
        "W: engine, actors=2: 0.800 of the plain loop's time, limit 0.790"
    ]


@pytest.mark.long
def test_a_footprint_is_the_peak_of_all_below() -> None:
    """Kills: the process alone, what is left at the end, a peak that nobody looks for."""
    program = "held = bytearray(b'x') * 200_000_000; print(flush=True); input(); del held; print(flush=True); input()"
    with (
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
        Footprint(os.getpid(), every=0.001) as footprint,
    ):
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        full = tree(os.getpid())
        if not full:
            pytest.skip("this system does not tell")
        for _ in range(5000):
            if footprint.peak > sum(full.values()) - 50:
                break
            time.sleep(0.001)
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        left = sum(tree(os.getpid()).values())
        child.stdin.close()
    assert footprint.peak > left + 80
    with Footprint(os.getpid(), every=None) as blind:
        pass
    assert math.isnan(blind.peak)


# --- the page -----------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_file() -> None:
    """Kills: figures of another run than the one that is in the repository; marks that are gone."""
    page = speed_page.PAGE.read_text(encoding="utf-8")
    results = json.loads((RESULTS / "speed.json").read_text(encoding="utf-8"))
    assert page.count(speed_page.BEGIN) == page.count(speed_page.END) == 1
    assert speed_page.with_tables(page, results) == page
    assert all(f"**{name}**" in page for name in WORKLOADS)


def test_who_did_not_run_says_so() -> None:
    """Kills: a row left out, or a figure in it, where a peer was not run or failed."""
    given = result()
    given["entries"].append({"name": "flower", "failed": "gave no answer", "versions": {"flwr": "1.0"}})
    found = {row[0]: row[1:3] for row in speed_page.rows(given)}
    assert found == {
        "engine, actors=2": ("80.0", "0.80"),
        "engine, actors=0": ("95.0", "0.95"),
        "Flower 1.0": ("failed", ""),
        "pfl-research": ("not run", ""),
    }
