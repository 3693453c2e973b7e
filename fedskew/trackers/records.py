"""What a tracker is told of a run or a sweep, in words that all trackers share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from engine.base.opening import read_bytes

Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class Point:
    """One number of a run."""

    key: str  # table and column: rounds/loss_after
    step: int  # the round, global
    value: float
    time: float  # seconds since 1970 at which its row came to be


@dataclass(frozen=True)
class Record:
    """A run, a trial of a sweep, or the sweep above its trials."""

    key: str  # two folders of equal results have the same one
    name: str
    params: Mapping[str, Any]  # the resolved config by dotted keys
    tags: Mapping[str, str]
    started: float  # seconds since 1970
    parent: str | None = None  # the key of the sweep that a trial belongs to
    group: str | None = None  # the name of that sweep


@dataclass(frozen=True)
class End:
    """What is known of a run when it is over, or of a sweep."""

    status: Status
    time: float  # seconds since 1970
    step: int  # its last round
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, ``summary/accuracy``
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Sequence[Path] = ()

    @cached_property
    def digest(self) -> str:
        """16 hex digits of all of it but times: who has an end of this digest has this end."""
        contents = [(path.name, hashlib.sha256(read_bytes(path)).hexdigest()) for path in self.artifacts]
        text = json.dumps([self.status, self.step, dict(self.figures), dict(self.tags), contents], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Tracker(Protocol):
    """A place that runs are told to. Its errors are its library's own."""

    def begin(self, record: Record, points: Sequence[Point]) -> Sequence[Point]:
        """Find the record, or make it; return those of ``points`` that it does not have yet."""
        ...

    def log(self, record: Record, points: Sequence[Point]) -> None:
        """Add points that the record does not have yet."""
        ...

    def end(self, record: Record, end: End) -> None:
        """Tell how it ended, unless that is known already."""
        ...

    def close(self) -> None:
        """Write what is not yet written."""
        ...


def lacking(points: Sequence[Point], known: set[tuple[str, int]]) -> list[Point]:
    """Return the points whose key and step are not among the ``known`` ones."""
    return [point for point in points if (point.key, point.step) not in known]
