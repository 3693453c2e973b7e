"""What goes wrong in a run, and when, drawn from a seed.

A schedule is a list of launches of the command line. In each but the last one fault happens; between two, the newest
checkpoint may be damaged. Moments are parts of the events of the undisturbed run (``inject.py``), counted over all
launches, so that they do not depend on how fast a machine is, and are reached.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from tests.faults.inject import EVENTS, Event
from tests.faults.workloads import WORKLOADS

Where = Literal["in process", "actors", "two nodes"]
Kind = Literal[
    "kill",  # SIGKILL of the process that was started
    "interrupt",  # SIGINT of it
    "kill client",  # SIGKILL of a client actor
    "kill driver",  # of the driver actor
    "hang client",  # SIGSTOP of a client actor, which is never woken
    "lose node",
    "file limit",  # RLIMIT_FSIZE: a write fails where a file gets longer
    "small disk",  # a tmpfs that gets full
    "fsync",  # ENOSPC when a write is flushed
    "replace",  # EIO when a file is put in its place
    "raise",  # in a client
    "nan",  # of a client
]
Damage = Literal["none", "truncate", "flip", "empty", "lose state", "leftovers"]
KINDS: dict[Where, tuple[Kind, ...]] = {
    "in process": ("kill", "interrupt", "file limit", "small disk", "fsync", "replace", "raise", "nan"),
    "actors": ("kill", "interrupt", "kill client", "kill driver", "hang client", "fsync", "replace", "raise", "nan"),
    "two nodes": ("lose node",),
}
SHARES: dict[Where, float] = {"in process": 0.55, "actors": 0.33, "two nodes": 0.12}
GO_ON: tuple[Kind, ...] = ("kill client", "hang client", "lose node")  # what most launches survive
AT_START: tuple[Kind, ...] = ("kill", "interrupt", "lose node")  # possible before anything runs
OF_CLIENTS: tuple[Kind, ...] = ("kill client", "hang client", "raise", "nan")
DAMAGES: tuple[Damage, ...] = ("none", "none", "truncate", "flip", "empty", "lose state", "leftovers")


@dataclass(frozen=True)
class Fault:
    """One launch's."""

    kind: Kind
    moment: float  # the part of the undisturbed run's events that have been; below 0: tenths of seconds from the start
    event: Event = "replace"  # which events are counted
    number: int = 1  # how much room there is left
    damage: Damage = "none"  # what happens to the folder once the process is gone


@dataclass(frozen=True)
class Schedule:
    seed: int
    where: Where
    workload: str
    faults: tuple[Fault, ...]

    def told(self) -> str:
        faults = ", ".join(
            f"{fault.kind} at {fault.moment:.2f} ({fault.event})"
            + (f" + {fault.damage}" if fault.damage != "none" else "")
            for fault in self.faults
        )
        return f"{self.seed}: {self.workload}, {self.where}: {faults}"


def draw(seed: int, where: Where | None = None, **fixed: Any) -> Schedule:
    """The schedule of a seed; ``where`` and a fault's fields can be fixed."""
    rng = random.Random(f"schedule {seed}")
    where_drawn = rng.choices(list(SHARES), list(SHARES.values()))[0]
    where = where or where_drawn
    workload = rng.choice([*WORKLOADS])
    kinds: list[Kind] = [rng.choice(KINDS[where]) for _ in range(rng.choice((1, 1, 2)))]
    # What a launch survives comes last, and once: the next one would have no launch.
    kinds.sort(key=lambda kind: kind in GO_ON)
    kinds = kinds[: 1 + sum(kind not in GO_ON for kind in kinds)]
    moments = sorted(rng.uniform(0.02, 0.9) for _ in kinds)
    faults = []
    for number, (kind, moment) in enumerate(zip(kinds, moments, strict=True)):
        if number == 0 and kind in AT_START and rng.random() < 0.2:
            moment = -rng.uniform(1, 30)
        drawn = {
            "kind": kind,
            "moment": moment,
            "event": _counted(rng, kind),
            "number": rng.randrange(1, 60),
            "damage": rng.choice(DAMAGES),
        }
        faults.append(Fault(**{**drawn, **fixed}))
    return Schedule(seed, where, workload, tuple(faults))


def _counted(rng: random.Random, kind: Kind) -> Event:
    """The events among which a fault's moment is."""
    if kind == "fsync" or kind == "replace":
        return kind
    if kind in OF_CLIENTS:
        return "begun"
    if kind == "kill driver":
        return "replace"  # which is the driver's alone
    return rng.choice(EVENTS)
