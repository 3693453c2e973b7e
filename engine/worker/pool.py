"""The interface of a pool of workers: calls in, results out in the order of the calls.

A pool gets a list of calls to one method of :class:`~engine.client.jobs.JobRunner` and yields their results in the
order of the calls, whatever order they finish in. Since each result is yielded as soon as those before it are there,
a driver takes it in while workers train, and holds few at once. The pools: ``in_process.py`` and ``ray/pool.py``.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.algorithm import Tensors
from engine.base.errors import MachineFailed
from engine.client.messages import Handle
from engine.worker.stopwatch import Stopwatch

ADDED_APART = 1024 * 1024  # bytes of a broadcast from which on actors add, and not the driver: sums are twice as large


@dataclass(frozen=True)
class Call:
    """One block's work: ``worker.method(job, *args, *states)``."""

    label: str  # for messages: "clients 3, 17"
    args: tuple[Any, ...]
    cost: float = 1.0  # expected work, in any unit; the longest start first
    states: tuple[Handle | None, ...] = ()
    returned_states: int = 0  # at most, of the value's; a pool may leave them where they are and put handles there


class Deadline:
    """The time by which a round, and what is due after it, must be over."""

    def __init__(self, round: int, seconds: float | None) -> None:
        """Begin to count now; ``seconds``: None for no deadline."""
        self._round = round
        self._seconds = math.inf if seconds is None else seconds
        self._began = time.monotonic()

    def left(self) -> float:
        """Return the seconds that are left, negative once it has passed."""
        return self._began + self._seconds - time.monotonic()

    def check(self, waiting_for: str) -> None:
        """Raise a :class:`MachineFailed` that says what was waited for if the deadline has passed."""
        if self.left() < 0:
            raise MachineFailed(
                f"round {self._round} took longer than execution.round_timeout={self._seconds:g} s, and waited for "
                f"{waiting_for}; raise it, and resume from the last checkpoint"
            )


class Pool(ABC):
    """Workers, wherever they are."""

    deadline = Deadline(0, None)  # of what is run now
    watch = Stopwatch()  # of the round that is run now
    workers: int  # in all
    side_by_side: int  # workers that share a card, or else a machine's memory, at most

    @property
    @abstractmethod
    def numerics(self) -> dict[str, str]:
        """Libraries and hardware that the workers compute with, see :func:`engine.record.numerics.numerics`."""

    @abstractmethod
    def run(self, method: str, shared: Tensors, job: Any, calls: Sequence[Call], what: str) -> Iterator[Any]:
        """Yield what ``calls`` return, in their order; ``what`` says in messages what is waited for.

        ``shared`` and ``job`` are the same for all calls and travel once. No worker writes to ``shared``, to what is in
        a call, or to a state: it makes a copy of what it is given.
        """

    @abstractmethod
    def fetch(self, handle: Handle) -> Tensors:
        """Return the state behind a handle."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the workers; nothing of them stays behind."""
