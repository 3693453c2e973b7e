"""The pool of Ray actors. One run of calls over them: ``resilient_calls.py``; the actors: ``actor_group.py``.

Actors are started by whoever builds the pool (the driver actor, or a trial in its placement group) and land where that
caller's children land. Blocks of an actor that dies are run again on another one, which changes no bit, since a block's
result depends on its arguments alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.exceptions

from engine.algorithm import Tensors
from engine.client.messages import Handle
from engine.data import Assignment
from engine.experiment import Experiment
from engine.worker.pool import ADDED_APART, Call, Pool
from engine.worker.ray.actor_group import ActorGroup
from engine.worker.ray.client_actor import ClientActor
from engine.worker.ray.cluster import gpu_share, object_store_bytes
from engine.worker.ray.errors import FULL, state_lost, store_full
from engine.worker.ray.resilient_calls import STORE_SHARE, CallRun, Measurements
from engine.worker.ray.wire import from_wire, to_wire
from engine.worker.stopwatch import Stopwatch

INLINE = 64 * 1024  # bytes up to which arrays travel with each call; Ray's own limit for small arguments is 100 kB


class RayPool(Pool):
    """Client actors, each with its CPUs and its share of one card."""

    def __init__(self, experiment: Experiment, dataset: Any, assignment: Assignment) -> None:
        """``dataset`` is an object reference, so that a node holds one copy for all its actors.

        Raises :class:`ResourceError` if the actors cannot be started, or would compute different bits.
        """
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
        self.workers = execution.actors
        self._measurements = Measurements(STORE_SHARE * object_store_bytes())
        self._actors = ActorGroup(lambda: client_actor.remote(*arguments), execution, share)
        try:
            self._actors.await_all()
            nodes = Counter(where["node"] for where in self.placement)
            cards = min(int(1 / share + 1e-6), execution.actors) if execution.device == "cuda" else 0
            self.side_by_side = cards or max(nodes.values())
        except BaseException:
            self.close()
            raise

    @property
    def numerics(self) -> dict[str, str]:
        return self._actors.numerics

    @property
    def placement(self) -> list[dict[str, Any]]:
        """The node, the process and the GPU of each actor."""
        return self._actors.placement

    def run(self, method: str, shared: Tensors, job: Any, calls: Sequence[Call], what: str) -> Iterator[Any]:
        self._token += 1
        self._actors.renumber()
        watch = self.watch if method == "train" else Stopwatch()  # otherwise all of it is in its caller's phase
        with watch("broadcast"):
            common = self._of_all(to_wire(shared), job, what)
        large = method == "train" and sum(tensor.nbytes for tensor in shared.values()) > ADDED_APART
        call_run = CallRun(
            self._actors,
            self._measurements,
            self._execution,
            self.deadline,
            method,
            (self._token, common),
            calls,
            what,
            watch,
            add_apart=large and len(calls) > 1,
        )
        return call_run.results()

    @staticmethod
    def _of_all(shared: Any, job: Any, what: str) -> Any:
        """What all calls share: a reference to it, or itself where the way through the store takes longer."""
        if sum(array.nbytes for array in shared.values()) <= INLINE:
            return shared, job
        try:
            return ray.put((shared, job))
        except FULL:
            raise store_full(what) from None

    def fetch(self, handle: Handle) -> Tensors:
        if not isinstance(handle, ray.ObjectRef):
            return handle
        try:
            return from_wire(ray.get(handle, timeout=self._execution.block_timeout))
        except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError):
            raise state_lost("reading client state") from None

    def close(self) -> None:
        self._actors.kill_all()
