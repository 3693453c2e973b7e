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
    from engine.base.errors import ResourceError
    from engine.client.jobs import JobRunner
    from engine.data import Assignment, Dataset
    from engine.experiment import Experiment
    from engine.record.numerics import hardware_of, numerics
    from engine.worker.ray.wire import CallMeasure, SentCall, received, to_wire


class ClientActor:
    """The actor around a worker."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment, share: float) -> None:
        self._cards = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if share and len(self._cards) != 1:
            raise ResourceError(f"an actor with a GPU share of {share} was given the cards {self._cards}, not one")
        if experiment.execution.device == "cuda" and torch.cuda.device_count() != 1:
            raise ResourceError(f"execution.device=cuda, but torch sees {torch.cuda.device_count()} GPUs in the actor")
        keep_freed_memory()
        self._worker = JobRunner(experiment, dataset, assignment, received)
        self._numerics = numerics(experiment, hardware_of(experiment.execution.device), self._worker.nets)
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
        number: int,
        calls: list[SentCall],
        *states: Any,
    ) -> Any:
        """Run a call batch; return ((its :class:`CallMeasure`, the calls' values), states of the first call, of the
        second, ...).

        ``common`` holds (shared, job), or a reference to it that is opened once a round and not once a call; ``number``
        is this actor's for the time being; ``states`` are those of the calls' clients that have one, in their order.
        """
        if token != self._token:
            [of_all] = common
            shared, self._job = ray.get(of_all) if isinstance(of_all, ray.ObjectRef) else of_all
            self._worker.receive(shared)
            self._token = token
        self._worker.actor = number
        began = time.perf_counter()
        values, new_states = [], list[Any]()
        next_state = iter(states)
        for call in calls:
            own = (next(next_state) if is_there else None for is_there in call.has_state)
            value = to_wire(getattr(self._worker, method)(self._job, *call.args, *own))
            if call.returned_states:  # the driver gets references to them, see resilient_calls
                padding = [None] * (call.returned_states - len(value.states))  # Ray is told the number beforehand
                new_states += [*value.states.values(), *padding]
                value.states = dict.fromkeys(value.states)
            values.append(value)
        measure = CallMeasure(time.perf_counter() - began, [size_of(value) for value in values], self._kind)
        return ((measure, values), *new_states) if new_states else (measure, values)


def size_of(value: Any) -> int:
    """Return the bytes of a result on its way; its arrays are not copied for that."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return len(rest) + sum(array.raw().nbytes for array in arrays)
