"""Calls over actors that die, hang, start late and run out of memory: in a simulation with a clock of its own, without
Ray, so that hundreds of histories are tried in a second."""

from __future__ import annotations

import random
import re
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from engine.base.errors import MemoryShort, ResourceError, RunError, RunFolderError
from engine.experiment import Execution
from engine.worker import pool, stopwatch
from engine.worker.pool import Call, Deadline
from engine.worker.ray import actor_group, errors, resilient_calls
from engine.worker.ray.actor_group import ActorGroup
from engine.worker.ray.resilient_calls import CallRun, Measurements
from engine.worker.ray.wire import CallMeasure
from engine.worker.scheduling import IN_FLIGHT
from engine.worker.stopwatch import Stopwatch
from tests.support.loops import each

START, BLOCK, RETRIES = 60.0, 30.0, 3
DIED = ray.exceptions.ActorDiedError()
LOST = ray.exceptions.ObjectLostError("an object", "its owner", "")
KILLED = ray.exceptions.OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.")
Fate = tuple[float, Exception | None] | None  # after how many seconds what is raised, or a result; none: never anything


class Sum(tuple[int, ...]):
    """The calls that are in a sum."""

    nbytes = 0


@dataclass(eq=False)
class Ref:
    """What a remote call gave: what it comes to, and when."""

    at: float
    value: Any = None
    error: Exception | None = None
    node: str = ""  # where it lies, if it is a sum
    sums: tuple[Ref, ...] = ()  # that are added for it


@dataclass(eq=False)
class Actor:
    """Works on one call batch after the other; ``fate`` says what becomes of each, and of its start."""

    world: World
    number: int
    busy_until: float = 0.0
    dead: bool = False
    flying: list[Ref] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ready = SimpleNamespace(remote=self._ready)
        self.call = self
        self.add = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self._add))
        self.node = f"node {self.number % 2}"

    def options(self, num_returns: int) -> Any:
        return SimpleNamespace(remote=lambda *args: self._with_sums(self.remote(*args), args[4]))

    def _with_sums(self, reply: Ref, calls: list[Any]) -> list[Ref]:
        return [reply, *(Ref(reply.at, Sum(call.args), reply.error, self.node) for call in calls)]

    def _add(self, left: Ref, right: Ref, last: bool) -> tuple[Ref, Ref]:
        reply = self.remote("add", 0, [], self.number, [])
        reply.sums = (left, right)
        return reply, Ref(reply.at, Sum((*left.value, *right.value)), reply.error, self.node)

    def _ready(self) -> Ref:
        where = {"node": self.node, "gpus": [], "pid": self.number, "numerics": {"torch": "x"}}
        fate = self.world.start_of(self)
        if fate is None:
            self.busy_until = float("inf")
            return Ref(float("inf"))
        self.busy_until = self.world.now + fate[0]
        return Ref(self.busy_until, {**where, "kind": "cpu"}, fate[1])

    def remote(self, method: str, token: int, common: Any, number: int, calls: list[Any], *states: Any) -> Ref:
        fate = self.world.fate_of(self)
        values = [SimpleNamespace(number=call.args[0], sum=()) for call in calls]
        ref = Ref(float("inf"))
        if fate is not None and not self.dead:
            self.busy_until = max(self.busy_until, self.world.now) + fate[0]
            reply = CallMeasure(fate[0], [1] * len(values), "cpu"), values
            ref = Ref(self.busy_until, reply, fate[1])
            if fate[1] is not None:  # whatever comes after it comes to the same
                self.dead, self.error = True, fate[1]
        elif self.dead:
            ref = Ref(max(self.busy_until, self.world.now), None, self.error)
        if method == "add":
            return ref
        self.flying.append(ref)
        self.world.most_in_flight[self.number] = max(
            self.world.most_in_flight.get(self.number, 0), sum(ref.at > self.world.now for ref in self.flying)
        )
        return ref


class World:
    """Ray and the clock, as far as a run of calls knows them."""

    def __init__(self, start_of: Callable[[Actor], Fate], fate_of: Callable[[Actor], Fate]) -> None:
        self.now = 0.0
        self.start_of = start_of
        self.fate_of = fate_of
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []
        self.most_in_flight: dict[int, int] = {}
        self.watch = Stopwatch()
        self.exceptions = ray.exceptions
        self.gone: dict[str, float] = {}  # nodes -> when all that lay there was lost, last

    def start(self) -> Actor:
        self.actors.append(Actor(self, len(self.actors)))
        return self.actors[-1]

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def kill(self, actor: Actor) -> None:
        assert actor not in self.killed
        self.killed.append(actor)
        actor.dead = True

    def wait(self, refs: list[Ref], num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        assert refs, "nothing is waited for"
        assert timeout >= 0
        assert self.now < 1e5, "this does not end"
        until = min(self.now + timeout, sorted(ref.at for ref in refs)[min(num_returns, len(refs)) - 1])
        self.now = max(self.now, until)
        ready = [ref for ref in refs if ref.at <= self.now][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: Ref, timeout: float = 0.0) -> Any:
        assert ref.at <= self.now
        if ref.error is not None:
            raise ref.error
        if self._is_lost(ref):
            raise LOST
        if any(map(self._is_lost, ref.sums)):
            raise ray.exceptions.RayTaskError("add", "lost", LOST)
        return ref.value

    def _is_lost(self, ref: Ref) -> bool:
        return ref.at <= self.gone.get(ref.node, -1.0) <= self.now

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}

    cluster_resources = available_resources


def fine(actor: Actor) -> Fate:
    return 1.0, None


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    fate_of: Callable[[Actor], Fate],
    start_of: Callable[[Actor], Fate] = fine,
    calls: int = 12,
    count: int = 3,
    round_timeout: float | None = None,
    add_apart: bool = False,
) -> tuple[World, ActorGroup, Callable[[], list[int]]]:
    """The world, the actors, and what runs the calls: the numbers of those whose results came, in their order.

    add_apart: the actors add what calls come to, here their numbers; they have to be those of all calls.
    """
    world = World(start_of, fate_of)
    for module in (actor_group, resilient_calls, errors):
        monkeypatch.setattr(module, "ray", world)
    for module in (actor_group, resilient_calls):
        monkeypatch.setattr(module, "time", world)
    for module in (pool, stopwatch):
        monkeypatch.setattr(module, "time", world)
    world.watch = Stopwatch()
    execution = Execution(actors=count, start_timeout=START, block_timeout=BLOCK, retries=RETRIES)
    actors = ActorGroup(world.start, execution, 0.0)
    actors.await_all()
    asked = [Call(f"clients {number}", (number,), cost=1 + number % 3) for number in range(calls)]

    def run() -> list[int]:
        actors.renumber()
        deadline = Deadline(7, round_timeout)
        about = actors, Measurements(1e9), execution, deadline
        sent = CallRun(*about, "train", (1, None), asked, "round 7", world.watch, add_apart)
        results = [*sent.results()]
        assert not add_apart or sorted(results[-1].sum) == list(range(calls))
        assert not any(result.sum for result in results[:-1])
        return [result.number for result in results]

    return world, actors, run


@pytest.mark.parametrize("add_apart", [False, True])
def test_each_call_comes_back_once_and_in_order(monkeypatch: pytest.MonkeyPatch, add_apart: bool) -> None:
    """Kills: a result that is lost, doubled or out of order, where nothing goes wrong."""
    world, _, run = simulate(monkeypatch, fine, add_apart=add_apart)
    assert run() == list(range(12))
    assert not world.killed
    assert max(world.most_in_flight.values()) == IN_FLIGHT


def test_waits_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three calls of 3 s on two actors. Kills: a wait for the last result that counts as training; bytes of an actor's
    batch that count once a run."""
    world, _, run = simulate(monkeypatch, lambda actor: (3.0, None), calls=3, count=2)
    world.watch.turn("training")
    run()
    row = world.watch.row()
    assert {phase: row[f"{phase}_seconds"] for phase in ("training", "wait")} == {"training": 3.0, "wait": 3.0}
    assert row["bytes_in"] == 3


@each("course", range(300))
@pytest.mark.parametrize("add_apart", [False, True])
def test_any_course_ends(monkeypatch: pytest.MonkeyPatch, course: int, add_apart: bool) -> None:
    """Kills: an endless loop; a call that comes back twice or never, or is added twice or never; an error that is none
    of the documented ones. Where actors add, nodes lose what lies there as well."""
    rng = random.Random(course)
    bad = rng.choice([0.02, 0.1, 0.3, 0.8])

    def fate(actor: Actor) -> Fate:
        if rng.random() > bad:
            return rng.uniform(0.1, 5), None
        if add_apart and rng.random() < 0.5:
            actor.world.gone[actor.node] = actor.world.now
        return rng.choice([None, (rng.uniform(0, 5), DIED), (rng.uniform(0, 5), KILLED)])

    def start(actor: Actor) -> Fate:
        if actor.number < 3 or rng.random() > bad:
            return rng.uniform(0.1, 20), None
        return rng.choice([None, (rng.uniform(0, 5), DIED)])

    world, actors, run = simulate(monkeypatch, fate, start, add_apart=add_apart)
    ends = "failed 4 times, last because|with one block at a time on the last actor|could not start"
    try:
        for _ in range(3):
            assert run() == list(range(12))
    except (RunError, ResourceError) as error:
        told = str(error)
        assert re.search(ends, told) and "\n" not in told, told
    assert actors.numbers
    assert len(world.killed) <= 12 * (RETRIES + 1) * 3
    actors.kill_all()
    assert len(world.killed) == len(world.actors)


def test_only_the_actor_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Kills: a deadline that costs actors which work; one that counts from the wrong moment."""
    hung = iter([None])
    world, actors, run = simulate(
        monkeypatch, lambda actor: next(hung, (20.0, None)) if actor.number == 1 else (20.0, None)
    )
    assert run() == list(range(12))
    assert [actor.number for actor in world.killed] == [1]
    assert "round 7: actor 1 gave nothing back for 30 s (execution.block_timeout); clients" in caplog.text
    assert [actors[number].handle.number for number in actors.numbers] == [0, 3, 2]


def test_an_actor_that_cannot_be_started_again_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Kills: waiting for ever for a node that is gone; an end where others can go on."""
    _, actors, run = simulate(
        monkeypatch,
        lambda actor: (1.0, DIED) if actor.number == 1 else (1.0, None),
        lambda actor: None if actor.number > 2 else (1.0, None),
        calls=300,
    )
    assert run() == list(range(300))
    assert run() == list(range(300))
    assert len(actors.numbers) == 2
    assert "1 of them could not start within 60 s" in caplog.text
    assert "going on without that actor, with 2: the same bits" in caplog.text


def test_the_last_actor_that_does_not_start_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a pool of nobody."""
    _, _, run = simulate(
        monkeypatch,
        lambda actor: (1.0, DIED),
        lambda actor: (1.0, None) if actor.number == 0 else None,
        count=1,
    )
    with pytest.raises(ResourceError, match=r"execution.actors=1: 1 of them could not start within 60 s; asked for"):
        run()


def test_want_of_memory_takes_actors_away_and_no_more(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Kills: the same load on the same node again; two batches where one was too much; an actor of another node
    that is slowed with it."""
    killed = iter([(1.0, KILLED)])
    world, actors, run = simulate(
        monkeypatch, lambda actor: next(killed, (1.0, None)) if actor.number == 0 else (1.0, None), count=4
    )
    assert run() == list(range(12))
    assert len(actors.numbers) == 3
    assert actors.low_memory == {"node 0"}
    world.most_in_flight.clear()
    assert run() == list(range(12))
    assert world.most_in_flight == {1: IN_FLIGHT, 2: 1, 3: IN_FLIGHT}
    assert "low on memory; going on without that actor, with 3: the same bits" in caplog.text


def test_want_of_memory_on_the_last_actor_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a loop of actors that are killed for the same block."""
    world, _, run = simulate(monkeypatch, lambda actor: (1.0, KILLED), count=2)
    with pytest.raises(MemoryShort, match=r"round 7: .*low on memory.*, with one block at a time on the last actor"):
        run()
    assert len(world.actors) == 3


def test_a_round_on_actors_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a deadline that waits for the next result."""
    world, _, run = simulate(monkeypatch, lambda actor: (25.0, None), round_timeout=40.0)
    message = r"round 7 took longer than execution.round_timeout=40 s, and waited for round 7: clients \d+; raise it"
    with pytest.raises(RunError, match=message):
        run()
    assert world.now == pytest.approx(41.0, abs=0.1)


def test_the_last_actor_of_a_node_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an end, where two that were killed at once had room one after the other."""
    world, actors, run = simulate(
        monkeypatch,
        lambda actor: (1.0, KILLED) if actor.number in (0, 2) else (1.0, None),
        count=3,
    )
    actors.give_up(1)  # the two that are left are on one node
    assert run() == list(range(12))
    assert [actor.number for actor in world.killed] == [1, 0, 2]
    assert actors.tried_alone


def test_nothing_counts_of_an_actor_that_computes_other_bits(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Kills: results of a new actor that are added before it has said what it computes with."""
    _, actors, run = simulate(
        monkeypatch,
        lambda actor: (1.0, DIED) if actor.number == 1 else (0.0, None),
        lambda actor: (0.0, None) if actor.number > 2 else (1.0, None),
        calls=300,
    )
    ready = Actor._ready

    def other(actor: Actor) -> Ref:
        ref = ready(actor)
        if actor.number > 2:
            ref.value = {**ref.value, "numerics": {"torch": "y"}}
        return ref

    monkeypatch.setattr(Actor, "_ready", other)
    assert run() == list(range(300))
    assert actors.numerics == {"torch": "x"}
    assert len(actors.numbers) == 2
    assert "the actors differ in torch" in caplog.text


def test_a_deadline_holds_while_results_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a deadline that is looked at only where nothing comes."""
    world, _, run = simulate(monkeypatch, lambda actor: (1.0, None), calls=100, round_timeout=5.0)
    with pytest.raises(RunError, match=r"round 7 took longer than execution.round_timeout=5 s"):
        run()
    assert world.now < 10


# --- what is told of Ray's errors --------------------------------------------------------------------------------


def of_ray(raised: BaseException, in_start: bool = False) -> ray.exceptions.RayError:
    """What Ray makes of an exception in an actor, with the codes of colours that it puts in."""
    try:
        raise raised
    except BaseException:
        frames = traceback.format_exc()
    of_task = ray.exceptions.RayTaskError("f", frames, raised, "ray::ClientActor.__init__", 1, "127.0.0.1", "x", "y")
    return ray.exceptions.ActorDiedError(of_task) if in_start else of_task


@pytest.mark.parametrize("in_start", [False, True])
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ResourceError("torch sees 0 GPUs"), "torch sees 0 GPUs"),
        (RunFolderError("runs/x has no record of trial 3: b"), "runs/x has no record of trial 3: b"),
        (ValueError("two\n  lines \x1b[31mred"), r"ValueError: two lines red"),
        (subprocess.CalledProcessError(1, "ls"), "CalledProcessError: Command 'ls' returned non-zero exit status 1."),
        (KeyError("a"), "KeyError: 'a'"),
    ],
)
def test_an_error_of_an_actor_is_told_by_its_last_cause(raised: Exception, told: str, in_start: bool) -> None:
    """Kills: Ray's first line in the place of the cause, codes of colours, frames, the module of a class."""
    assert errors.last_cause(of_ray(raised, in_start)) == told


def test_an_error_of_an_actor_in_an_actor_is_told_by_its_last_cause() -> None:
    """Kills: the outer one of two actors' errors, as of a trial whose client actor could not start."""
    inner = of_ray(ResourceError("torch sees 0 GPUs"), in_start=True)
    assert errors.last_cause(of_ray(inner)) == "torch sees 0 GPUs"
    assert errors.last_cause(of_ray(inner, in_start=True)) == "torch sees 0 GPUs"


def test_a_death_without_a_cause_is_told_by_rays_first_line() -> None:
    """Kills: an empty reason; the numbers of actors and jobs that follow."""
    assert errors.last_cause(DIED) == "The actor died unexpectedly before finishing this task."
    assert errors.last_cause(KILLED) == str(KILLED)
