"""The rule which call goes to which actor next. Pure: the clock is an argument; it knows no Ray and changes no bit.

The longest call that waits goes to the actor that is expected to end it first. On actors of one speed that is LPT, so
if what is expected comes true a round takes at most 4/3 - 1/(3m) times the least possible on m actors (Graham 1969,
"Bounds on multiprocessing timing anomalies", theorem 3); on actors of different speed at most 2m / (m + 1) times
(Gonzalez, Ibarra and Sahni 1977, "Bounds for LPT schedules on uniform processors"). A call is not sent to another actor
because that one is free: it waits for the better one. Otherwise a call that lies behind a long one would end the round
late.

Short calls are sent together, as one call batch, since each message to an actor and back costs milliseconds.

Where uploads are added on the nodes, neighbouring calls have a node in common, their home (:func:`homes_of`). An actor
then takes a call of its home in place of the longest, if there is one that is about as long: so few sums travel, and
nobody waits. The bounds above are those of a pool without homes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

IN_FLIGHT = 2  # call batches per actor: one running, one waiting beside it, so that no actor idles between two
SHORT = 0.1  # seconds of work up to which calls are sent together
ALIKE = 0.5  # of the longest call's cost, from which on another one may go in its place
FADE = 0.8  # weight of what was measured before, at each call batch that comes back


class MeasuredRates:
    """Measured seconds per unit of cost, of each method and device class."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, float]] = {}  # fading sums of seconds and cost

    def add(self, method: str, kind: str, seconds: float, cost: float) -> None:
        """Take in that calls of ``method`` which cost ``cost`` took ``seconds`` on the device class ``kind``."""
        before = self._sums.get((method, kind), (0.0, 0.0))
        self._sums[method, kind] = (FADE * before[0] + seconds, FADE * before[1] + cost)

    def seconds_per_cost(self, method: str, kind: str) -> float | None:
        """Return the rate of a class, the mean of the others if it has measured none yet, None if nothing is known."""
        known = {key: sums for key, sums in self._sums.items() if key[0] == method and min(sums) > 0}
        if (method, kind) in known:
            known = {(method, kind): known[method, kind]}
        return sum(seconds / cost for seconds, cost in known.values()) / len(known) if known else None


class ByteBudget:
    """Bytes that are out: arguments and results of calls on actors, and results that wait for one before them."""

    def __init__(self, limit: float, arguments: Sequence[int], expected: float) -> None:
        """``arguments``: bytes that travel with each call; ``expected``: bytes of a call's result, as last measured."""
        self._limit = limit
        self._arguments = arguments
        self.expected = expected
        self._out: dict[int, float] = {}
        self.most = 0.0  # ever out

    def fits(self, calls: Sequence[int]) -> bool:
        """Return whether these calls may be sent as well."""
        more = sum(self._arguments[call] + self.expected for call in calls)
        return sum(self._out.values()) + more <= self._limit

    def sent(self, call: int) -> None:
        """Count a call's arguments and the result that is expected of it."""
        self._out[call] = self._arguments[call] + self.expected
        self._note()

    def lost(self, call: int) -> None:
        """Forget a call that has to be sent again."""
        self._out.pop(call, None)  # one that was sent again for its sum may have been consumed before

    def returned(self, call: int, size: int) -> None:
        """Count the bytes of a result that has come, in place of its call's."""
        self._out[call] = self.expected = size
        self._note()

    def consumed(self, call: int) -> None:
        """Forget a result that the driver has added."""
        self._out.pop(call, None)

    def _note(self) -> None:
        self.most = max(self.most, sum(self._out.values()))


def homes_of(costs: Sequence[float], nodes: Sequence[str | None], pace: Sequence[float]) -> list[str] | None:
    """Return the node of each call: neighbours together, each node's share of the costs by the speed of its actors.

    nodes, pace: of each actor its node, None for one that is starting, and its seconds per cost. Returns None where
    there is one node at most, or no cost.
    """
    speeds: dict[str, float] = {}
    for node, seconds in zip(nodes, pace, strict=True):
        if node is not None:
            speeds[node] = speeds.get(node, 0.0) + 1 / seconds
    if len(speeds) < 2 or not sum(costs):
        return None
    shares = np.cumsum([*speeds.values()]) / sum(speeds.values())
    middles = (np.cumsum(costs) - np.asarray(costs) / 2) / sum(costs)
    names = [*speeds]
    return [names[place] for place in np.searchsorted(shares[:-1], middles)]


def _pace(rates: Iterable[float | None]) -> list[float]:
    """Return the seconds per cost of each actor, 1 where nothing is known."""
    return [1.0 if rate is None else rate for rate in rates]


class Scheduler:
    """The calls of one method over a pool of actors, from the first that is sent to the last that comes back."""

    def __init__(
        self,
        costs: Sequence[float],
        kinds: Sequence[str],
        rate: Callable[[str], float | None] = lambda kind: None,
        budget: ByteBudget | None = None,
        nodes: Sequence[str | None] = (),
    ) -> None:
        """``kinds``: the device class of each actor, as it is known by now; ``rate``: seconds per cost of a class.

        nodes: of each actor, as it is known by now, where neighbouring calls are to go to the same one.
        """
        self._costs = costs
        self._kinds = kinds
        self._rate = rate
        self._budget = budget or ByteBudget(math.inf, [0] * len(costs), 0.0)
        self._nodes = nodes
        has_room = self._budget.fits(range(len(costs)))  # where not, results would wait for those of another node
        self._homes = homes_of(costs, nodes, _pace(map(rate, kinds))) if nodes and has_room else None
        self._waiting = sorted(range(len(costs)), key=lambda call: (costs[call], -call))  # the longest last
        self._in_flight: list[dict[int, list[int]]] = [{} for _ in kinds]  # first call -> its call batch, as sent
        self._limits = [IN_FLIGHT for _ in kinds]  # call batches that may be on an actor; 0: it was given up
        self._since = [0.0 for _ in kinds]  # when the first of an actor's call batches began
        self._given = [0.0 for _ in kinds]  # cost
        self._total = sum(costs)
        self.held_back = False  # whether a call ever waited for room in the budget

    def next(self, now: float, wanted: int | None) -> tuple[int, list[int]] | None:
        """Choose an actor and a call batch for it, which counts as sent; None while nothing should be sent.

        ``wanted``: the call whose result the driver waits for; None: any. Where the budget has no room for another
        call, it alone goes, since that is what makes room: something is always on its way until all calls have come
        back.
        """
        if not self._waiting:
            return None
        wanted = self._waiting[-1] if wanted is None else wanted
        rates = [self._rate(kind) for kind in self._kinds]
        pace = _pace(rates)
        there = [actor for actor, limit in enumerate(self._limits) if limit]
        free = [self._free_at(actor, now, pace[actor]) for actor in range(len(pace))]
        idle = not all(self._in_flight[actor] for actor in there)
        for position in reversed(range(len(self._waiting))):
            cost = self._costs[self._waiting[position]]
            actor = min(there, key=lambda one: (free[one] + cost * pace[one], len(self._in_flight[one])))
            if len(self._in_flight[actor]) < self._limits[actor]:
                position = self._at_home(position, actor)
                if self._budget.fits([self._waiting[position]]):
                    return self._send(actor, self._take(position, actor, rates), now)
                self.held_back = True
                self._homes = None
                if wanted not in self._waiting:
                    return None
                self._waiting.remove(wanted)
                return self._send(actor, [wanted], now)
            if not idle:
                return None
            free[actor] += cost * pace[actor]  # it will wait for that one; perhaps a shorter one need not
        return None

    def returned(self, actor: int, first: int, now: float, sizes: Sequence[int]) -> None:
        """Take note that the call batch which begins with ``first`` came back; ``sizes``: bytes of each result."""
        for call, size in zip(self._in_flight[actor].pop(first), sizes, strict=True):
            self._budget.returned(call, size)
        self._since[actor] = now

    def lost(self, actor: int) -> list[int]:
        """Return the calls that were on an actor which has died: they are the next to be sent."""
        calls = [call for batch in self._in_flight[actor].values() for call in batch]
        for call in calls:
            self._given[actor] -= self._costs[call]
            self._budget.lost(call)
        self._in_flight[actor].clear()
        self.again(calls)
        return calls

    def again(self, calls: Sequence[int]) -> None:
        """Take note that calls have to be sent again: they are the next."""
        self._waiting += reversed(calls)

    def one_at_a_time(self, actor: int) -> None:
        """Send an actor one call batch at a time from now on."""
        self._limits[actor] = min(self._limits[actor], 1)

    def retire(self, actor: int) -> None:
        """Send an actor nothing more; its calls were :meth:`lost` before."""
        self._limits[actor] = 0

    def busy_since(self, actor: int) -> float | None:
        """Return since when an actor works on the first of its call batches; None if it has none."""
        return self._since[actor] if self._in_flight[actor] else None

    def consumed(self, call: int) -> None:
        """Take note that the driver has added a result."""
        self._budget.consumed(call)

    # --- pieces ---------------------------------------------------------------------------------------

    def _at_home(self, position: int, actor: int) -> int:
        """Return where the longest call of the actor's home waits, if it is about as long as the one at a position; the
        position otherwise."""
        if self._homes is None:
            return position
        least = ALIKE * self._costs[self._waiting[position]]
        for other in reversed(range(position + 1)):
            if self._costs[self._waiting[other]] < least:
                break
            if self._homes[self._waiting[other]] == self._nodes[actor]:
                return other
        return position

    def _free_at(self, actor: int, now: float, pace: float) -> float:
        """The time at which an actor is expected to have done all that it was given."""
        costs = [sum(self._costs[call] for call in batch) for batch in self._in_flight[actor].values()]
        if not costs:
            return now
        return max(now, self._since[actor] + costs[0] * pace) + sum(costs[1:]) * pace

    def _take(self, position: int, actor: int, rates: Sequence[float | None]) -> list[int]:
        """The call at ``position``, with shorter ones after it while they are short together.

        They stay within the actor's fair share, which is a lower bound of the round, so that they do not lengthen it.
        """
        taken = [self._waiting.pop(position)]
        home = self._homes and self._homes[taken[0]]
        rate = rates[actor]
        if not rate:
            return taken
        rates = [rate for rate, limit in zip(rates, self._limits, strict=True) if limit]
        speeds = [1 / other for other in rates if other]
        share = self._total / rate / sum(speeds) if len(speeds) == len(rates) else self._total / len(rates)
        cost = self._costs[taken[0]]
        while position:
            position -= 1
            if self._homes and self._homes[self._waiting[position]] != home:
                continue
            cost += self._costs[self._waiting[position]]
            too_long = cost * rate > SHORT or self._given[actor] + cost > share * (1 + 1e-9)
            if too_long or not self._budget.fits([*taken, self._waiting[position]]):
                break
            taken.append(self._waiting.pop(position))
        return taken

    def _send(self, actor: int, calls: list[int], now: float) -> tuple[int, list[int]]:
        if not self._in_flight[actor]:
            self._since[actor] = now
        self._in_flight[actor][calls[0]] = calls
        for call in calls:
            self._given[actor] += self._costs[call]
            self._budget.sent(call)
        return actor, calls
