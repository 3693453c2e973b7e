"""Which tests are of the long tier, and which rows of a long table are in the short one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Folders and files whose tests are of the long tier, whole: faults, servers, browsers, clusters of several processes.
# Single tests are marked where they stand.
LONG = tuple(
    Path(__file__).parents[1] / name
    for name in (
        "bad_input/test_no_hang.py",
        "benchmarks/test_trackers.py",
        "card",
        "faults",
        "lab/test_report_in_browser.py",
        "ray/test_cluster.py",
        "ray/test_loopback.py",
        "ray/test_nothing_shared.py",
        "ray/test_small_store.py",
        "ray/test_two_at_once.py",
        "test_site.py",
        "trackers/test_trackers.py",
    )
)

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


@cache
def is_long(path: Path) -> bool:
    """Return whether all tests of a file are of the long tier."""
    return any(long == path or long in path.parents for long in LONG)
