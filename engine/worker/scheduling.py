"""Which call goes to which actor next. Pure: the clock is an argument, and nothing here knows Ray or changes a bit.

The longest call that waits goes to the actor that is expected to end it first. On actors of one speed that is LPT, so
if what is expected comes true a round takes at most 4/3 - 1/(3m) times the least possible on m actors (Graham 1969,
"Bounds on multiprocessing timing anomalies", theorem 3); on actors of different speed at most 2m / (m + 1) times
(Gonzalez, Ibarra and Sahni 1977, "Bounds for LPT schedules on uniform processors"). A call is not sent to another actor
because that one has a place free: it waits for the better one. Otherwise a call that lies behind a long one would end
the round late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

IN_FLIGHT = 2  # trips per actor: one running, one waiting beside it, so that no actor idles between two
SHORT_TRIP = 0.1  # seconds of work up to which calls share a trip to an actor and back
FADE = 0.8  # weight of what was measured before, at each trip that comes back


class Rates:
    """Measured seconds per cost of each method and device class."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, float]] = {}  # fading sums of seconds and cost

    def add(self, method: str, kind: str, seconds: float, cost: float) -> None:
        before = self._sums.get((method, kind), (0.0, 0.0))
        self._sums[method, kind] = (FADE * before[0] + seconds, FADE * before[1] + cost)

    def of(self, method: str, kind: str) -> float | None:
        """Of a class that has measured nothing yet, the mean of the others; None where nothing is known."""
        known = {of: sums for of, sums in self._sums.items() if of[0] == method and min(sums) > 0}
        if (method, kind) in known:
            known = {(method, kind): known[method, kind]}
        return sum(seconds / cost for seconds, cost in known.values()) / len(known) if known else None


class Room:
    """Bytes that are out: arguments and results of calls on actors, and results that wait for one before them."""

    def __init__(self, limit: float, arguments: Sequence[int], expected: float) -> None:
        """``arguments``: bytes that travel with each call; ``expected``: of a call's result, as last measured."""
        self._limit = limit
        self._arguments = arguments
        self.expected = expected
        self._out: dict[int, float] = {}
        self.most = 0.0  # ever out

    def fits(self, calls: Sequence[int]) -> bool:
        more = sum(self._arguments[call] + self.expected for call in calls)
        return sum(self._out.values()) + more <= self._limit

    def sent(self, call: int) -> None:
        self._out[call] = self._arguments[call] + self.expected
        self._note()

    def lost(self, call: int) -> None:
        del self._out[call]

    def landed(self, call: int, size: int) -> None:
        self._out[call] = self.expected = size
        self._note()

    def taken(self, call: int) -> None:
        """The driver has added the result."""
        del self._out[call]

    def _note(self) -> None:
        self.most = max(self.most, sum(self._out.values()))


class Dispatch:
    """The calls of one method over a pool of actors, from the first that is sent to the last that comes back."""

    def __init__(
        self,
        costs: Sequence[float],
        kinds: Sequence[str],
        rate: Callable[[str], float | None] = lambda kind: None,
        room: Room | None = None,
    ) -> None:
        """``kinds``: the device class of each actor, as it is known by now; ``rate``: seconds per cost of a class."""
        self._costs = costs
        self._kinds = kinds
        self._rate = rate
        self._room = room or Room(math.inf, [0] * len(costs), 0.0)
        self._waiting = sorted(range(len(costs)), key=lambda call: (costs[call], -call))  # the longest last
        self._flights: list[dict[int, list[int]]] = [{} for _ in kinds]  # first call -> calls of a trip, as sent
        self._limits = [IN_FLIGHT for _ in kinds]  # trips that may be on an actor; 0: it was given up
        self._since = [0.0 for _ in kinds]  # when the first of an actor's trips began
        self._given = [0.0 for _ in kinds]  # cost
        self._total = sum(costs)
        self.held = False  # whether a call ever waited for room

    def next(self, now: float, wanted: int) -> tuple[int, list[int]] | None:
        """An actor and the calls of a trip to it, which count as sent; None while nothing should be sent.

        ``wanted``: the call whose result the driver waits for. Where there is no room for another one, it alone goes,
        since that is what makes room: something is always on its way until all calls have come back.
        """
        if not self._waiting:
            return None
        rates = [self._rate(kind) for kind in self._kinds]
        pace = [1.0 if rate is None else rate for rate in rates]
        there = [actor for actor, limit in enumerate(self._limits) if limit]
        free = [self._free_at(actor, now, pace[actor]) for actor in range(len(pace))]
        idle = not all(self._flights[actor] for actor in there)
        for place in reversed(range(len(self._waiting))):
            cost = self._costs[self._waiting[place]]
            actor = min(there, key=lambda one: (free[one] + cost * pace[one], len(self._flights[one])))
            if len(self._flights[actor]) < self._limits[actor]:
                if self._room.fits([self._waiting[place]]):
                    return self._send(actor, self._take(place, actor, rates), now)
                self.held = True
                if wanted not in self._waiting:
                    return None
                self._waiting.remove(wanted)
                return self._send(actor, [wanted], now)
            if not idle:
                return None
            free[actor] += cost * pace[actor]  # it will wait for that one; perhaps a shorter one need not
        return None

    def landed(self, actor: int, first: int, now: float, sizes: Sequence[int]) -> None:
        """A trip has come back; ``sizes``: bytes of each of its results."""
        for call, size in zip(self._flights[actor].pop(first), sizes, strict=True):
            self._room.landed(call, size)
        self._since[actor] = now

    def lost(self, actor: int) -> list[int]:
        """The calls that were on an actor, which has died: they are the next to be sent."""
        calls = [call for trip in self._flights[actor].values() for call in trip]
        for call in calls:
            self._given[actor] -= self._costs[call]
            self._room.lost(call)
        self._flights[actor].clear()
        self._waiting += reversed(calls)
        return calls

    def narrow(self, actor: int) -> None:
        """One trip at a time from now on."""
        self._limits[actor] = min(self._limits[actor], 1)

    def retire(self, actor: int) -> None:
        """Nothing more; its calls were :meth:`lost` before."""
        self._limits[actor] = 0

    def busy_since(self, actor: int) -> float | None:
        """Since when an actor works on the first of its trips; None if it has none."""
        return self._since[actor] if self._flights[actor] else None

    def taken(self, call: int) -> None:
        """The driver has done with a result."""
        self._room.taken(call)

    # --- pieces ---------------------------------------------------------------------------------------

    def _free_at(self, actor: int, now: float, pace: float) -> float:
        """When an actor is expected to have done all that it was given."""
        costs = [sum(self._costs[call] for call in trip) for trip in self._flights[actor].values()]
        if not costs:
            return now
        return max(now, self._since[actor] + costs[0] * pace) + sum(costs[1:]) * pace

    def _take(self, place: int, actor: int, rates: Sequence[float | None]) -> list[int]:
        """The call at ``place``, with shorter ones after it where a trip is short, since each costs milliseconds.

        They stay within the actor's fair share, which is a lower bound of the round, so that they do not lengthen it.
        """
        taken = [self._waiting.pop(place)]
        rate = rates[actor]
        if not rate:
            return taken
        rates = [rate for rate, limit in zip(rates, self._limits, strict=True) if limit]
        speeds = [1 / other for other in rates if other]
        share = self._total / rate / sum(speeds) if len(speeds) == len(rates) else self._total / len(rates)
        cost = self._costs[taken[0]]
        while place:
            place -= 1
            cost += self._costs[self._waiting[place]]
            too_long = cost * rate > SHORT_TRIP or self._given[actor] + cost > share * (1 + 1e-9)
            if too_long or not self._room.fits([*taken, self._waiting[place]]):
                break
            taken.append(self._waiting.pop(place))
        return taken

    def _send(self, actor: int, calls: list[int], now: float) -> tuple[int, list[int]]:
        if not self._flights[actor]:
            self._since[actor] = now
        self._flights[actor][calls[0]] = calls
        for call in calls:
            self._given[actor] += self._costs[call]
            self._room.sent(call)
        return actor, calls
