"""Where blocks run. One interface, two places: this process (here) and Ray actors (``ray_pool.py``).

A pool gets a list of calls to one method of :class:`~engine.worker.Worker` and yields their results in the order of
the calls, whatever order they finish in. That order is all that the sums of a round depend on; and since each result
is yielded as soon as those before it are there, a driver adds while workers train, and holds few results at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.data import Assignment, Dataset
from engine.entries import Arrays
from engine.experiment import Experiment
from engine.stages import hardware_of, numerics
from engine.states import Handle
from engine.worker import Worker


@dataclass(frozen=True)
class Call:
    """One block's work: ``worker.method(job, *args, *states)``."""

    label: str  # for messages: "clients 3, 17"
    args: tuple[Any, ...]
    cost: float = 1.0  # expected work, in any unit; the longest start first
    states: tuple[Handle | None, ...] = ()
    handles: int = 0  # how many results after the first stay where they are, as handles


@dataclass(frozen=True)
class Result:
    """What a call returned, and where."""

    value: Any
    handles: tuple[Handle, ...]
    actor: int


class Pool(ABC):
    """Workers, wherever they are."""

    numerics: dict[str, str]  # what they compute with: see stages.numerics
    side_by_side: int  # workers that share a card, or else a machine's memory, at most

    @abstractmethod
    def run(self, method: str, shared: Arrays, job: Any, calls: Sequence[Call], what: str) -> Iterator[Result]:
        """The results of ``calls`` in their order; ``what`` says in messages what is waited for.

        ``shared`` and ``job`` are the same for all calls and travel once.
        """

    @abstractmethod
    def fetch(self, handle: Handle) -> Arrays:
        """The arrays behind a handle."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the workers; nothing of them stays behind."""


class InProcessPool(Pool):
    """One worker in this process: the reference, and the place for a debugger."""

    side_by_side = 1

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
        self._worker = Worker(experiment, dataset, assignment)
        self.numerics = numerics(experiment, hardware_of(experiment.execution.device))

    def run(self, method: str, shared: Arrays, job: Any, calls: Sequence[Call], what: str) -> Iterator[Result]:
        self._worker.receive(shared)
        for call in calls:
            value = getattr(self._worker, method)(job, *call.args, *call.states)
            first, *handles = value if call.handles else (value,)
            yield Result(first, tuple(handles), actor=0)

    def fetch(self, handle: Handle) -> Arrays:
        return handle

    def close(self) -> None:
        pass
