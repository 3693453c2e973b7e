"""What goes wrong in a sweep, and when, drawn from a seed.

A schedule is a list of launches as that of a run is (``schedules.py``). Its first fault is the next one of a deck that
holds each kind once, so that fifty schedules have each kind at least twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from tests.faults.inject import EVENTS, Event, Role
from tests.faults.sweep_workloads import WORKLOADS

Kind = Literal[
    "kill",  # SIGKILL of the command
    "interrupt",  # SIGINT of it
    "ctrl-c",  # SIGINT of it and of all that it started
    "terminate",  # SIGTERM of it
    "hang up",  # SIGHUP of it and of all that it started
    "kill raylet",
    "kill gcs",
    "kill agent",  # of Ray, beside the raylet
    "fsync",  # ENOSPC when a write is flushed, once
    "replace",  # EIO when a file is put in its place, once
    "small disk",  # a tmpfs that gets full, with the sweep and the store on it
    "read-only",  # a part of the sweep's files
    "file limit",  # RLIMIT_FSIZE of one process
    "raise",  # in a client of one trial
    "kill trial",
    "stop trial",  # SIGSTOP for longer than its leases last
    "stop command",
    "stop raylet",
    "stop gcs",
    "lose store",
    "damage store",
    "clock jump",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDING = KINDS[: KINDS.index("file limit")]  # most launches that have one end with it; the others mostly go on
AT_START: tuple[Kind, ...] = ("kill", "interrupt", "ctrl-c", "terminate", "hang up")  # possible before anything runs
OF_TRIALS: tuple[Kind, ...] = ("kill trial", "stop trial", "raise")


@dataclass(frozen=True)
class Fault:
    """One launch's."""

    kind: Kind
    moment: float  # part of the undisturbed sweep's events, of all kinds; below 0: tenths of seconds after the start
    role: Role = "worker"  # whose events are counted
    event: Event = "replace"
    number: int = 0  # seeds what there is to choose


@dataclass(frozen=True)
class Schedule:
    seed: int
    workload: str
    faults: tuple[Fault, ...]
    cores: tuple[int, ...] = (0,)  # of each launch, the last one's for those after it, too; 0: all
    concurrent: tuple[int, ...] = (2,)  # trials at a time, of each launch
    at_once: bool = False  # resumed while processes of the launch before may still be there

    def told(self) -> str:
        faults = ", ".join(f"{fault.kind} at {fault.moment:.2f} ({fault.role} {fault.event})" for fault in self.faults)
        return f"{self.seed}: sweep, {self.workload}: {faults}"


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(f"sweep schedule {seed}")
    deck: list[Kind] = [*KINDS]
    random.Random(f"deck {seed // len(deck)}").shuffle(deck)
    kinds: list[Kind] = [deck[seed % len(deck)]]
    if rng.random() < 0.4:  # one that a launch mostly survives comes last, or the next would have no launch
        ending = rng.choice(ENDING)
        kinds = [ending, *kinds] if kinds[0] not in ENDING else [*kinds, ending]
    early = rng.random() < 0.15
    moments = sorted(rng.uniform(0.02, 0.85) for _ in kinds)
    faults = []
    for number, (kind, moment) in enumerate(zip(kinds, moments, strict=True)):
        if early and number == 0 and kind in AT_START:
            moment = -rng.uniform(5, 120)
        # The command's own next event may be the report's: what follows would find every trial finished.
        role, event = _whose(rng, kind, with_command=number == len(kinds) - 1)
        faults.append(Fault(kind, moment, role, event, rng.randrange(1000)))
    workload = rng.choices(WORKLOADS, (4, 2, 2, 2))[0]
    # A scheduler's decisions hang on the order of reports: with one trial at a time there is one order.
    most = 1 if workload == "asha" else 3
    return Schedule(
        seed,
        workload,
        tuple(faults),
        cores=tuple(rng.choice((0, 0, 1)) for _ in range(3)),
        concurrent=tuple(rng.randint(1, most) for _ in range(3)),
        at_once=rng.random() < 0.5,
    )


def _whose(rng: random.Random, kind: Kind, with_command: bool) -> tuple[Role, Event]:
    """The events among which a fault's moment is."""
    roles: tuple[Role, ...] = ("command", "worker") if with_command else ("worker",)
    if kind == "fsync" or kind == "replace":
        return rng.choice(roles), kind
    if kind == "raise":
        return "worker", "begun"
    if kind in OF_TRIALS or kind in ("lose store", "damage store", "clock jump"):
        return "worker", rng.choice(EVENTS)
    role = rng.choice(("worker", *roles))
    return role, rng.choice(EVENTS if role == "worker" else EVENTS[1:])
