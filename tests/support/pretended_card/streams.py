"""Streams and events of the card, by torch's names for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.pretended_card.backend import DEVICE
from tests.support.pretended_card.order import Clock

if TYPE_CHECKING:
    from tests.support.pretended_card.card import Card


class Streams:
    """The streams of the present card, and which of them is the current one."""

    card: Card  # the present one

    def __init__(self) -> None:
        self.default = Stream()
        self.current = self.default


class Stream:
    """``torch.cuda.Stream``. It belongs to no card, so that one that is kept in a cache works on the next card, too."""

    device = DEVICE

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority
        self._outer: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        card = Streams.card
        card.order_of(other).wait(self, card.order_of(other).of(other))
        card.joins_capture(self, other)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        found = event or Event()
        found.record(self)
        return found

    def synchronize(self) -> None:
        card = Streams.card
        card.host_waits("Stream.synchronize", self)

    def query(self) -> bool:
        return all(Streams.card.order.is_done(*one) for one in Streams.card.order.of(self).items())

    def __enter__(self) -> Stream:
        self._outer.append(Streams.card.streams.current)
        Streams.card.streams.current = self
        return self

    def __exit__(self, *_: Any) -> None:
        Streams.card.streams.current = self._outer.pop()


class Event:
    """``torch.cuda.Event``: what a stream had to do when it was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self._clock: Clock | None = None
        self._stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        card = Streams.card
        self._stream = stream or card.streams.current
        self._clock = dict(card.order_of(self._stream).of(self._stream))

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait; for nothing, if the event was not recorded, as on a card."""
        if self._clock is not None and self._stream is not None:
            card, waiting = Streams.card, stream or Streams.card.streams.current
            card.order_of(self._stream).wait(waiting, self._clock)
            card.joins_capture(waiting, self._stream)

    def synchronize(self) -> None:
        if self._clock is not None:
            Streams.card.host_waits("Event.synchronize", self._clock)

    def query(self) -> bool:
        return all(Streams.card.order.is_done(*one) for one in (self._clock or {}).items())


@contextmanager
def stream(of: Stream | None) -> Iterator[None]:
    """``torch.cuda.stream``."""
    if of is None:
        yield
        return
    with of:
        yield
