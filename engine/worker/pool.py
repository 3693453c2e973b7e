"""Where blocks run. One interface, two places: this process (here) and Ray actors (``ray_pool.py``).

A pool gets a list of calls to one method of :class:`~engine.client.jobs.JobRunner` and yields their results in the
order of the calls, whatever order they finish in. That order is all that the sums of a round depend on; and since
each result is yielded as soon as those before it are there, a driver adds while workers train, and holds few results
at once.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from engine.base.errors import RunError
from engine.client.blocks import AUTO_BLOCKS
from engine.client.entries import Arrays
from engine.client.jobs import JobRunner
from engine.data import Assignment, Dataset
from engine.experiment import Experiment
from engine.record.hashing import hardware_of, numerics
from engine.record.states import Handle
from engine.worker.thread_count import workers_of

AHEAD = AUTO_BLOCKS  # calls whose results may wait for one before them, in this process


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


class Deadline:
    """When a round, and what is due after it, must be over."""

    def __init__(self, round: int, seconds: float | None) -> None:
        self._round = round
        self._seconds = math.inf if seconds is None else seconds
        self._began = time.monotonic()

    def left(self) -> float:
        """Seconds."""
        return self._began + self._seconds - time.monotonic()

    def check(self, waiting_for: str) -> None:
        """Raise a :class:`RunError` where it has passed."""
        if self.left() < 0:
            raise RunError(
                f"round {self._round} took longer than execution.round_timeout={self._seconds:g} s, and waited for "
                f"{waiting_for}; raise it, and resume from the last checkpoint"
            )


class Pool(ABC):
    """Workers, wherever they are."""

    deadline = Deadline(0, None)  # of what is run now
    side_by_side: int  # workers that share a card, or else a machine's memory, at most

    @property
    @abstractmethod
    def numerics(self) -> dict[str, str]:
        """What they compute with: see stages.numerics."""

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
    """Workers in this process: one in the caller's thread, the reference and the place for a debugger, or several in
    threads, see workers.py."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
        count = workers_of(experiment, dataset.shape, len(dataset.classes), assignment)
        self._workers = [JobRunner(experiment, dataset, assignment) for _ in range(count)]
        threads = partial(torch.set_num_threads, experiment.execution.threads)
        self._threads = ThreadPoolExecutor(count, "worker", threads) if count > 1 else None
        self._numerics = numerics(experiment, hardware_of(experiment.execution.device))
        self.side_by_side = count

    @property
    def numerics(self) -> dict[str, str]:
        return self._numerics

    def run(self, method: str, shared: Arrays, job: Any, calls: Sequence[Call], what: str) -> Iterator[Result]:
        workers = self._workers[: len(calls)]
        for worker in workers:
            worker.receive(shared)

        def work(number: int, call: Call) -> Result:
            self.deadline.check(f"{what}: {call.label}")
            value = getattr(workers[number], method)(job, *call.args, *call.states)
            first, *handles = value if call.handles else (value,)
            return Result(first, tuple(handles), actor=0)

        if self._threads is None or len(workers) < 2:
            yield from (work(0, call) for call in calls)
        else:
            yield from self._in_threads(self._threads, work, calls, len(workers))

    @staticmethod
    def _in_threads(
        threads: ThreadPoolExecutor, work: Callable[[int, Call], Result], calls: Sequence[Call], workers: int
    ) -> Iterator[Result]:
        """The longest of the next calls first, by whichever worker is idle."""
        idle = SimpleQueue[int]()
        for number in range(workers):
            idle.put(number)

        def work_of_idle(call: Call) -> Result:
            number = idle.get()
            try:
                return work(number, call)
            finally:
                idle.put(number)

        first = sorted(range(min(AHEAD, len(calls))), key=lambda index: (-calls[index].cost, index))
        futures = {index: threads.submit(work_of_idle, calls[index]) for index in first}
        try:
            for index in range(len(calls)):
                result = futures[index].result()
                del futures[index]
                if index + AHEAD < len(calls):
                    futures[index + AHEAD] = threads.submit(work_of_idle, calls[index + AHEAD])
                yield result
        finally:  # of a run that is interrupted nothing goes on behind its back
            for future in futures.values():
                future.cancel()
            wait(futures.values())

    def fetch(self, handle: Handle) -> Arrays:
        return handle

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
