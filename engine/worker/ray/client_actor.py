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

    from engine.base.devices import device_class
    from engine.base.errors import ResourceError
    from engine.client.jobs import JobRunner
    from engine.client.sums import WeightedSum
    from engine.data import Assignment, Dataset
    from engine.experiment import Experiment
    from engine.record.numerics import hardware_of, numerics
    from engine.worker.ray.wire import CallMeasure, SentCall, from_wire, received, to_wire


class ClientActor:
    """The actor around a worker."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment, share: float) -> None:
        self._cards = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if share and len(self._cards) != 1:
            raise ResourceError(f"an actor with a GPU share of {share} was given the cards {self._cards}, not one")
        if experiment.execution.device == "cuda" and torch.cuda.device_count() != 1:
            raise ResourceError(f"execution.device=cuda, but torch sees {torch.cuda.device_count()} GPUs in the actor")
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
        """Run a call batch; return ((its :class:`CallMeasure`, the calls' values), the sums of the calls where they
        are to be apart, states of the first call, of the second, ...).

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
        values, sums, new_states, sizes = [], list[Any](), list[Any](), list[int]()
        next_state = iter(states)
        for call in calls:
            own = (next(next_state) if is_there else None for is_there in call.has_state)
            value = to_wire(getattr(self._worker, method)(self._job, *call.args, *own))
            if call.returned_states:  # the driver gets references to them, see resilient_calls
                padding = [None] * (call.returned_states - len(value.states))  # Ray is told the number beforehand
                new_states += [*value.states.values(), *padding]
                value.states = dict.fromkeys(value.states)
            if call.sum_apart:
                sums.append(value.sum)
                value.sum = WeightedSum()
            sizes.append(size_of(value))
            values.append(value)
        measure = CallMeasure(time.perf_counter() - began, sizes, self._kind)
        apart = [*sums, *new_states]
        return ((measure, values), *apart) if apart else (measure, values)

    def add(self, left: WeightedSum, right: WeightedSum, last: bool) -> tuple[None, WeightedSum]:
        """Return nothing, which is to say that they are added, and the sum; ``last``: it is that of the cohort."""
        total: WeightedSum = from_wire(left)
        total.merge(from_wire(right))
        if last:
            total.whole()
        return None, to_wire(total)


def size_of(value: Any) -> int:
    """Return the bytes of a result on its way; its arrays are not copied for that."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return len(rest) + sum(array.raw().nbytes for array in arrays)
