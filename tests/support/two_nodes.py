"""A sweep on two nodes, of which one is lost in mid-course, and its trials by themselves: ``python -m
tests.support.two_nodes FOLDER``.

Prints what it found as one line of JSON; see test_cluster.py. Runs and stores go to FOLDER, which both nodes share.

The nodes are Ray's own stand-ins (``ray.cluster_utils``): each has its raylet, its object store and its worker
processes, all on this machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from engine.record.columns import HOW_IT_WENT
from engine.worker.ray import cluster as ray_cluster  # first: it sets what Ray reads at import

import ray  # isort: skip
from ray import tune  # isort: skip
from ray.cluster_utils import Cluster  # isort: skip

import numpy as np

from engine.data import Dataset
from engine.data.samples.dataset import Source
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run.local_driver import LocalDriver
from engine.run.run import run
from engine.sweeps import running, tuner
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep
from engine.sweeps.options import How
from engine.sweeps.running import run_sweep
from engine.sweeps.trial import Job, Trial
from fedskew.lab import run_pictures
from tests.faults.cluster import NOTICE

TABLES = ("rounds", "clients", "evaluations")
OWN = [*HOW_IT_WENT, "reused"]  # columns that say how a run went
CLIENTS, ROUNDS, EVERY = 200, 80, 5  # EVERY: rounds between checkpoints
# The lost trial's lease is given up after six seconds, not after thirty. No trial here waits for another one's.
IMPATIENT = {"heartbeat": 1.0, "patience": 6.0}


def federations() -> NamedSweep:
    """Four trials that share no round."""
    base = Experiment(
        name="two-nodes",
        rounds=ROUNDS,
        data={"name": "fashion_mnist_sample", "train_samples": 2000, "test_samples": 200},
        partition={"name": "dirichlet", "clients": CLIENTS, "alpha": 0.3},
        model={"name": "mlp", "hidden": [16]},
        algorithm={"name": "fedprox"},
        local={"epochs": 2, "batch_size": 8, "lr": 0.05},
        participation={"count": 10},
        checkpoint={"every": EVERY},
        execution={"device": "cpu"},
    )
    space = {"mu": tune.grid_search([0.01, 1.0]), "local.lr": tune.grid_search([0.05, 0.02])}
    return NamedSweep("two_nodes", "laptop", (), "FedProx on two nodes", Sweep(base=base, space=space, seeds=(0,)))


# --- what is written down, in every process ---------------------------------------------------------------


class Notes:
    """Lines of JSON from several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: str, **values: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps({"what": what, "process": os.getpid(), "time": time.time(), **values}) + "\n")

    def read(self, what: str) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [note for note in map(json.loads, lines) if note["what"] == what]


def count_loads(notes: Notes) -> None:
    """From here on this process notes each data set that it reads."""
    load = getattr(Source.load, "__wrapped__", Source.load)

    def counted(source: Source) -> Dataset:
        notes.add("load", source=type(source).__name__)
        return load(source)

    counted.__wrapped__ = load  # type: ignore[attr-defined]
    Source.load = counted  # type: ignore[method-assign]


def place_of(array: np.ndarray) -> str:
    """Where an array's bytes lie: in which file's memory, and where in it; or in this process alone."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, offset, device, inode, *_ = line.split()
        first, end = (int(number, 16) for number in span.split("-"))
        if first <= address < end and mode.endswith("s"):
            return f"{device} {inode} {int(offset, 16) + address - first}"
    return f"process {os.getpid()}"


class Observed(Trial):
    """A trial that notes on which node it is, from which round it goes on, and where the images lie that it uses."""

    def setup(self, config: dict[str, Any], job: Job | None = None) -> None:
        assert job is not None
        self._notes = Notes(job.folder.with_suffix(".notes"))
        self._node = ray.get_runtime_context().get_node_id()
        count_loads(self._notes)
        super().setup(config, job)

    def _driver(self, experiment: Experiment) -> LocalDriver:
        local = super()._driver(experiment)
        (dataset,) = self._datasets.values()
        images = place_of(dataset.train.images)
        self._notes.add("open", trial=self.trial_name, node=self._node, round=local.driver.round, images=images)
        return local

    def step(self) -> dict[str, Any]:
        report = super().step()
        self._notes.add("step", trial=self.trial_name, node=self._node, round=report["round"], done=report["done"])
        return report


# --- the sweeps -------------------------------------------------------------------------------------------


class Watch:
    """One sweep, and what is seen of it from outside while it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = Notes(folder.with_suffix(".notes"))
        self.references: list[Any] = []  # of what was put into the object store as a data set
        self._over = threading.Event()
        self._error: Exception | None = None

    def run(self, meanwhile: Callable[[Watch], None]) -> dict[str, Any]:
        """Run the sweep, and ``meanwhile`` beside it; the summary of both."""
        count_loads(self.notes)
        share = ray_cluster.share

        def kept(dataset: Dataset) -> Any:
            self.references.append(share(dataset))
            return self.references[-1]

        def beside() -> None:
            try:
                meanwhile(self)
            except Exception as error:
                self._error = error

        ray_cluster.share = kept
        tuner.Trial = Observed  # type: ignore[misc]
        running.StageStore = partial(StageStore, **IMPATIENT)  # type: ignore[misc]
        thread = threading.Thread(target=beside)
        thread.start()
        began = time.monotonic()
        try:
            how = How(store=self.folder.with_suffix(".store"), mode="inside", concurrent=2)
            outcome = run_sweep(federations(), self.folder, how)
        finally:
            ray_cluster.share = share
            self._over.set()
            thread.join()
        if self._error is not None:
            raise self._error
        opened = self.notes.read("open")
        images: dict[str, set[str]] = defaultdict(set)
        for note in opened:
            images[note["node"]].add(note["images"])
        return {
            "statuses": outcome.statuses,
            "rounds_asked": outcome.rounds_asked,
            "rounds_computed": outcome.rounds_computed,
            "clients": sorted({self.summary(note["trial"])["clients"] for note in opened}),
            "loads": len(self.notes.read("load")),
            "puts": len(self.references),
            "copies": sorted(map(len, images.values())),
            "private": sum(note["images"].startswith("process") for note in opened),
            "opened": len(opened),
            "processes": len({note["process"] for note in opened}),
            "seconds": round(time.monotonic() - began, 1),
        }

    def summary(self, trial: str) -> dict[str, Any]:
        return SweepFolder(self.folder).run_folder(trial).summary()

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something to happen while the sweep runs."""
        while not (value := condition()):
            if self._over.wait(0.02):
                raise RuntimeError("the sweep ended before that")
        return value

    def in_mid_course(self, node: str) -> dict[str, Any] | None:
        """The trial that runs on a node and the round of its last checkpoint, once another one has ended there."""
        opened = [note for note in self.notes.read("open") if note["node"] == node]
        ended = [note["trial"] for note in self.notes.read("step") if note["node"] == node and note["done"]]
        if not ended or opened[-1]["trial"] in ended:
            return None
        trial = opened[-1]["trial"]
        saved = (SweepFolder(self.folder).run_folder(trial).path / "checkpoints").glob("*.safetensors")
        round = max((int(path.stem.rpartition("-")[2]) for path in saved), default=0)
        return {"trial": trial, "saved": round} if 0 < round < ROUNDS // 2 else None


def aftermath(notes: Notes, lost: dict[str, Any], node: str) -> dict[str, Any]:
    """What became of the trial that was on the lost node: where and from which round it went on, and how soon."""
    last = [note for note in notes.read("open") if note["trial"] == lost["trial"]][-1]
    steps = [note for note in notes.read("step") if note["trial"] == lost["trial"] and note["time"] > last["time"]]
    return {
        "elsewhere": last["node"] != node and all(note["node"] != node for note in steps),
        "from": last["round"],
        "opened_after": round(last["time"] - lost["time"], 1),
        "computed_after": round(steps[0]["time"] - lost["time"], 1),
    }


def is_itself(folder: Path, trial: str) -> bool:
    """Whether a trial has the weights and the rows of its experiment run by itself, in this process."""
    sweep = SweepFolder(folder)
    experiment, _ = sweep.experiment(trial)
    there, alone = sweep.run_folder(trial), RunFolder(folder / "alone" / trial)
    weights = run(experiment.replace({"execution.actors": 0}), alone.path)["weights_sha256"]
    frames = ((one.frame(table).drop(columns=OWN, errors="ignore") for one in (there, alone)) for table in TABLES)
    return there.summary()["weights_sha256"] == weights and all(one.equals(other) for one, other in frames)


def main(folder: Path) -> dict[str, Any]:
    run_pictures.RunPictures.on_end = lambda *_: None  # of the trials by themselves
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    head = {**small, "include_dashboard": False, "_system_config": NOTICE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    found: dict[str, Any] = {"nodes": len(ray.nodes())}

    def remove(watch: Watch) -> None:
        lost = watch.until(lambda: watch.in_mid_course(second.node_id))
        found["lost"] = {**lost, "time": time.time()}
        cluster.remove_node(second, allow_graceful=False)

    disturbed = Watch(folder / "disturbed")
    found["disturbed"] = disturbed.run(remove)
    found["lost"] |= aftermath(disturbed.notes, found["lost"], second.node_id)
    found["alive"] = sum(node["Alive"] for node in ray.nodes())
    ray.shutdown()
    cluster.shutdown()
    trials = [record.trial for record in SweepFolder(disturbed.folder).records()]
    found["weights"] = len({disturbed.summary(trial)["weights_sha256"] for trial in trials})
    found["themselves"] = [is_itself(disturbed.folder, trial) for trial in trials]
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve())))
