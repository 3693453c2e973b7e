"""The actors of a pool: started, waited for, replaced, given up.

An actor is never restarted by Ray: a new one takes its place, which must compute the same bits. Where it cannot be
started again, or there is too little memory for so many, the pool goes on with fewer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from engine.base.errors import ResourceError
from engine.experiment import Execution
from engine.record.numerics import mixed
from engine.worker.ray.errors import last_cause

log = logging.getLogger("fedskew")


@dataclass
class ActorSlot:
    """An actor under its number."""

    handle: Any
    ready: Any  # a reference to its first answer
    since: float  # when it was started, and from its first answer on when that came
    where: dict[str, Any] | None = None  # that answer, see ClientActor.ready; none: it is starting

    @property
    def node(self) -> str | None:
        """The id of its node; None while it is starting."""
        return self.where["node"] if self.where else None


class ActorGroup:
    """The actors of a pool, by number. A number stays an actor's while calls are out; see :meth:`renumber`."""

    def __init__(self, start: Callable[[], Any], execution: Execution, share: float) -> None:
        """``start`` gives a new actor's handle; ``share``: of a GPU."""
        self._new = start
        self._execution = execution
        self._share = share
        self._slots: list[ActorSlot | None] = [self._start() for _ in range(execution.actors)]
        self.low_memory = set[str]()  # nodes on which memory did not do: one call batch at a time for an actor there
        self.tried_alone = False  # whether the last actor was tried alone, since memory did not do
        self.numerics: dict[str, str] = {}

    def _start(self) -> ActorSlot:
        handle = self._new()
        return ActorSlot(handle, handle.ready.remote(), time.perf_counter())

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, number: int) -> ActorSlot:
        slot = self._slots[number]
        assert slot is not None, f"actor {number} was given up"
        return slot

    @property
    def numbers(self) -> list[int]:
        """The numbers of the actors that were not given up."""
        return [number for number, slot in enumerate(self._slots) if slot is not None]

    @property
    def kinds(self) -> list[str]:
        """The device class of each, as it is known by now; one that is starting is taken to be like the first."""
        known = [slot.where["kind"] for slot in self._slots if slot and slot.where]
        like = known[0] if known else self._execution.device
        return [slot.where["kind"] if slot and slot.where else like for slot in self._slots]

    @property
    def nodes(self) -> list[str | None]:
        """The id of each one's node, as it is known by now."""
        return [slot.node if slot else None for slot in self._slots]

    @property
    def placement(self) -> list[dict[str, Any]]:
        """The first answer of each actor that has started."""
        return [slot.where for slot in self._slots if slot and slot.where]

    def await_all(self) -> None:
        """Wait until all are ready; raise :class:`ResourceError` if they cannot be."""
        refs = {number: self[number].ready for number in self.numbers}
        _, pending = ray.wait([*refs.values()], num_returns=len(refs), timeout=self._execution.start_timeout)
        for number, ref in refs.items():
            if ref not in pending:
                self.started(number)
        if pending:
            raise self.not_started(len(pending))

    def started(self, number: int) -> None:
        """Take in the first answer of an actor; raise :class:`ResourceError` if it is none, or of other bits."""
        slot = self[number]
        try:
            where: dict[str, Any] = ray.get(slot.ready)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            raise ResourceError(f"a client actor could not start: {last_cause(error)}") from None
        before = [self.numerics] if self.numerics else []
        self.numerics = one_numerics([*before, where["numerics"]], self._execution)
        slot.where, slot.since = where, time.perf_counter()
        log.info("actor %d: process %d on node %s, GPU %s", number, where["pid"], where["node"], where["gpus"])

    def starting(self) -> dict[Any, int]:
        """Return the references to first answers that are not there yet, each with its actor's number."""
        slots = ((number, self[number]) for number in self.numbers)
        return {slot.ready: number for number, slot in slots if slot.where is None}

    def start_time_left(self, number: int) -> float:
        """Return the seconds that an actor which is starting still has for that."""
        return self[number].since + self._execution.start_timeout - time.perf_counter()

    def replace(self, number: int) -> None:
        """Kill an actor and start a new one in its place."""
        ray.kill(self[number].handle)
        self._slots[number] = self._start()

    def give_up(self, number: int) -> None:
        """Go on without an actor; the last one is not to be given up."""
        assert len(self.numbers) > 1
        ray.kill(self[number].handle)
        self._slots[number] = None

    def renumber(self) -> None:
        """Number the actors that are left from 0 on; between runs of calls."""
        self._slots = [slot for slot in self._slots if slot is not None]

    def kill_all(self) -> None:
        """Kill every actor."""
        for slot in self._slots:
            if slot is not None:
                ray.kill(slot.handle)
        self._slots = []

    def not_started(self, pending: int) -> ResourceError:
        """Return the error to raise where ``pending`` actors are overdue."""
        needs = {"CPU": self._execution.cpus_per_actor} | ({"GPU": self._share} if self._share else {})
        free, total = ray.available_resources(), ray.cluster_resources()
        available = ", ".join(f"{name}: {free.get(name, 0):g} free of {total.get(name, 0):g}" for name in needs)
        return ResourceError(
            f"execution.actors={self._execution.actors}: {pending} of them could not start within "
            f"{self._execution.start_timeout:g} s; asked for {needs} each, available {available}; "
            "lower execution.actors or their shares, or raise execution.start_timeout"
        )


def one_numerics(of_actors: Sequence[dict[str, str]], execution: Execution) -> dict[str, str]:
    """Merge what the actors compute with; raise :class:`ResourceError` if bits would depend on who does what.

    With ``execution.mixed_hardware`` such a pool is taken, and the values that differ are joined.
    """
    merged = {name: mixed(*(numerics[name] for numerics in of_actors)) for name in of_actors[0]}
    differ = [f"{name} ({value})" for name, value in merged.items() if value != of_actors[0][name]]
    if differ and not execution.mixed_hardware:
        raise ResourceError(
            f"execution.mixed_hardware=False: the actors differ in {' and '.join(differ)}, so bits would depend on "
            "who does what; use nodes of one kind, or set execution.mixed_hardware=true, which marks the result"
        )
    for one in differ:
        log.warning("actors differ in %s: bits depend on who does what", one)
    return merged
