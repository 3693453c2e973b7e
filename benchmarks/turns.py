"""Jobs that get ready side by side, each in a process of its own, and are timed one after the other, alone.

A job comes in parts. What takes long and is not timed, like compiling, is done by all at once; a part that is timed
begins when nobody is at work, or when those that are have been waited for once. A job that fails, or is never ready,
costs the others nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from benchmarks.worker import Worker


@dataclass(frozen=True)
class Job:
    key: str
    parts: tuple[str, ...]  # names of the values that ``work`` yields; the first is not timed
    work: Callable[..., Iterator[dict[str, Any]]]
    arguments: tuple[Any, ...] = ()


@dataclass(eq=False)
class _Begun:
    job: Job
    worker: Any
    done: int = 0  # parts
    busy: bool = True
    late: bool = False  # others have waited for it once

    @property
    def part(self) -> str:
        return self.job.parts[self.done]

    def go_on(self) -> None:
        self.worker.go_on()
        self.busy = True


class Turns:
    """Does ``jobs``, the most important first, until none is left or time is over.

    alone: the parts that are timed. left: seconds until the end. keep: is given a job, one of its parts and what that
    came to, at once; one that was timed while others were at work has their keys under "beside". at_once: processes.
    patience: seconds for which the others wait for one that is not ready. longest: of a part that is timed. start:
    makes a job's worker. ready: those of some pipes that have an answer within some seconds.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        alone: Collection[str],
        left: Callable[[], float],
        keep: Callable[[Job, str, dict[str, Any]], None],
        at_once: int,
        patience: float,
        longest: float,
        start: Callable[[Job], Any] = lambda job: Worker(job.work, *job.arguments),
        ready: Callable[[Sequence[Any], float], Collection[Any]] = wait,
    ) -> None:
        self._waiting, self._begun = deque(jobs), list[_Begun]()
        self._alone, self._left, self._keep = alone, left, keep
        self._at_once, self._patience, self._longest = at_once, patience, longest
        self._start, self._ready = start, ready

    def run(self) -> None:
        try:
            while (self._waiting or self._begun) and self._left() > 0:
                while self._waiting and len(self._begun) < self._at_once:
                    job = self._waiting.popleft()
                    self._begun.append(_Begun(job, self._start(job)))
                self._side_by_side()
                for one in [one for one in self._begun if not one.busy]:
                    while one in self._begun and one.part in self._alone and self._left() > 0:
                        one.go_on()
                        self._take(one, min(self._longest, self._left()))
        finally:
            for one in self._begun:
                if one.busy:
                    self._keep(one.job, one.part, {"failed": "was not ready in time"})
                one.worker.close(0.0 if one.busy else 5.0)

    def _side_by_side(self) -> None:
        """Let all do what is not timed, until each is ready or was waited for."""
        for one in self._begun:
            if not one.busy and one.part not in self._alone:
                one.go_on()
        end = self._left() - self._patience
        while self._awaited() and self._left() > max(0.0, end):
            busy = [one for one in self._begun if one.busy]
            ready = self._ready([one.worker.pipe for one in busy], self._left() - max(0.0, end))
            for one in busy:
                if one.worker.pipe in ready:
                    self._take(one, 0.0)
                    if one in self._begun and one.part not in self._alone:
                        one.go_on()
        for one in self._begun:
            one.late = one.busy

    def _awaited(self) -> bool:
        """Whether somebody is at work for whom nobody has waited yet, or nobody is ready."""
        return any(one.busy and not one.late for one in self._begun) or bool(
            self._begun and all(one.busy for one in self._begun)
        )

    def _take(self, one: _Begun, limit: float) -> None:
        beside = [other.job.key for other in self._begun if other.busy and other is not one]
        answer = one.worker.answer(limit)
        part, one.busy, one.late = one.part, False, False
        one.done += 1
        if "failed" in answer or one.done == len(one.job.parts):
            self._begun.remove(one)
            one.worker.close()
        noted = {"beside": beside} if part in self._alone and beside else {}
        self._keep(one.job, part, {**answer, **noted})
