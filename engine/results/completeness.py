"""How complete a sweep is: trials planned, ended, missing and damaged, so that no part of it passes for all.

A *missing* trial is planned and has no record: it has not begun, or its folder is gone. A *damaged* one has files that
cannot be read, or that have lost rows; it has no figures. ``fedskew resume`` computes both, and goes on with those that
are *running*: under way, or killed. Failed and stopped trials have ended: they are no gaps.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENDED = ("finished", "stopped", "failed")
GAPS = ("missing", "damaged", "running")
STATUSES = (*ENDED, "running", "damaged", "missing")
OTHERS = STATUSES[1:]  # those without a value
MOST_NAMES = 8
NOT_PLANNED = "how many trials were planned is not recorded"


@dataclass(frozen=True)
class Completeness:
    """What of a sweep's plan is there."""

    planned: int | None = None  # None: nobody knows
    statuses: Mapping[str, int] = field(default_factory=dict)  # of the planned trials, in the order of STATUSES
    missing: tuple[str, ...] = ()  # names
    nameless: tuple[str, ...] = ()  # missing or damaged ones whose settings are not known: they are in no table
    damage: Mapping[str, str] = field(default_factory=dict)  # trial -> what of it cannot be read
    problem: str = ""  # of the plan itself
    files: tuple[str, ...] = ()  # the user's own that the sweep needs, where it is incomplete

    @property
    def complete(self) -> bool:
        return (
            self.planned is not None and not self.problem and not any(map(self.statuses.get, GAPS)) and not self.damage
        )

    @property
    def here(self) -> int:
        """The number of planned trials that have a record."""
        return sum(self.statuses.values()) - self.statuses.get("missing", 0)

    @property
    def counts(self) -> str:
        """The trials by what became of them: ``20 finished, 4 missing``."""
        return ", ".join(f"{count:,} {status}" for status, count in self.statuses.items() if count) or "none has begun"

    @property
    def figure(self) -> str:
        """The number of trials: ``24``, or ``20 of 24 planned``."""
        if self.planned is None or self.here == self.planned:
            return f"{self.here:,}"
        return f"{self.here:,} of {self.planned:,} planned"

    def sentences(self, folder: Path | None = None) -> list[str]:
        """Say what is not there and how to repair it; nothing of a sweep that is complete.

        ``folder``: names it in the command; none: "fedskew resume" and the folder's place is the reader's.
        """
        if self.complete:
            return []
        again = (
            f"fedskew resume {shlex.quote(str(folder))}" if folder is not None else "fedskew resume with this folder"
        )
        given = shlex.join([word for file in self.files for word in ("--with", file)])
        again += (f" {given}" if folder is not None else f" and {given}") if given else ""
        said = [f"Incomplete: {self.figure} trials are here ({self.counts})"]
        if self.planned is None:
            said[0] += f"; {NOT_PLANNED}"
        if self.missing:
            said.append(f"Missing: {named(self.missing)}")
        if self.problem:
            said.append(self.problem)
        said += [f"Trial {trial}: {what}" for trial, what in list(self.damage.items())[:MOST_NAMES]]
        if len(self.damage) > MOST_NAMES:
            said.append(f"{len(self.damage) - MOST_NAMES:,} more trials are damaged")
        said.append(f"{again} computes what is not there and leaves the rest as it is")
        return [f"{sentence}." for sentence in said]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "complete": self.complete,
            "planned": self.planned,
            "here": self.here,
            "statuses": dict(self.statuses),
            "missing": list(self.missing),
            "damage": dict(self.damage),
            "problem": self.problem,
        }


def by_status(statuses: Iterable[str]) -> dict[str, int]:
    """Count trials by status, in the order of :data:`STATUSES`."""
    counts = Counter(statuses)
    return {status: counts[status] for status in STATUSES if counts[status]}


def lacks(rows: Iterable[Mapping[str, Any]], nameless: int) -> str:
    """Say what is lacking among trials that are compared: "" if nothing is.

    rows: those trials, of the trials table. nameless: missing trials that nobody knows the settings of.
    """
    rows = list(rows)
    parts = []
    for status in GAPS:
        names = [str(row["trial"]) for row in rows if row["status"] == status and "trial" in row]
        if names:
            verb = "is" if len(names) == 1 else "are"
            parts.append(f"{len(names):,} {verb} {status} ({named(names)})")
    if parts:
        parts[0] = f"of the {len(rows):,} planned trials that this rests on {parts[0]}"
    if nameless:
        parts.append(f"{nameless:,} missing or damaged trials, whose settings are not known, may belong here")
    return f"incomplete: {'; '.join(parts)}" if parts else ""


def named(trials: Iterable[str]) -> str:
    """List names, the first few of many."""
    trials = list(trials)
    more = len(trials) - MOST_NAMES
    return ", ".join(trials[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
