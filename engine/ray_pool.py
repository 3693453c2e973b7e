"""Blocks on Ray actors. What happens to them there: ``ray_trips.py``; the actors themselves: ``ray_actors.py``.

Public Ray API only. Actors are started by whoever builds the pool (the driver actor, or a trial in its placement
group) and land where that caller's children land. Blocks of an actor that dies are run again on another one, which
changes no bit, since a block's result depends on nothing but its arguments.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from engine.ray_actors import ClientActor, Roster, cause_of, first_line, gpu_share  # first: it sets what Ray reads

import ray  # isort: skip
import ray.exceptions  # isort: skip
import torch

from engine.data import Assignment, Dataset
from engine.devices import cores
from engine.entries import Arrays
from engine.errors import ResourceError
from engine.experiment import Execution, Experiment, no_gpu
from engine.pool import Call, Pool, Result
from engine.ray_trips import FULL, ROOM, Measured, Trips, state_lost, store_full
from engine.states import Handle

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
    ray.init(address="local", num_cpus=max(there, wanted) if crowd else there, include_dashboard=False, **quiet)


def cluster() -> dict[str, float]:
    """What the Ray that :func:`connect` found has: nodes, and CPUs and GPUs over all of them."""
    total = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return {"nodes": nodes, "cpus": total.get("CPU", 0.0), "gpus": total.get("GPU", 0.0)}


def share(dataset: Dataset) -> Any:
    """A reference to the one copy that each node will hold."""
    return ray.put(dataset)


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
        client_actor = ray.remote(
            num_cpus=execution.cpus_per_actor, num_gpus=share, max_restarts=0, max_task_retries=0
        )(ClientActor)
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
        except FULL as error:
            raise store_full(what, error) from None
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
