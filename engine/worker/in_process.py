"""The pool in this process: one worker in the caller's thread, or several in threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from engine.algorithm import Tensors
from engine.client.jobs import JobRunner
from engine.client.messages import Handle
from engine.data import Assignment, Dataset
from engine.experiment import Experiment
from engine.record.numerics import hardware_of, numerics
from engine.worker.pool import Call, Pool
from engine.worker.thread_count import workers_of

AHEAD = 16  # or two for each worker: calls whose results may wait for one before them


class InProcessPool(Pool):
    """Workers in this process: one in the caller's thread, the reference and the place for a debugger, or several in
    threads, as many as ``thread_count.py`` says."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
        count = workers_of(experiment, dataset.shape, len(dataset.classes), assignment)
        self._workers = [JobRunner(experiment, dataset, assignment) for _ in range(count)]
        threads = partial(torch.set_num_threads, experiment.execution.threads)
        self._threads = ThreadPoolExecutor(count, "worker", threads) if count > 1 else None
        self._numerics = numerics(experiment, hardware_of(experiment.execution.device), self._workers[0].nets)
        self.workers = self.side_by_side = count

    @property
    def numerics(self) -> dict[str, str]:
        return self._numerics

    def run(self, method: str, shared: Tensors, job: Any, calls: Sequence[Call], what: str) -> Iterator[Any]:
        workers = self._workers[: len(calls)]
        for worker in workers:
            worker.receive(shared)

        def work(number: int, call: Call) -> Any:
            self.deadline.check(f"{what}: {call.label}")
            return getattr(workers[number], method)(job, *call.args, *call.states)

        if self._threads is None or len(workers) < 2:
            yield from (work(0, call) for call in calls)
        else:
            yield from self._in_threads(self._threads, work, calls, len(workers))

    @staticmethod
    def _in_threads(
        threads: ThreadPoolExecutor, work: Callable[[int, Call], Any], calls: Sequence[Call], workers: int
    ) -> Iterator[Any]:
        """Yield the results of ``calls`` in order; the longest of the next ones starts first, on any idle worker."""
        idle, ahead = SimpleQueue[int](), max(AHEAD, 2 * workers)
        for number in range(workers):
            idle.put(number)

        def work_of_idle(call: Call) -> Any:
            number = idle.get()
            try:
                return work(number, call)
            finally:
                idle.put(number)

        first = sorted(range(min(ahead, len(calls))), key=lambda index: (-calls[index].cost, index))
        futures = {index: threads.submit(work_of_idle, calls[index]) for index in first}
        try:
            for index in range(len(calls)):
                result = futures[index].result()
                del futures[index]
                if index + ahead < len(calls):
                    futures[index + ahead] = threads.submit(work_of_idle, calls[index + ahead])
                yield result
        finally:  # of a run that is interrupted nothing goes on behind its back
            for future in futures.values():
                future.cancel()
            wait(futures.values())

    def fetch(self, handle: Handle) -> Tensors:
        return handle

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
