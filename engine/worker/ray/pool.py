"""Blocks on Ray actors. What happens to them there: ``ray_trips.py``; the actors themselves: ``ray_actors.py``.

Public Ray API only, but for one constant (see :func:`_loopback_alone`). Actors are started by whoever builds the pool
(the driver actor, or a trial in its placement group) and land where that caller's children land. Blocks of an actor
that dies are run again on another one, which changes no bit, since a block's result depends on its arguments alone.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from engine.worker.ray.actors import (  # first: it sets what Ray reads
    FULL,
    NO_ROOM,
    ClientActor,
    Roster,
    cause_of,
    first_line,
    gpu_share,
    store_full,
)

import ray  # isort: skip
import ray.exceptions  # isort: skip
import torch

from engine.base.devices import cores
from engine.base.errors import ResourceError
from engine.client.entries import Arrays
from engine.data import Assignment, Dataset
from engine.experiment import Execution, Experiment, no_gpu
from engine.record.states import Handle
from engine.worker.pool import Call, Pool, Result
from engine.worker.ray.calls import ROOM, Measured, Trips, state_lost

log = logging.getLogger("fedskew")
__all__ = ["RayPool", "cause_of", "check_resources", "cluster", "connect", "first_line", "gpu_share", "share"]


def connect(execution: Execution, address: str | None = None, crowd: bool = True) -> None:
    """Use the Ray that is there, or start one on this machine.

    ``crowd``: with room for the actors asked for, even where they are more than the machine has cores.
    """
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address or os.environ.get("RAY_ADDRESS"):
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ResourceError(f"no Ray answers at {address or os.environ['RAY_ADDRESS']}: {error}") from None
        return
    if execution.gpus_per_actor > 0 and not torch.cuda.is_available():
        raise no_gpu(execution)
    there = cores()
    wanted = math.ceil(execution.actors * execution.cpus_per_actor)
    if crowd and wanted > there:
        log.warning(
            "%d actors want %d CPUs and this machine has %d: slower, the same bits",
            execution.actors,
            wanted,
            there,
        )
    with _loopback_alone():
        ray.init(address="local", num_cpus=max(there, wanted) if crowd else there, include_dashboard=False, **quiet)


@contextmanager
def _loopback_alone() -> Iterator[None]:
    """What Ray starts meanwhile can be reached from this machine only.

    Who reaches a port of Ray can run code. On Linux Ray takes the machine's own address even where it is asked for
    127.0.0.1, and its processes then listen on all; with this variable it does as on macOS and Windows. Its processes
    read it when they start, this one has read it at import. A Ray on several nodes is never started in here.
    """
    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    constants: Any = sys.modules.get("ray._private.ray_constants", SimpleNamespace())
    before = os.environ.get(name), getattr(constants, "ENABLE_RAY_CLUSTER", True)
    os.environ[name], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[name]
        else:
            os.environ[name] = before[0]


def cluster() -> dict[str, float]:
    """What the Ray that :func:`connect` found has: nodes, and CPUs and GPUs over all of them."""
    total = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return {"nodes": nodes, "cpus": total.get("CPU", 0.0), "gpus": total.get("GPU", 0.0)}


def share(dataset: Dataset) -> Any:
    """A reference to the one copy that each node will hold."""
    try:
        return ray.put(dataset)
    except FULL:
        raise ResourceError(f"the data have no room: {NO_ROOM}") from None


def object_store_bytes() -> float:
    """Of Ray on this node."""
    here = ray.get_runtime_context().get_node_id()
    [resources] = [node["Resources"] for node in ray.nodes() if node["NodeID"] == here]
    return resources["object_store_memory"]


def check_resources(execution: Execution) -> None:
    """Refuse a GPU share where there is no GPU; say how a share is snapped."""
    cards = ray.cluster_resources().get("GPU", 0)
    if execution.gpus_per_actor > 0 and cards == 0:
        raise no_gpu(execution)
    share = gpu_share(execution.gpus_per_actor)
    if abs(share - execution.gpus_per_actor) > 1e-3:
        log.warning(
            "execution.gpus_per_actor=%g is taken as 1/%d, so that %d actors share a card",
            execution.gpus_per_actor,
            round(1 / share),
            round(1 / share),
        )


class RayPool(Pool):
    """Client actors, each with its CPUs and its share of one card."""

    def __init__(self, experiment: Experiment, dataset: Any, assignment: Assignment) -> None:
        """``dataset`` is an object reference, so that a node holds one copy for all its actors."""
        execution = experiment.execution
        self._execution = execution
        share = gpu_share(execution.gpus_per_actor)
        arguments = (experiment, dataset, ray.put(assignment), share)
        options: dict[str, Any] = {
            "num_cpus": execution.cpus_per_actor,
            "num_gpus": share,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,  # of each call; Ray's server would keep them, a megabyte in a hundred rounds
        }
        client_actor = ray.remote(**options)(ClientActor)
        self._token = 0
        self._measured = Measured(ROOM * object_store_bytes())
        self._roster = Roster(lambda: client_actor.remote(*arguments), execution, share)
        try:
            self._roster.await_all()
            nodes = Counter(where["node"] for where in self.placement)
            cards = min(int(1 / share + 1e-6), execution.actors) if execution.device == "cuda" else 0
            self.side_by_side = cards or max(nodes.values())
        except BaseException:
            self.close()
            raise

    @property
    def numerics(self) -> dict[str, str]:
        return self._roster.numerics

    @property
    def placement(self) -> list[dict[str, Any]]:
        """For each actor its node, its process and its GPU."""
        return self._roster.placement

    def use(self, count: int) -> None:
        """Run on the first ``count`` actors from now on; the others wait until they are used again."""
        self._roster.use(count)

    def run(self, method: str, shared: Arrays, job: Any, calls: Sequence[Call], what: str) -> Iterator[Result]:
        self._token += 1
        self._roster.close_ranks()
        try:
            common = ray.put((shared, job))
        except FULL:
            raise store_full(what) from None
        trips = Trips(
            self._roster, self._measured, self._execution, self.deadline, method, (self._token, common), calls, what
        )
        return trips.results()

    def fetch(self, handle: Handle) -> Arrays:
        if not isinstance(handle, ray.ObjectRef):
            return handle
        try:
            return ray.get(handle, timeout=self._execution.block_timeout)
        except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError):
            raise state_lost("reading client state") from None

    def close(self) -> None:
        self._roster.kill_all()
