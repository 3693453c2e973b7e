"""Which call goes where next: simulated rounds against the known bounds, and what may be out at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from engine.worker.scheduling import IN_FLIGHT, SHORT, ByteBudget, MeasuredRates, Scheduler, homes_of


@dataclass(frozen=True)
class Played:
    makespan: float
    sent: list[tuple[int, list[int]]]  # as sent
    most_in_flight: int
    most_waiting: int  # results that waited for one before them


def play(
    costs: Sequence[float],
    speeds: Sequence[float],
    rate: Callable[[str], float | None] | None = None,
    budget: ByteBudget | None = None,
    size: int = 0,
    nodes: Sequence[str] = (),
) -> Played:
    """A round on actors that do ``speeds`` units of cost a second, one call batch after the other, without delays.

    ``rate``: what the rule takes the seconds per cost to be; none: what they are.
    """
    kinds = [str(speed) for speed in speeds]
    scheduler = Scheduler(costs, kinds, rate or (lambda kind: 1 / float(kind)), budget, nodes)
    queues: list[list[list[int]]] = [[] for _ in speeds]
    ends = [math.inf for _ in speeds]  # of the call batch that runs
    now, taken, done, sent = 0.0, 0, set[int](), []
    most_in_flight = most_waiting = 0
    while taken < len(costs):
        while (found := scheduler.next(now, taken)) is not None:
            actor, calls = found
            sent.append(found)
            queues[actor].append(calls)
            most_in_flight = max(most_in_flight, len(queues[actor]))
            if len(queues[actor]) == 1:
                ends[actor] = now + sum(costs[call] for call in calls) / speeds[actor]
        actor = int(np.argmin(ends))
        assert math.isfinite(ends[actor]), "nothing is on its way and something is still to be done"
        now = ends[actor]
        calls = queues[actor].pop(0)
        scheduler.returned(actor, calls[0], now, [size] * len(calls))
        rest = queues[actor][0] if queues[actor] else None
        ends[actor] = now + sum(costs[call] for call in rest) / speeds[actor] if rest else math.inf
        done |= {*calls}
        most_waiting = max(most_waiting, len(done))
        while taken in done:
            done.remove(taken)
            scheduler.consumed(taken)
            taken += 1
    assert sorted(call for _, calls in sent for call in calls) == list(range(len(costs)))
    return Played(now, sent, most_in_flight, most_waiting)


def least_makespan(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """Of all ways to share out the calls."""

    @cache
    def least(number: int, loads: tuple[float, ...]) -> float:
        if number == len(costs):
            return max(load / speed for load, speed in zip(loads, speeds, strict=True))
        return min(
            least(number + 1, (*loads[:actor], loads[actor] + costs[number], *loads[actor + 1 :]))
            for actor in range(len(loads))
        )

    return least(0, (0.0,) * len(speeds))


def test_a_hand_example() -> None:
    """Graham's: 5, 5, 4, 4, 3, 3, 3 on three actors end at 11 by this rule, and at 9 at best.

    Kills: calls in the order of the cohort, shortest first, actors by turns, more call batches ahead than two.
    """
    costs = [3, 5, 4, 3, 5, 3, 4]
    played = play(costs, [1, 1, 1])
    assert played.sent == [(0, [1]), (1, [4]), (2, [2]), (2, [6]), (0, [0]), (1, [3]), (2, [5])]
    assert (played.makespan, least_makespan(costs, (1, 1, 1))) == (11, 9)  # 4/3 - 1/9: the worst that there is
    assert played.most_in_flight == IN_FLIGHT


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_a_round_is_at_most_the_bound_from_the_best(unit: float) -> None:
    """Kills: any rule that is not longest first to where it ends first; short calls in one batch (all of them are, with
    a unit of a millisecond) beyond an actor's share of the round."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        actors = int(rng.integers(2, 4))
        costs = tuple(unit * np.ceil(20 * rng.pareto(1.2, int(rng.integers(1, 9)))))
        bound = 4 / 3 - 1 / (3 * actors)
        assert play(costs, [1] * actors).makespan <= bound * least_makespan(costs, (1,) * actors) * (1 + 1e-9)


def test_on_actors_of_different_speed() -> None:
    """Kills: the next call to whoever is free first, so that a slow actor ends the round with a long call."""
    assert play([6, 6], [6, 1]).makespan == 2
    held = play([6, 6, 6, 1], [6, 1])  # the slow one takes the shortest while longer ones wait for the fast one
    assert held.sent == [(0, [0]), (0, [1]), (1, [3]), (0, [2])]
    assert held.makespan == 3
    rng = np.random.default_rng(1)
    for _ in range(150):
        speeds = tuple(rng.integers(1, 6, int(rng.integers(2, 4))).tolist())
        costs = tuple(rng.integers(1, 30, int(rng.integers(1, 8))).tolist())
        bound = 2 * len(speeds) / (len(speeds) + 1)
        assert play(costs, speeds).makespan <= bound * least_makespan(costs, speeds) * (1 + 1e-9)


def test_a_skewed_cohort_is_balanced_at_its_end() -> None:
    """Two actors, 16 blocks by Dirichlet(0.1): as if each call were given, when the round begins, to whom has least.

    Kills: a call that is given away early to whoever has a place free, and then waits behind a long one.
    """
    for seed in range(50):
        costs = np.ceil(1000 * np.random.default_rng(seed).dirichlet([0.1] * 16)).tolist()
        loads = [0.0, 0.0]
        for cost in sorted(costs, reverse=True):
            loads[int(np.argmin(loads))] += cost
        assert play(costs, [1, 1]).makespan == max(loads)


def test_expectations_that_do_not_come_true_leave_nobody_idle() -> None:
    """Kills: waiting for an actor that ended long ago, or for one that never ends; a rate that is wrong or unknown."""
    rng = np.random.default_rng(2)
    for rate in (None, 1e-6, 1e6):
        for _ in range(50):
            costs = rng.integers(1, 30, 12).tolist()
            played = play(costs, [1, 1, 1], lambda kind, rate=rate: rate)
            assert played.makespan <= 2 * max(sum(costs) / 3, *costs)  # any list scheduling


def test_neighbouring_calls_go_to_one_node() -> None:
    """Kills: calls that go wherever room is, of whose sums half travel; shares that are not by speed, or not by cost;
    calls that are not the longest first."""
    assert homes_of([1.0] * 8, ["a", "b", "b", None, "b"], [1.0] * 5) == ["a"] * 2 + ["b"] * 6
    assert homes_of([1.0] * 8, ["a", "b"], [1.0, 1 / 3]) == ["a"] * 2 + ["b"] * 6
    assert homes_of([3.0, 1.0, 1.0, 1.0], ["a", "b"], [1.0] * 2) == ["a", "b", "b", "b"]
    assert homes_of([1.0] * 8, ["a", "a", None], [1.0] * 3) is homes_of([0.0], ["a", "b"], [1.0] * 2) is None
    costs, nodes = [5, 3, 4, 4, 3, 5, 4, 4], ["a", "b", "a", "b"]
    for unit in (1.0, 1e-3):  # alone, and in call batches
        played = play([unit * cost for cost in costs], [1] * 4, nodes=nodes)
        where = {call: nodes[actor] for actor, calls in played.sent for call in calls}
        assert [where[call] for call in range(8)] == ["a"] * 4 + ["b"] * 4
        assert [call for _, calls in played.sent for call in calls if call < 4] == [0, 2, 3, 1]


def test_nobody_waits_for_the_sake_of_a_home() -> None:
    """Kills: an actor that idles while calls of another home wait; a long call that a short one of the right home
    overtakes; a call whose home is lost; homes where what is out has no room, as results then wait for each other."""
    for speeds, calls, best in (([1, 3], 8, 2.0), ([1, 8], 36, 4.0), ([1, 1, 1, 1], 40, 10.0)):
        nodes = [f"node {actor // max(len(speeds) // 2, 1)}" for actor in range(len(speeds))]
        assert play([1.0] * calls, speeds, nodes=nodes).makespan == best
        narrow = play([1.0] * calls, speeds, nodes=nodes, budget=ByteBudget(60, [1] * calls, 10.0), size=10)
        assert narrow == play([1.0] * calls, speeds, budget=ByteBudget(60, [1] * calls, 10.0), size=10)
    assert play([5, 10, 5], [1, 1], nodes=["a", "b"]).makespan == 10
    rng, longer = np.random.default_rng(3), []
    for _ in range(200):
        costs = np.ceil(1000 * rng.dirichlet([0.3] * 16)).tolist()
        with_homes, without = (play(costs, [1] * 4, nodes=nodes).makespan for nodes in ("aabb", ""))
        longer.append(with_homes / without)
    assert np.mean(longer) < 1.01 and max(longer) < 1.2
    scheduler = Scheduler([1.0] * 4, ["cpu"] * 2, nodes=["a", "b"])
    scheduler.retire(0)
    assert [scheduler.next(0.0, None) for _ in range(3)] == [(1, [2]), (1, [3]), None]
    scheduler.returned(1, 2, 1.0, [0])
    assert scheduler.next(1.0, None) == (1, [0])


def test_short_calls_are_sent_together() -> None:
    """Kills: a batch for each call of a millisecond; one so long that the other actor has nothing; batches where
    nothing is known of how long they take."""
    played = play([1] * 16, [1000, 1000])
    assert [(actor, len(calls)) for actor, calls in played.sent] == [(0, 8), (1, 8)]
    per_batch = round(SHORT / 0.01)
    assert len(play([1] * 100, [100, 100]).sent[0][1]) == per_batch
    assert all(len(calls) == 1 for _, calls in play([1] * 16, [1000, 1000], lambda kind: None).sent)


def test_calls_of_an_actor_that_died_go_first() -> None:
    """Kills: a call that is lost, or sent last though it is the longest; cost that the dead one still counts."""
    scheduler = Scheduler([4, 3, 2, 1], ["a", "a"], lambda kind: 1.0)
    assert [scheduler.next(0.0, 0) for _ in range(5)] == [(0, [0]), (1, [1]), (1, [2]), (0, [3]), None]
    assert scheduler.lost(0) == [0, 3]
    assert scheduler.next(1.0, 0) == (0, [0])
    scheduler.returned(1, 1, 3.0, [0])
    scheduler.returned(1, 2, 5.0, [0])
    assert scheduler.next(5.0, 0) == (1, [3])  # the other one has nothing to do, and this one is about to end
    assert scheduler.next(5.0, 0) is None


def test_what_is_out_is_bounded() -> None:
    """The first call is the shortest, so all others would wait for it.

    Kills: no bound; a bound that lets nothing start, or that does not let through what makes room; arguments, or
    results that wait, that do not count.
    """
    costs = [1, *range(2, 40)]
    arguments = [10] * len(costs)
    without = play(costs, [1, 1], size=100)
    assert without.most_waiting >= len(costs) - 1
    budget = ByteBudget(1000, arguments, expected=100)
    played = play(costs, [1, 1], budget=budget, size=100)
    assert budget.most <= 1000 + 110
    assert played.most_waiting <= 10
    tight = ByteBudget(0, arguments, expected=100)
    assert play(costs, [1, 1], budget=tight, size=100).sent == [(0, [call]) for call in range(len(costs))]
    assert tight.most == 110
    unknown = ByteBudget(1000, arguments, expected=0)  # until the first result is there
    play(costs, [1, 1], budget=unknown, size=100)
    assert unknown.most <= 1000 + 2 * IN_FLIGHT * 110


def test_whether_the_bound_held_anything_back_is_known() -> None:
    """Kills: a message in each round, or none."""
    for limit, held in ((1000, False), (30, True)):
        scheduler = Scheduler([1, 1], ["a", "a"], lambda kind: None, ByteBudget(limit, [20, 20], 0))
        assert scheduler.next(0.0, 0) == (0, [0])
        assert (scheduler.next(0.0, 0) is None) == held
        assert scheduler.held_back == held


def test_rates_are_of_a_method_on_a_class() -> None:
    """Kills: rates of one class for all, a rate that is never corrected, a mean of ratios over any batches."""
    rates = MeasuredRates()
    assert rates.seconds_per_cost("train", "fast") is None
    rates.add("train", "fast", seconds=1.0, cost=10.0)
    assert rates.seconds_per_cost("train", "fast") == 0.1
    assert rates.seconds_per_cost("train", "slow") == 0.1  # unknown: as the others
    assert rates.seconds_per_cost("evaluate", "fast") is None
    rates.add("train", "slow", seconds=6.0, cost=20.0)
    assert (
        rates.seconds_per_cost("train", "fast"),
        rates.seconds_per_cost("train", "slow"),
        rates.seconds_per_cost("train", "new"),
    ) == (0.1, 0.3, 0.2)
    rates.add("train", "fast", seconds=2.0, cost=0.0)
    assert rates.seconds_per_cost("train", "fast") == pytest.approx((0.8 * 1.0 + 2.0) / (0.8 * 10.0))
    for _ in range(100):
        rates.add("train", "fast", seconds=1.0, cost=1.0)
    assert rates.seconds_per_cost("train", "fast") == pytest.approx(1.0)


def test_calls_of_a_lost_actor_come_first() -> None:
    """Kills: a dead actor's calls behind all others, for which the driver would wait at the end of the round."""
    scheduler = Scheduler([5.0, 4.0, 3.0, 2.0, 1.0], ["a", "b"], lambda kind: None, None)
    first, second = scheduler.next(0.0, 0), scheduler.next(0.0, 0)
    assert first is not None and second is not None
    scheduler.lost(first[0])
    sent = []
    while (found := scheduler.next(1.0, 0)) is not None:
        sent.append(found[1])
    assert sent[0] == first[1]
