"""One run of calls over the client actors: sent, received, sent again when an actor dies, each wait with a deadline.

Every call comes back exactly once or the run of calls ends with an error; what an actor's death costs is time. That
this ends: a call is sent ``execution.retries`` times again at most, and an actor that is given up does not return.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import ray
import ray.exceptions

from engine.base.errors import MachineFailed, MemoryShort, ResourceError
from engine.base.sizes import size_text
from engine.client.sums import WeightedSum
from engine.experiment import Execution
from engine.worker.pool import Call, Deadline
from engine.worker.ray.actor_group import ActorGroup
from engine.worker.ray.errors import Loss, reply_or_loss, state_lost
from engine.worker.ray.sum_tree import Addition, RemoteSum, SumTree
from engine.worker.ray.wire import CallReply, SentCall, from_wire, to_wire
from engine.worker.scheduling import ByteBudget, MeasuredRates, Scheduler
from engine.worker.stopwatch import Stopwatch

log = logging.getLogger("fedskew")
SUM_LOST = "the sum of their uploads was lost with the node that held it"
STORE_SHARE = 0.25  # of this node's object store for blocks that are out: the data and clients' states lie there too


@dataclass(frozen=True)
class InFlight:
    """A call batch that is on an actor."""

    actor: int
    calls: list[int]
    handles: list[Any]


class Measurements:
    """Speeds and sizes that a pool has learned from earlier calls. They change no bit."""

    def __init__(self, limit: float) -> None:
        """``limit``: bytes that may be out at once."""
        self.rates = MeasuredRates()
        self.result_bytes: dict[str, float] = {}  # of a call of each method, as last measured
        self.limit = limit
        self.held_back = False  # whether calls were ever held back by it


class CallRun:
    """The calls of one method, until all of them have come back."""

    def __init__(
        self,
        actors: ActorGroup,
        measurements: Measurements,
        execution: Execution,
        deadline: Deadline,
        method: str,
        common: tuple[int, Any],
        calls: Sequence[Call],
        what: str,
        watch: Stopwatch,
        add_apart: bool = False,
    ) -> None:
        """``common``: a token of it, and what all calls share or a reference to that; ``what``: for messages.

        add_apart: the sums of the calls' uploads do not come to the driver one by one, but added by actors.
        """
        self._actors = actors
        self._measurements = measurements
        self._execution = execution
        self._deadline = deadline
        self._method = method
        self._token, self._common = common
        self._calls = calls
        self._what = what
        self._watch = watch
        expected = measurements.result_bytes.get(method, 0.0)
        budget = ByteBudget(measurements.limit, [_argument_bytes(call) for call in calls], expected)
        rate: Callable[[str], float | None] = partial(measurements.rates.seconds_per_cost, method)
        self._kinds = actors.kinds
        self._nodes = actors.nodes if add_apart else []
        self._scheduler = Scheduler([call.cost for call in calls], self._kinds, rate, budget, self._nodes)
        for number in actors.numbers:
            if actors[number].node in actors.low_memory:
                self._scheduler.one_at_a_time(number)
        self._attempts = Counter[Hashable]()  # that failed, of calls and additions
        self._add_apart = add_apart
        self._sums = SumTree(len(calls))
        self._yielded = 0  # results
        self._last_heard = dict[int, float]()  # when an actor last gave something back
        self._done: dict[int, Any] = {}  # that wait for one before them
        self._in_flight: dict[Any, InFlight] = {}  # by the reference to the reply

    def results(self) -> Iterator[Any]:
        """Yield the results in the order of the calls; sums that are added by the actors come with the last.

        Raises :class:`MachineFailed` if a call fails too often, client state is lost or the round's deadline passes,
        :class:`ResourceError` if the last actor cannot be started, :class:`MemoryShort` if one actor has too little
        memory for one block, and whatever a call itself raises.
        """
        for index in range(len(self._calls)):
            while index not in self._done:
                self._fill(index)
                self._wait(self._calls[index].label)
            self._fill(index)  # before the caller adds, so that no actor waits for it
            with self._watch("transfer"):
                result = from_wire(self._done.pop(index))
            self._yielded += 1
            if self._add_apart and self._yielded == len(self._calls):
                result.sum = self._whole_sum()
            yield result
            self._scheduler.consumed(index)

    # --- sending ----------------------------------------------------------------------------------------

    def _fill(self, wanted: int | None) -> None:
        """Send what should be sent now; ``wanted``: the call that is waited for, if it is a certain one."""
        with self._watch("broadcast"):
            while (chosen := self._scheduler.next(time.perf_counter(), wanted)) is not None:
                self._send(*chosen)
        while (pair := self._sums.take_pair()) is not None:
            self._send_addition(*pair)
        if self._scheduler.held_back and not self._measurements.held_back:
            self._measurements.held_back = True
            log.warning(
                "%s: blocks wait until there is room for their results: those that are out may take %s, %g of "
                "Ray's object store here; the same bits, perhaps slower; start Ray with a larger store",
                self._what,
                size_text(self._measurements.limit),
                STORE_SHARE,
            )

    def _send(self, number: int, batch: list[int]) -> None:
        """Send a call batch to an actor."""
        calls = [self._calls[index] for index in batch]
        apart = sum(call.returned_states for call in calls) + (len(calls) if self._add_apart else 0)
        method_of = self._actors[number].handle.call
        if apart:
            method_of = method_of.options(num_returns=1 + apart)
        # A state of its own is an argument of its own, of which Ray takes note; where there is none, nothing is sent.
        sent = [
            SentCall(
                to_wire(call.args),
                tuple(state is not None for state in call.states),
                call.returned_states,
                self._add_apart,
            )
            for call in calls
        ]
        states = [to_wire(state) for call in calls for state in call.states if state is not None]
        refs = method_of.remote(self._method, self._token, [self._common], number, sent, *states)
        first, rest = (refs[0], refs[1:]) if apart else (refs, [])
        self._in_flight[first] = InFlight(number, batch, rest)

    def _send_addition(self, left: RemoteSum, right: RemoteSum) -> None:
        """Have two sums added, by an actor on a node that holds one of them if there is any, and one that is idle."""
        nodes = left.node, right.node
        started = [number for number in self._actors.numbers if self._actors[number].where] or self._actors.numbers
        given = Counter(one.actor for one in [*self._in_flight.values(), *self._sums.additions.values()])
        number = min(started, key=lambda one: (self._actors[one].node not in nodes, given[one]))
        add = self._actors[number].handle.add.options(num_returns=2)
        reply, ref = add.remote(left.ref, right.ref, self._sums.is_last(left))
        self._sums.additions[reply] = Addition(number, left, right, ref, time.perf_counter())

    # --- waiting ----------------------------------------------------------------------------------------

    def _wait(self, label: str) -> None:
        """Wait for whatever comes first: a reply, an actor that has started, or a deadline."""
        self._deadline.check(f"{self._what}: {label}")
        starting = self._actors.starting()
        sent = [*self._in_flight, *self._sums.additions]
        idle = len({sent.actor for sent in self._in_flight.values()}) < len(self._actors.numbers)
        with self._watch("wait" if idle else "training"):
            ready, _ = ray.wait([*starting, *sent], num_returns=1, timeout=self._patience())
        if not ready:
            for number in self._actors.numbers:
                self._check_in_time(number)
        elif ready[0] in sent:
            self._receive(ready[0])
        else:
            self._start(starting[ready[0]])

    def _start(self, number: int) -> bool:
        """Take in an actor's first answer; False if it is not one of these, and gone."""
        try:
            self._actors.started(number)
        except ResourceError as error:
            self._do_without(number, str(error), error)
            return False
        return True

    def _patience(self) -> float:
        """Seconds until a deadline may have passed."""
        left = min(self._deadline.left(), *map(self._time_left, self._actors.numbers))
        return max(0.0, left) + 0.01

    def _time_left(self, number: int) -> float:
        """Seconds that an actor has to start, or to give something back."""
        slot, since = self._actors[number], self._scheduler.busy_since(number)
        if slot.where is None:
            return self._actors.start_time_left(number)
        if since is None:
            sent = [addition.since for addition in self._sums.of(number)]
            if not sent:
                return math.inf
            since = max(min(sent), self._last_heard.get(number, 0.0))
        return max(since, slot.since) + self._execution.block_timeout - time.perf_counter()

    def _check_in_time(self, number: int) -> None:
        """Replace an actor that is overdue, or give it up if it is overdue to start."""
        if self._time_left(number) > 0:
            return
        if self._actors[number].where is None:
            error = self._actors.not_started(1)
            self._do_without(number, str(error), error)
        else:
            timeout = self._execution.block_timeout
            self._lost(number, f"actor {number} gave nothing back for {timeout:g} s (execution.block_timeout)")

    # --- replies ----------------------------------------------------------------------------------------

    def _receive(self, ref: Any) -> None:
        """Take in the reply that ``ref`` stands for, or the loss of it."""
        addition = self._sums.additions.get(ref)
        number = addition.actor if addition else self._in_flight[ref].actor
        if self._actors[number].where is None and not self._start(number):
            return  # nothing of an actor counts that computes other bits
        with self._watch("transfer"):
            reply = reply_or_loss(ref, number)
        if not isinstance(reply, Loss):
            self._last_heard[number] = time.perf_counter()
            if addition is not None:
                self._sums.added(ref, self._actors[number].node)
            else:
                self._take_in(self._in_flight.pop(ref), reply)
        elif reply.of_arguments and addition:
            self._again(self._sums.forget(ref), SUM_LOST)
        elif reply.of_arguments:
            raise state_lost(self._what)
        elif reply.of_memory:
            self._short_of_memory(number, reply.reason)
        else:
            self._lost(number, reply.reason)

    def _take_in(self, sent: InFlight, reply: CallReply) -> None:
        """Keep the results of a call batch, and what it says of its actor's speed."""
        number, (measure, values) = sent.actor, reply
        self._scheduler.returned(number, sent.calls[0], time.perf_counter(), measure.sizes)
        self._kinds[number] = measure.kind  # a new one in a dead one's place may be elsewhere
        cost = sum(self._calls[index].cost for index in sent.calls)
        self._measurements.rates.add(self._method, measure.kind, measure.seconds, cost)
        self._measurements.result_bytes[self._method] = measure.sizes[-1]
        self._watch.bytes_in += sum(measure.sizes)
        handles = iter(sent.handles)
        if self._add_apart:
            self._nodes[number] = self._actors[number].node
            for index, ref in zip(sent.calls, islice(handles, len(sent.calls)), strict=True):
                self._sums.put(index, 1, ref, self._nodes[number])
        for index, value in zip(sent.calls, values, strict=True):
            states = list(islice(handles, self._calls[index].returned_states))
            if states:  # in place of what the actor has kept
                value.states = dict(zip(value.states, states, strict=False))
            if index < self._yielded:
                self._scheduler.consumed(index)  # it was sent again for its sum
            else:
                self._done[index] = value

    def _whole_sum(self) -> WeightedSum:
        """Wait for the sum of all calls, and return it."""
        while True:
            self._fill(None)
            whole = self._sums.whole()
            if whole is None:
                self._wait("the sum of the uploads")
                continue
            try:
                with self._watch("transfer"):
                    patience = min(self._deadline.left(), self._execution.block_timeout)
                    total: WeightedSum = from_wire(ray.get(whole.ref, timeout=max(patience, 0)))
                self._watch.bytes_in += total.nbytes
                return total
            except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError):
                self._deadline.check(f"{self._what}: the sum of the uploads")
                self._again(self._sums.forget_whole(), SUM_LOST)

    # --- losses -----------------------------------------------------------------------------------------

    def _lost(self, number: int, reason: str) -> None:
        """Replace a dead actor and queue its blocks again."""
        additions = self._sums.of(number)
        calls = self._recall(number)
        self._actors.replace(number)
        for index in calls:
            label = self._calls[index].label
            self._count(index, label, reason)
            log.warning("%s: %s; %s will run again on a new actor", self._what, reason, label)
        for one in additions:
            self._count((one.left.first, one.left.places), "adding uploads", reason)
        if additions and not calls:
            log.warning("%s: %s; its additions will run again", self._what, reason)

    def _recall(self, number: int) -> list[int]:
        """The calls that were on an actor; they wait to be sent again."""
        for ref in [ref for ref, sent in self._in_flight.items() if sent.actor == number]:
            del self._in_flight[ref]
        self._sums.recall(number)
        return self._scheduler.lost(number)

    def _again(self, calls: Sequence[int], reason: str) -> None:
        """Queue calls again which had come back."""
        for index in calls:
            self._count(index, self._calls[index].label, reason)
        log.warning("%s: %s; %d blocks will run again", self._what, reason, len(calls))
        self._scheduler.again(calls)

    def _count(self, what: Hashable, label: str, reason: str) -> None:
        """Count a failed attempt at a call or an addition; raise :class:`MachineFailed` if it was its last."""
        self._attempts[what] += 1
        if self._attempts[what] > self._execution.retries:
            raise MachineFailed(
                f"{self._what}: {label} failed {self._attempts[what]} times, last because "
                f"{reason}; look into the actor's memory and node, or raise execution.retries or "
                "execution.block_timeout"
            )

    def _do_without(self, number: int, reason: str, error: ResourceError) -> None:
        """Go on with fewer actors, where there are others."""
        if len(self._actors.numbers) == 1:
            raise error
        self._recall(number)
        self._actors.give_up(number)
        self._scheduler.retire(number)
        log.warning("%s; going on without that actor, with %d: the same bits", reason, len(self._actors.numbers))

    def _short_of_memory(self, number: int, reason: str) -> None:
        """Run fewer blocks side by side on the node, each as it is: fewer actors, and one call batch at a time for the
        others.

        The last one of all is tried once more, alone.
        """
        node, others = self._actors[number].node, [other for other in self._actors.numbers if other != number]
        there = [other for other in others if self._actors[other].node == node]
        if others:
            self._do_without(number, f"{self._what}: {reason}", ResourceError(reason))
        elif self._actors.tried_alone:
            raise MemoryShort(f"{self._what}: {reason}, with one block at a time on the last actor")
        else:
            self._actors.tried_alone = True
            self._lost(number, f"{reason}; it is tried once more, one block at a time")
            there = [number]
        if node is not None:
            self._actors.low_memory.add(node)
        for other in there:
            self._scheduler.one_at_a_time(other)


def _argument_bytes(call: Call) -> int:
    """Bytes of the tensors that travel with a call; states that lie in the object store already do not."""
    parts = [part for part in (*call.args, *call.states) if isinstance(part, dict)]
    return sum(tensor.nbytes for part in parts for tensor in part.values())
