"""The sums of a round's blocks, added on the nodes where they lie, so that the driver receives the last one alone.

Pure: it knows no Ray. Sums are added along a tree over the calls; which two are added first changes no bit, see
``engine/client/tree.py``. Neighbours are taken, since the sum of neighbours is one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RemoteSum:
    """A sum in Ray's object store, of the calls [first, first + places)."""

    first: int
    places: int  # a power of two; the last call may lie before its end
    ref: Any
    node: str | None  # of the actor that made it


@dataclass(frozen=True)
class Addition:
    """Two sums that an actor was sent for adding."""

    actor: int
    left: RemoteSum
    right: RemoteSum
    ref: Any  # to the sum of both
    since: float


class SumTree:
    """The sums that are there, and the additions that are under way."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._parts: dict[tuple[int, int], RemoteSum] = {}  # by first call and number of calls
        self._pairs: list[tuple[RemoteSum, RemoteSum]] = []  # that are to be added
        self.additions: dict[Any, Addition] = {}  # by the reference to the reply

    def put(self, first: int, places: int, ref: Any, node: str | None) -> None:
        """Take in the sum of ``places`` calls from ``first`` on."""
        while first and first + places >= self._calls and first % (2 * places) == 0:
            places *= 2  # there is no call behind it that it could wait for
        one, other = RemoteSum(first, places, ref, node), self._parts.pop((first ^ places, places), None)
        if other is None:
            self._parts[first, places] = one
        else:
            self._pairs.append((one, other) if first < other.first else (other, one))

    def take_pair(self) -> tuple[RemoteSum, RemoteSum] | None:
        """Take out two sums that are to be added; None where there are no neighbours yet."""
        return self._pairs.pop() if self._pairs else None

    def is_last(self, left: RemoteSum) -> bool:
        """Return whether the sum of this and the one after it is that of all calls."""
        return left.first == 0 and 2 * left.places >= self._calls

    def added(self, reply: Any, node: str | None) -> None:
        """Take in the sum of two."""
        addition = self.additions.pop(reply)
        self.put(addition.left.first, 2 * addition.left.places, addition.ref, node)

    def of(self, actor: int) -> list[Addition]:
        """Return the additions that are on an actor, as they were sent."""
        return [addition for addition in self.additions.values() if addition.actor == actor]

    def recall(self, actor: int) -> None:
        """Put back what was on an actor to be added."""
        for reply, addition in [*self.additions.items()]:
            if addition.actor == actor:
                del self.additions[reply]
                self._pairs.append((addition.left, addition.right))

    def forget(self, reply: Any) -> list[int]:
        """Return the calls whose sums were to be added; one of the two is lost, and both are made again."""
        addition = self.additions.pop(reply)
        return [call for one in (addition.left, addition.right) for call in self._within(one)]

    def whole(self) -> RemoteSum | None:
        """Return the sum of all calls, if it is there."""
        return next((one for one in self._parts.values() if one.places >= self._calls), None)

    def forget_whole(self) -> list[int]:
        """Return all calls, whose sum is lost."""
        self._parts.clear()
        return [*range(self._calls)]

    def _within(self, one: RemoteSum) -> range:
        return range(one.first, min(one.first + one.places, self._calls))
