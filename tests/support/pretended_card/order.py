"""What happens before what: the streams of the card and the host, by vector clocks.

Work on one stream is done in order. Work on two streams is in no order unless one has waited for an event of the other,
or the host has waited in between. Two accesses of one memory, one of them a write, that are in no order are a race,
which on a card shows itself as wrong numbers now and then, and here at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Clock = dict[Any, int]  # stream -> how much of its work is done


class Race(AssertionError):
    """Two accesses of one memory that nothing puts in order."""


@dataclass(eq=False)
class Use:
    """Who has read and written a memory last."""

    written: tuple[Any, int] | None = None  # stream, time
    read: Clock = field(default_factory=dict)
    home: Any = None  # the stream whose work may get the memory next when it is freed; None where nobody's does
    order: weakref.ref[Order] | None = None  # in which it has a home

    def kept_for(self, stream: Any) -> None:
        self.home = None

    def end(self) -> None:
        """The memory is freed."""
        order = self.order() if self.order is not None else None
        if order is not None and self.home is not None:
            order.freed(self)


class Order:
    """The clocks of all streams, and of the host."""

    def __init__(self) -> None:
        self._clocks: dict[Any, Clock] = {}
        self.host: Clock = {}
        self._freed: list[str] = []  # too early

    def of(self, stream: Any) -> Clock:
        """What is done before the next work of a stream."""
        clock = self._clocks.get(stream)
        if clock is None:
            clock = self._clocks[stream] = dict(self.host)
        return clock

    def act(self, stream: Any, what: Any, reads: Iterable[Use], writes: Iterable[Use] = ()) -> int:
        """Put work on a stream; return its time there. Raises :class:`Race`."""
        if self._freed:
            raise Race(self._freed.pop())
        clock = self.of(stream)
        now = clock[stream] = clock.get(stream, 0) + 1
        for use in reads:
            if use.written is not None:
                _after(clock, stream, use.written, what, "reads what another stream writes")
            use.read[stream] = now
        for use in writes:
            if use.written is not None:
                _after(clock, stream, use.written, what, "writes where another stream writes")
            for read in use.read.items():
                _after(clock, stream, read, what, "writes what another stream still reads")
            use.written, use.read = (stream, now), {}
        return now

    def wait(self, stream: Any, for_clock: Mapping[Any, int]) -> None:
        """Let a stream's next work come after what another clock has."""
        _join(self.of(stream), for_clock)

    def host_waits(self, for_clock: Mapping[Any, int]) -> None:
        """Let the host wait; whatever it starts later comes after that, on any stream."""
        _join(self.host, for_clock)
        for clock in self._clocks.values():
            _join(clock, for_clock)

    def host_waits_for_all(self) -> None:
        for clock in list(self._clocks.values()):
            self.host_waits(dict(clock))

    def is_done(self, stream: Any, time: int) -> bool:
        """Return whether the host knows that work to be done."""
        return self.host.get(stream, 0) >= time

    def freed(self, use: Use) -> None:
        clock = self.of(use.home)
        accesses = [*use.read.items(), *([use.written] if use.written is not None else [])]
        if any(stream is not use.home and clock.get(stream, 0) < time for stream, time in accesses):
            self._freed.append(
                "memory is freed while another stream still has work with it; keep the tensor until the streams have "
                "joined, or tell by tensor.record_stream"
            )

    def check_freed(self) -> None:
        if self._freed:
            raise Race(self._freed.pop())


def _after(clock: Clock, stream: Any, before: tuple[Any, int], what: Any, why: str) -> None:
    other, time = before
    if other is not stream and clock.get(other, 0) < time:
        raise Race(f"{what} {why}, and has not waited for it")


def _join(clock: Clock, other: Mapping[Any, int]) -> None:
    for stream, time in other.items():
        if clock.get(stream, 0) < time:
            clock[stream] = time
