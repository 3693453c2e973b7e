"""What the host asks of the card, counted, and by which line of the project."""

from __future__ import annotations

import sys
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
OWN = str(Path(__file__).parent)
PACKAGES = tuple(f"{ROOT}/{package}/" for package in ("engine", "algorithms", "fedskew", "benchmarks", "tests"))

Place = tuple[str, str]  # what, and the line


@dataclass
class Counts:
    """Numbers since the card came, or between two moments."""

    launches: int = 0  # operations that the host starts, copies included; views and allocations are none
    replays: int = 0  # of graphs
    nodes: int = 0  # operations that replays start
    waits: Counter[Place] = field(default_factory=Counter)  # of the host for the card
    uploads: Counter[Place] = field(default_factory=Counter)  # from the host's memory, those that wait among them
    operations: Counter[Place] = field(default_factory=Counter)  # launches, by operation and line

    def copy(self) -> Counts:
        return deepcopy(self)

    def __sub__(self, before: Counts) -> Counts:
        return Counts(*(_minus(getattr(self, one.name), getattr(before, one.name)) for one in fields(self)))

    @property
    def totals(self) -> dict[str, int]:
        """Each as one number."""
        return {
            "launches": self.launches,
            "replays": self.replays,
            "waits": self.waits.total(),
            "uploads": self.uploads.total(),
        }


def _minus(now: Any, before: Any) -> Any:
    if isinstance(now, int):
        return now - before
    found = Counter(now)
    found.subtract(before)
    return Counter({place: count for place, count in found.items() if count})


def line() -> str:
    """The innermost line of the project that is being run, "engine/data/samples/batches.py:100"."""
    frame = sys._getframe(1)
    while frame is not None:
        name = _inside(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


@cache
def _inside(file: str) -> str:
    """The file's name within the project; empty for others' files and for those of the card itself."""
    return file.removeprefix(f"{ROOT}/") if file.startswith(PACKAGES) and not file.startswith(OWN) else ""
