"""Where blocks run. One interface, two places: this process (here) and Ray actors (``ray_pool.py``).

A pool gets a list of calls to one method of :class:`~engine.worker.Worker` and yields their results in the order of
the calls, whatever order they finish in. That order is all that the sums of a round depend on; and since each result
is yielded as soon as those before it are there, a driver adds while workers train, and holds few results at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
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
    """Workers in this process, each in a thread of its own: torch lets go of the interpreter while it computes.

    One worker works in the caller's thread: the reference, and the place for a debugger.
    """

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
        count = int(__import__("os").environ.get("WORKERS", "1"))
        self._workers = [Worker(experiment, dataset, assignment) for _ in range(count)]
        self._threads = ThreadPoolExecutor(count, "worker") if count > 1 else None
        self.numerics = numerics(experiment, hardware_of(experiment.execution.device))
        self.side_by_side = count

    def run(self, method: str, shared: Arrays, job: Any, calls: Sequence[Call], what: str) -> Iterator[Result]:
        count = min(len(self._workers), len(calls))
        for worker in self._workers[:count]:
            worker.receive(shared)
        if count == 1 or self._threads is None:
            for call in calls:
                yield _result(call, self._work(method, job, call, self._workers[0]))
            return
        idle = SimpleQueue[Worker]()
        for worker in self._workers:
            idle.put(worker)

        def work(call: Call) -> Any:
            worker = idle.get()
            try:
                return self._work(method, job, call, worker)
            finally:
                idle.put(worker)

        futures = {}
        for index in sorted(range(len(calls)), key=lambda index: -calls[index].cost):
            futures[index] = self._threads.submit(work, calls[index])
        try:
            for index, call in enumerate(calls):
                yield _result(call, futures.pop(index).result())
        finally:
            for future in futures.values():
                future.cancel()
            wait(futures.values())

    @staticmethod
    def _work(method: str, job: Any, call: Call, worker: Worker) -> Any:
        return getattr(worker, method)(job, *call.args, *call.states)

    def fetch(self, handle: Handle) -> Arrays:
        return handle

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()


def _result(call: Call, value: Any) -> Result:
    first, *handles = value if call.handles else (value,)
    return Result(first, tuple(handles), actor=0)
