"""Which rows of a long table are in the short tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

# Of each way of using the engine one: nothing of their own, states of clients, frozen models, exchanges, phases, a
# network of the server's. Every algorithm is tested under one executor; these under all.
SIX = ("fedavg", "scaffold", "moon", "fedmix", "fedbabu", "cbfl")


def six(rows: Iterable[Any]) -> list[Any]:
    """The rows (names of algorithms, or tuples that begin with one); those of others are of the long tier."""
    return [row if name_of(row) in SIX else pytest.param(*as_tuple(row), marks=pytest.mark.long) for row in rows]


def name_of(row: Any) -> str:
    return as_tuple(row)[0]


def as_tuple(row: Any) -> tuple[Any, ...]:
    return row if isinstance(row, tuple) else (row,)
