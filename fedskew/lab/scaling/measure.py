"""Runners of a scaling study's settings: one pool of actors, and a driver for each setting that uses a part of it.

Starting an actor takes seconds, since it imports torch. The workers of a pool know the model and the data but neither
how many of them take part nor how cohorts are drawn and cut, so the settings of one model share a pool; an idle actor
waits for messages and takes no time of a core.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine import __version__
from engine.algorithm import Tensors
from engine.base.devices import cores
from engine.base.errors import require
from engine.client.messages import Handle
from engine.data import Dataset
from engine.experiment import Execution, Experiment
from engine.models.model import on_meta
from engine.record.numerics import hardware_of
from engine.record.run_folder import RunFolder
from engine.run.local_driver import LocalDriver
from engine.run.preparing import Prepared, check_place, prepare
from engine.server.cohort import expected_cohort
from engine.worker.in_process import InProcessPool
from engine.worker.pool import Call, Pool
from fedskew.lab.scaling.plan import Plan, Setting
from fedskew.lab.scaling.study import Turn

if TYPE_CHECKING:
    from engine.worker.ray.pool import RayPool

WARM_UP = 1.0  # seconds of rounds before a setting's first turn


def look_around(execution: Execution, address: str | None) -> dict[str, Any]:
    """Nodes, CPUs and GPUs of the cluster at ``address``, or of this machine; what computes there."""
    if on_cluster(address):
        from engine.worker.ray import cluster

        cluster.connect(execution, address)
        room: dict[str, Any] = cluster.resources()
    else:
        room = {"nodes": 1, "cpus": float(cores()), "gpus": float(torch.cuda.device_count())}
    device = "cuda" if execution.gpus_per_actor > 0 and torch.cuda.is_available() else "cpu"
    return {**room, "hardware": hardware_of(device), "torch": torch.__version__, "fedskew": __version__}


def room_for(machine: Mapping[str, Any], execution: Execution) -> int:
    """Return how many actors have room beside each other, at least 1."""
    room = math.floor(machine["cpus"] / execution.cpus_per_actor + 1e-6)
    if execution.gpus_per_actor > 0:
        room = min(room, math.floor(machine["gpus"]) * math.floor(1 / execution.gpus_per_actor + 1e-6))
    return max(room, 1)


def check_room(actors: Sequence[int], room: int, address: str | None) -> None:
    """Refuse more actors than a cluster has room for; on one machine they may crowd."""
    require(
        not on_cluster(address) or max(actors) <= room,
        "--actors",
        max(actors),
        f"must be at most {room}, for which the cluster has room",
        "ask for fewer, or for smaller ones with execution.cpus_per_actor",
    )


def runs_in_process(execution: Execution) -> bool:
    """Return whether this process can do what the actors do."""
    return execution.gpus_per_actor == 0 or torch.cuda.is_available()


def on_cluster(address: str | None) -> bool:
    return bool(address or os.environ.get("RAY_ADDRESS"))


def with_device(experiment: Experiment, actors: int) -> Experiment:
    """One device for all settings: ``auto`` as it is resolved for ``actors`` actors."""
    device = experiment.replace({"execution.actors": actors}).resolve().execution.device
    return experiment.replace({"execution.actors": actors, "execution.device": device})


def clients_of(experiment: Experiment, dataset: Dataset) -> tuple[int, int]:
    """Clients per round as the experiment says, and clients that hold data."""
    parts = experiment.partition.assign(dataset.train.labels, len(dataset.classes), dataset.train.owners)
    holders = int(np.count_nonzero(parts.sizes()))
    return max(round(expected_cohort(holders, experiment.participation)), 1), holders


class EngineBench:
    """The engine, in this process and on actors."""

    def __init__(self, plan: Plan, dataset: Dataset, address: str | None = None) -> None:
        self._plan, self._dataset, self._address = plan, dataset, address
        self._reference: Any = None

    def load(self) -> float:
        """The load average of this machine over the last minute."""
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan

    @contextmanager
    def opened(self, settings: Sequence[Setting]) -> Iterator[dict[Setting, Runner]]:
        """Each setting's run, warm; files that a run writes are in a folder that is deleted at the end."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedskew-scale-")))
            experiments = {setting: self._plan.experiment_of(setting).resolve() for setting in settings}
            first = prepare(experiments[settings[0]], folder / "0", False, self._dataset)  # the data are dealt once
            prepared = {
                setting: replace(first, experiment=experiment, folder=RunFolder(folder / str(number)))
                for number, (setting, experiment) in enumerate(experiments.items())
            }
            largest = max(settings, key=lambda setting: setting.actors)
            pool = self._pool(prepared[largest], stack) if largest.actors else None
            runners = {}
            for setting, ready in prepared.items():
                ready.write()
                runners[setting] = Runner(ready, pool if setting.actors else None)
                stack.callback(runners[setting].close)
            for runner in runners.values():
                runner.warm_up(min(WARM_UP, self._plan.seconds))
            yield runners

    def _pool(self, prepared: Prepared, stack: ExitStack) -> RayPool:
        """Actors for the largest setting; Ray is started, or found, with the first of them."""
        from engine.worker.ray import cluster
        from engine.worker.ray.pool import RayPool

        execution = prepared.experiment.execution
        if self._reference is None:
            wanted = execution.model_copy(update={"actors": self._plan.most})
            cluster.connect(wanted, self._address)
            cluster.check_resources(execution)
            self._reference = cluster.share(prepared.dataset)
        pool = RayPool(prepared.experiment, self._reference, prepared.assignment)
        stack.callback(pool.close)
        return pool


class Runner:
    """A run that waits for its turns."""

    def __init__(self, prepared: Prepared, actors: RayPool | None) -> None:
        experiment = prepared.experiment
        if actors is None:
            check_place(experiment.execution)
            self._pool = LentPool(InProcessPool(experiment, prepared.dataset, prepared.assignment))
        else:
            self._pool = LentPool(actors, lambda: actors.use(experiment.execution.actors))
        self._executor = experiment.execution.executor
        net = on_meta(experiment.model, prepared.dataset.shape, len(prepared.dataset.classes))
        self._parameters = sum(parameter.numel() for parameter in net.parameters())
        self._driver = LocalDriver(prepared, make_pool=lambda: self._pool)

    def warm_up(self, seconds: float) -> None:
        self._driver.advance(seconds)

    def turn(self, seconds: float) -> Turn:
        """The first round after another setting's turn is not counted: it finds caches and estimates of others."""
        self._driver.advance(0.0)
        began = time.perf_counter()
        rows = self._driver.advance(seconds).rows
        elapsed = time.perf_counter() - began
        return Turn(
            seconds=elapsed,
            rounds=len(rows),
            samples=sum(row["samples"] for row in rows),
            blocks=self._pool.blocks,
            parameters=self._parameters,
            executor=self._executor,
        )

    def close(self) -> None:
        self._driver.close()


class LentPool(Pool):
    """A pool, or some of its actors, in the hands of one driver among several: not its to close."""

    def __init__(self, pool: Pool, take: Callable[[], None] | None = None) -> None:
        """``take``: makes the pool use this borrower's actors."""
        self._pool, self._take = pool, take
        self.side_by_side = pool.side_by_side
        self.blocks = 0  # of the last round of training

    @property
    def numerics(self) -> dict[str, str]:
        return self._pool.numerics

    def run(self, method: str, shared: Tensors, job: Any, calls: Sequence[Call], what: str) -> Iterator[Any]:
        if self._take is not None:
            self._take()
        self._pool.deadline = self.deadline
        if method == "train":
            self.blocks = len(calls)
        return self._pool.run(method, shared, job, calls, what)

    def fetch(self, handle: Handle) -> Tensors:
        return self._pool.fetch(handle)

    def close(self) -> None:
        """Whoever made the pool closes it."""
