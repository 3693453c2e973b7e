"""The Ray actor that runs blocks of clients."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

from engine.base.imports import uncollected

with uncollected():  # an actor is a process of its own
    import ray
    import torch

    from engine.base.allocator import keep_freed_memory
    from engine.base.devices import device_class
    from engine.client.jobs import JobRunner
    from engine.data import Assignment, Dataset
    from engine.experiment import Experiment
    from engine.record.numerics import hardware_of, numerics
    from engine.worker.ray.replies import CallReply


class ClientActor:
    """The actor around a worker."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment, share: float) -> None:
        self._cards = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if share and len(self._cards) != 1:
            raise RuntimeError(f"an actor with a GPU share of {share} was given the cards {self._cards}, not one")
        if experiment.execution.device == "cuda" and torch.cuda.device_count() != 1:
            raise RuntimeError(f"execution.device=cuda, but torch sees {torch.cuda.device_count()} GPUs in the actor")
        keep_freed_memory()
        self._worker = JobRunner(experiment, dataset, assignment)
        self._numerics = numerics(experiment, hardware_of(experiment.execution.device))
        self._kind = device_class(experiment.execution.device)
        self._token = 0
        self._job: Any = None

    def ready(self) -> dict[str, Any]:
        """Say where this actor is and what it computes with."""
        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "gpus": self._cards,
            "pid": os.getpid(),
            "numerics": self._numerics,
            "kind": self._kind,
        }

    def call(
        self,
        method: str,
        token: int,
        common: list[Any],
        calls: list[tuple[tuple[Any, ...], tuple[bool, ...]]],
        *states: Any,
    ) -> Any:
        """Run a call batch; return (its :class:`CallReply`, further results of the first call, of the second, ...).

        ``common`` holds (shared, job), or a reference to it that is opened once a round and not once a call; ``calls``
        the arguments of each call, and of each of its clients whether the next one of ``states`` is its.
        """
        if token != self._token:
            [of_all] = common
            shared, self._job = ray.get(of_all) if isinstance(of_all, ray.ObjectRef) else of_all
            self._worker.receive(shared)
            self._token = token
        began = time.perf_counter()
        values, handles = [], []
        left = iter(states)
        for args, there in calls:
            own = (next(left) if is_there else None for is_there in there)
            value = getattr(self._worker, method)(self._job, *args, *own)
            first, *rest = value if isinstance(value, tuple) else (value,)
            values.append(first)
            handles += rest
        reply = CallReply(values, time.perf_counter() - began, [size_of(value) for value in values], self._kind)
        return (reply, *handles) if handles else reply


def size_of(value: Any) -> int:
    """Return the bytes of a result on its way; its arrays are not copied for that."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return len(rest) + sum(array.raw().nbytes for array in arrays)
