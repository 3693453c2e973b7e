"""The stopwatch of a round, whose time is in one phase at each moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.record.columns import PHASES, Row


class Stopwatch:
    """The seconds of a round by phase, see :data:`~engine.record.columns.PHASES`; the first one begins now."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.bytes_in = 0
        self._phase, self._since = "draw", time.perf_counter()

    def turn(self, phase: str) -> str:
        """Go over to ``phase``; the one that it was."""
        now, before = time.perf_counter(), self._phase
        self.seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Be in ``phase``, and then again in the one that it was."""
        before = self.turn(phase)
        try:
            yield
        finally:
            self.turn(before)

    def row(self) -> Row:
        """Return what the round took so far, as columns of ``rounds.parquet``."""
        self.turn(self._phase)
        alone = sum(self.seconds.values()) - self.seconds["evaluation"]
        columns = {f"{phase}_seconds": seconds for phase, seconds in self.seconds.items()}
        return {"seconds": alone, **columns, "bytes_in": self.bytes_in}
