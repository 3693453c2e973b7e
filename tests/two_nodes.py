"""A sweep on two nodes, once undisturbed and once with a node lost in mid-course: ``python -m tests.two_nodes FOLDER``.

Prints what it found as one line of JSON; see test_cluster.py. Runs and stores go to FOLDER, which both nodes share.

The nodes are Ray's own stand-ins (``ray.cluster_utils``): each has its raylet, its object store and its worker
processes, all on this machine.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import ray_pool  # first: it sets what Ray reads at import

import ray  # isort: skip
import ray.experimental  # isort: skip
from ray import tune  # isort: skip
from ray.cluster_utils import Cluster  # isort: skip

import numpy as np

from engine.analysis import tables
from engine.data import Dataset
from engine.data.dataset import Source
from engine.experiment import Experiment
from engine.run import LocalDriver
from engine.sweeps import running
from engine.sweeps.definition import NamedSweep, Sweep
from engine.sweeps.folder import SweepFolder
from engine.sweeps.running import How, run_sweep
from engine.sweeps.trial import Job, Trial

CLIENTS, ROUNDS, EVERY = 200, 120, 10
OWN = ["seconds", "rounds_computed", "folder"]  # columns of the trials table that say how a sweep went
NOTICE = {  # a lost node is given up after two seconds, not after a quarter of a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


def federations() -> NamedSweep:
    """Eight trials that share no round."""
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
    return NamedSweep("two_nodes", "laptop", (), "FedProx on two nodes", Sweep(base=base, space=space, seeds=(0, 1)))


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
        self.holders: set[str] = set()  # nodes that held it while both were there
        self.in_driver = 0  # copies of its own that the driver's process held meanwhile
        self.error: Exception | None = None

    def run(self, meanwhile: Callable[[Watch], None]) -> dict[str, Any]:
        """Run the sweep, and ``meanwhile`` beside it; the summary of both."""
        count_loads(self.notes)
        share = ray_pool.share

        def kept(dataset: Dataset) -> Any:
            self.references.append(share(dataset))
            return self.references[-1]

        def beside() -> None:
            try:
                meanwhile(self)
            except Exception as error:
                self.error = error

        ray_pool.share = kept
        running.Trial = Observed  # type: ignore[misc]
        thread = threading.Thread(target=beside)
        thread.start()
        began = time.monotonic()
        try:
            how = How(store=self.folder.with_suffix(".store"), mode="inside", concurrent=2)
            outcome = run_sweep(federations(), self.folder, how)
        finally:
            ray_pool.share = share
            thread.join()
        if self.error is not None:
            raise self.error
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
            "holders": len(self.holders),
            "in_driver": self.in_driver,
            "copies": sorted(map(len, images.values())),
            "private": sum(note["images"].startswith("process") for note in opened),
            "opened": len(opened),
            "processes": len({note["process"] for note in opened}),
            "seconds": round(time.monotonic() - began, 1),
        }

    def summary(self, trial: str) -> dict[str, Any]:
        return SweepFolder(self.folder).run_folder(trial).summary()

    def look(self) -> None:
        """Who holds the data now."""
        (reference,) = self.references
        self.holders |= set(ray.experimental.get_object_locations([reference])[reference]["node_ids"])
        self.in_driver = max(self.in_driver, sum(isinstance(thing, Dataset) for thing in gc.get_objects()))

    def under_way(self, node: str, ended: int) -> dict[str, Any]:
        """The last step of a trial that is in mid-course on a node, once so many have ended there."""

        def found() -> dict[str, Any] | None:
            steps = [note for note in self.notes.read("step") if note["node"] == node]
            begun = [note for note in self.notes.read("open") if note["node"] == node]
            if sum(note["done"] for note in steps) < ended or not steps or steps[-1]["done"]:
                return None
            last = steps[-1]
            return last if last["trial"] == begun[-1]["trial"] and EVERY < last["round"] < ROUNDS // 2 else None

        return until(found)


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing within {seconds:g} s")
        time.sleep(0.05)
    return value


def trials(folder: Path) -> Any:
    return tables.load(folder).trials.drop(columns=OWN)


def main(folder: Path) -> dict[str, Any]:
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    head = {**small, "include_dashboard": False, "_system_config": NOTICE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    found: dict[str, Any] = {"nodes": len(ray.nodes())}

    def look(watch: Watch) -> None:
        until(lambda: len({note["node"] for note in watch.notes.read("open")}) == 2)
        watch.look()

    def remove(watch: Watch) -> None:
        victim = watch.under_way(second.node_id, ended=1)
        watch.look()
        cluster.remove_node(second, allow_graceful=False)
        found["removed"] = {"trial": victim["trial"], "round": victim["round"], "time": time.time()}

    undisturbed, disturbed = Watch(folder / "undisturbed"), Watch(folder / "disturbed")
    found["undisturbed"] = undisturbed.run(look)
    found["disturbed"] = disturbed.run(remove)
    lost = found["removed"]
    again = [note for note in disturbed.notes.read("open") if note["trial"] == lost["trial"]]
    lost |= {"from": again[-1]["round"], "opened": len(again), "elsewhere": again[-1]["node"] != second.node_id}
    lost |= {"waited": round(again[-1]["time"] - lost.pop("time"), 1)}
    after = [note for note in disturbed.notes.read("step") if note["trial"] == lost["trial"]]
    lost |= {"steps": [(note["round"], round(note["time"] - again[-1]["time"], 1)) for note in after]}
    found["alive"] = sum(node["Alive"] for node in ray.nodes())
    found["equal"] = trials(disturbed.folder).equals(trials(undisturbed.folder))
    ray.shutdown()
    cluster.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve())))
