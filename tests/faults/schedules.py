"""What goes wrong in a run, and when, drawn from a seed.

A schedule is a list of launches of the command line. In each but the last one fault happens; between two, the newest
checkpoint may be damaged. Moments are parts of the run's rounds, so they do not depend on how fast a machine is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

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
DAMAGES: tuple[Damage, ...] = ("none", "none", "truncate", "flip", "empty", "lose state", "leftovers")


@dataclass(frozen=True)
class Fault:
    """One launch's."""

    kind: Kind
    moment: float  # the part of the rounds that is checkpointed when it happens; below 0: while the run starts
    number: int  # which actor, or which event of its kind, or how many kilobytes
    damage: Damage = "none"  # what happens to the folder once the process is gone


@dataclass(frozen=True)
class Schedule:
    seed: int
    where: Where
    workload: str
    faults: tuple[Fault, ...]

    def told(self) -> str:
        faults = ", ".join(
            f"{fault.kind} at {fault.moment:.2f}" + (f" + {fault.damage}" if fault.damage != "none" else "")
            for fault in self.faults
        )
        return f"{self.seed}: {self.workload}, {self.where}: {faults}"


def draw(seed: int, where: Where | None = None, **fixed: Any) -> Schedule:
    """The schedule of a seed; ``where`` and a fault's fields can be fixed."""
    rng = random.Random(f"schedule {seed}")
    where_drawn = rng.choices([*SHARES], [*SHARES.values()])[0]
    where = where or where_drawn
    workload = rng.choice([*WORKLOADS])
    faults = []
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.choice(KINDS[where])
        drawn = {
            "kind": kind,
            "moment": rng.uniform(-0.3, 0.95),
            "number": rng.randrange(1, 60),
            "damage": rng.choice(DAMAGES),
        }
        faults.append(Fault(**{**drawn, **fixed}))
    return Schedule(seed, where, workload, tuple(faults))
