"""The binary tree along which a cohort's results are joined, so that bits do not depend on who joins them.

The clients of a cohort have places, 0, 1, 2, ... in their order. What comes of them is joined along the binary tree
over these places: 0 with 1, 2 with 3, their results with each other, and so on. Whoever has both halves of a subtree
may join them; whoever has not keeps them apart as :class:`Part`. So how a cohort is cut into blocks, who trains them,
in which order they end and who joins first changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

T = TypeVar("T")
Join = Callable[[T, T], T]  # may write into both


@dataclass(slots=True)
class Part(Generic[T]):
    """What has come of the places [first, first + places) of a cohort, a subtree."""

    first: int
    places: int  # a power of two
    value: T | None  # none: these clients have failed

    def with_right(self, right: Part[T], join: Join[T]) -> Part[T]:
        """Return the result of both's places; a client that failed leaves that of the others as it is."""
        if self.value is None or right.value is None:
            value = right.value if self.value is None else self.value
        else:
            value = join(self.value, right.value)
        return Part(self.first, self.places + right.places, value)

    def is_left_half_with(self, other: Part[T]) -> bool:
        """Return whether this and the other, in this order, are the halves of a subtree."""
        first_of_both = self.first % (2 * self.places) == 0
        return first_of_both and self.places == other.places and self.first + self.places == other.first


def joined(parts: Iterable[Part[T]], join: Join[T]) -> list[Part[T]]:
    """Return parts by their places, joined until no two of them are the halves of a subtree."""
    done = list[Part[T]]()
    for part in sorted(parts, key=attrgetter("first")):
        append(done, part, join)
    return done


def append(parts: list[Part[T]], part: Part[T], join: Join[T]) -> None:
    """Add a part behind others, joined with those that it is the right half with."""
    while parts and parts[-1].is_left_half_with(part):
        part = parts.pop().with_right(part, join)
    parts.append(part)


def whole(parts: Iterable[Part[T]], join: Join[T]) -> T | None:
    """Return what has come of a cohort of which all parts are there; places behind its last client join nothing."""
    total = Part[T](0, 0, None)
    for part in reversed(joined(parts, join)):
        total = part.with_right(total, join)
    return total.value
