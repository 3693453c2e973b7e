"""One run of calls over the client actors: sent, landed, sent again when an actor dies, each wait with a deadline.

Every call comes back exactly once or the run of calls ends with an error; what an actor's death costs is time. That
this ends: a call is sent ``execution.retries`` times again at most, and an actor that is given up does not return.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from engine.worker.ray.actors import Answer, Roster, cause_of, first_line  # first: it sets what Ray reads at import

import ray  # isort: skip
import ray.exceptions  # isort: skip

from engine.base.errors import MemoryShort, ResourceError, RunError
from engine.client.failures import is_of_memory
from engine.experiment import Execution
from engine.record.state_projection import size_text
from engine.worker.pool import Call, Deadline, Result
from engine.worker.scheduling import Dispatch, Rates, Room

log = logging.getLogger("fedskew")
ROOM = 0.25  # of this node's object store for blocks that are out: the data and clients' states lie there too
NO_MEMORY = ("low on memory", "memory pressure")  # in Ray's messages of an actor that its memory monitor has killed


@dataclass(frozen=True)
class Flight:
    """Calls that are on an actor."""

    actor: int
    calls: list[int]
    handles: list[Any]


class Measured:
    """What a pool has learned of earlier calls. Changes no bit."""

    def __init__(self, room: float) -> None:
        self.rates = Rates()
        self.result_bytes: dict[str, float] = {}  # of a call of each method, as last measured
        self.room = room  # bytes that may be out
        self.held = False  # whether calls were held back for want of room


class Trips:
    """The calls of one method."""

    def __init__(
        self,
        roster: Roster,
        measured: Measured,
        execution: Execution,
        deadline: Deadline,
        method: str,
        common: tuple[int, Any],
        calls: Sequence[Call],
        what: str,
    ) -> None:
        """``common``: a token of it, and the reference to what all calls share."""
        self._roster = roster
        self._measured = measured
        self._execution = execution
        self._deadline = deadline
        self._method = method
        self._token, self._common = common
        self._calls = calls
        self._what = what
        room = Room(measured.room, [_argument_bytes(call) for call in calls], measured.result_bytes.get(method, 0.0))
        rate: Callable[[str], float | None] = partial(measured.rates.of, method)
        self._kinds = roster.kinds
        self._dispatch = Dispatch([call.cost for call in calls], self._kinds, rate, room)
        for number in roster.numbers:
            if roster[number].node in roster.narrow:
                self._dispatch.narrow(number)
        self._attempts = [0] * len(calls)
        self._done: dict[int, Result] = {}  # that wait for one before them
        self._flying: dict[Any, Flight] = {}

    def results(self) -> Iterator[Result]:
        """In the order of the calls."""
        for index in range(len(self._calls)):
            while index not in self._done:
                self._fill(index)
                self._wait(self._calls[index].label)
            self._fill(index)  # before the caller adds, so that no actor waits for it
            yield self._done.pop(index)
            self._dispatch.taken(index)

    # --- sending ----------------------------------------------------------------------------------------

    def _fill(self, wanted: int) -> None:
        while (trip := self._dispatch.next(time.perf_counter(), wanted)) is not None:
            self._submit(*trip)
        if self._dispatch.held and not self._measured.held:
            self._measured.held = True
            log.warning(
                "%s: blocks wait until there is room for their results: those that are out may take %s, %g of "
                "Ray's object store here; the same bits, perhaps slower; start Ray with a larger store",
                self._what,
                size_text(self._measured.room),
                ROOM,
            )

    def _submit(self, number: int, taken: list[int]) -> None:
        calls = [self._calls[index] for index in taken]
        handles = sum(call.handles for call in calls)
        method_of = self._roster[number].handle.call
        if handles:
            method_of = method_of.options(num_returns=1 + handles)
        arguments = [(call.args, len(call.states)) for call in calls]
        states = [state for call in calls for state in call.states]
        refs = method_of.remote(self._method, self._token, [self._common], arguments, *states)
        first, rest = (refs[0], refs[1:]) if handles else (refs, [])
        self._flying[first] = Flight(number, taken, rest)

    # --- waiting ----------------------------------------------------------------------------------------

    def _wait(self, label: str) -> None:
        """For whatever comes first: a trip that is back, an actor that has started, or a deadline."""
        self._deadline.check(f"{self._what}: {label}")
        starting = self._roster.starting()
        ready, _ = ray.wait([*starting, *self._flying], num_returns=1, timeout=self._patience())
        if not ready:
            for number in self._roster.numbers:
                self._check_in_time(number)
        elif ready[0] in self._flying:
            self._land(ready[0])
        else:
            self._start(starting[ready[0]])

    def _start(self, number: int) -> bool:
        """Take in an actor's first answer; False if it is not one of these, and gone."""
        try:
            self._roster.started(number)
        except ResourceError as error:
            self._do_without(number, str(error), error)
            return False
        return True

    def _patience(self) -> float:
        """Seconds until a deadline may have passed."""
        left = min(self._deadline.left(), *map(self._time_left, self._roster.numbers))
        return max(0.0, left) + 0.01

    def _time_left(self, number: int) -> float:
        """Seconds that an actor has to start, or to give something back."""
        place, since = self._roster[number], self._dispatch.busy_since(number)
        if place.where is None:
            return self._roster.start_time_left(number)
        if since is None:
            return math.inf
        return max(since, place.since) + self._execution.block_timeout - time.perf_counter()

    def _check_in_time(self, number: int) -> None:
        if self._time_left(number) > 0:
            return
        if self._roster[number].where is None:
            error = self._roster.not_started(1)
            self._do_without(number, str(error), error)
        else:
            timeout = self._execution.block_timeout
            self._lost(number, f"actor {number} gave nothing back for {timeout:g} s (execution.block_timeout)")

    # --- landing ----------------------------------------------------------------------------------------

    def _land(self, ref: Any) -> None:
        """Take in the results of a trip."""
        flight = self._flying[ref]
        number = flight.actor
        if self._roster[number].where is None and not self._start(number):
            return None  # nothing of an actor counts that computes other bits
        try:
            answer: Answer = ray.get(ref)
        except ray.exceptions.RayTaskError as error:  # first: it may be of the other types too
            if isinstance(error.cause, ray.exceptions.ObjectLostError):  # an argument that could not be fetched
                raise state_lost(self._what) from None
            if isinstance(error.cause, BaseException) and is_of_memory(error.cause):
                return self._short_of_memory(number, str(error.cause))
            raise cause_of(error) from None
        except ray.exceptions.OutOfMemoryError as error:
            return self._short_of_memory(number, _killed_for_memory(number, error))
        except ray.exceptions.RayActorError as error:
            if any(text in str(error) for text in NO_MEMORY):
                return self._short_of_memory(number, _killed_for_memory(number, error))
            return self._lost(number, f"actor {number} died ({first_line(error)})")
        except ray.exceptions.ObjectLostError:  # it had computed, and its node is gone with the result
            return self._lost(number, f"what actor {number} had computed was lost with its node")
        del self._flying[ref]
        self._dispatch.landed(number, flight.calls[0], time.perf_counter(), answer.sizes)
        self._kinds[number] = answer.kind  # a new one in a dead one's place may be elsewhere
        cost = sum(self._calls[index].cost for index in flight.calls)
        self._measured.rates.add(self._method, answer.kind, answer.seconds, cost)
        self._measured.result_bytes[self._method] = answer.sizes[-1]
        handles = iter(flight.handles)
        for index, value in zip(flight.calls, answer.values, strict=True):
            self._done[index] = Result(value, tuple(islice(handles, self._calls[index].handles)), number)
        return None

    # --- losses -----------------------------------------------------------------------------------------

    def _lost(self, number: int, reason: str) -> None:
        """Replace a dead actor and queue its blocks again."""
        calls = self._recall(number)
        self._roster.replace(number)
        for index in calls:
            self._count(index, reason)
            label = self._calls[index].label
            log.warning("%s: %s; %s will run again on a new actor", self._what, reason, label)

    def _recall(self, number: int) -> list[int]:
        """The calls that were on an actor; they wait to be sent again."""
        for ref in [ref for ref, flight in self._flying.items() if flight.actor == number]:
            del self._flying[ref]
        return self._dispatch.lost(number)

    def _count(self, index: int, reason: str) -> None:
        self._attempts[index] += 1
        if self._attempts[index] > self._execution.retries:
            raise RunError(
                f"{self._what}: {self._calls[index].label} failed {self._attempts[index]} times, last because "
                f"{reason}; look into the actor's memory and node, or raise execution.retries or "
                "execution.block_timeout"
            )

    def _do_without(self, number: int, reason: str, error: ResourceError) -> None:
        """Go on with fewer actors, where there are others."""
        if len(self._roster.numbers) == 1:
            raise error
        self._recall(number)
        self._roster.give_up(number)
        self._dispatch.retire(number)
        log.warning("%s; going on without that actor, with %d: the same bits", reason, len(self._roster.numbers))

    def _short_of_memory(self, number: int, reason: str) -> None:
        """Fewer blocks side by side on the node, each as it is: fewer actors, and one trip at a time for the others.

        The last one of all is tried once more, alone.
        """
        node, others = self._roster[number].node, [other for other in self._roster.numbers if other != number]
        there = [other for other in others if self._roster[other].node == node]
        if others:
            self._do_without(number, f"{self._what}: {reason}", ResourceError(reason))
        elif self._roster.alone:
            raise MemoryShort(f"{self._what}: {reason}, with one block at a time on the last actor")
        else:
            self._roster.alone = True
            self._lost(number, f"{reason}; it is tried once more, one block at a time")
            there = [number]
        if node is not None:
            self._roster.narrow.add(node)
        for other in there:
            self._dispatch.narrow(other)


def state_lost(what: str) -> RunError:
    return RunError(f"{what}: client state was lost with the node that held it; resume from the last checkpoint")


def _killed_for_memory(number: int, error: Exception) -> str:
    used = re.search(r"was (\S+ used / \S+ limit)", str(error))
    return f"actor {number} was killed, since its node was low on memory" + (f" ({used[1]})" if used else "")


def _argument_bytes(call: Call) -> int:
    """Of the arrays that travel with a call; states that lie in the object store already do not."""
    parts = [part for part in (*call.args, *call.states) if isinstance(part, dict)]
    return sum(array.nbytes for part in parts for array in part.values())
