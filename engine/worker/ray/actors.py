"""Client actors, and the roster that a pool has of them: started, waited for, replaced, given up.

An actor is never restarted by Ray: a new one takes its place, which must compute the same bits. Where it cannot be
started again, or memory does not do for so many, the pool goes on with fewer.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

# Read by Ray at import. An actor without a GPU share must see no GPU, and nothing is sent home.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.exceptions
import torch

from engine.base.allocator import keep_freed_memory
from engine.base.devices import device_class
from engine.base.errors import ResourceError, RunError
from engine.client.jobs import JobRunner
from engine.data import Assignment, Dataset
from engine.experiment import Execution, Experiment
from engine.record.hashing import hardware_of, mixed, numerics

log = logging.getLogger("fedskew")
FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
NO_ROOM = (
    "Ray's object store is full, and so is the disk that it spills to; free space there (below /tmp/ray, if nothing "
    "else was said), or start Ray with a larger store"
)


def gpu_share(asked: float) -> float:
    """``asked`` snapped to 1/n, the largest number of actors that fit on one card side by side.

    0.3 becomes 1/3 (three per card), since a share of 0.3 would leave a tenth of each card to nobody.
    """
    if asked == 0:
        return 0.0
    per_card = math.floor(1 / asked + 1e-6)
    return math.floor(1e4 / per_card) / 1e4  # Ray counts in ten-thousandths


class Answer(NamedTuple):
    """What comes back of a trip to an actor."""

    values: list[Any]  # the first result of each call
    seconds: float  # of work
    sizes: list[int]  # bytes of each of these results
    kind: str  # the actor's device class


def size_of(value: Any) -> int:
    """Bytes of a result on its way; its arrays are not copied for that."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return len(rest) + sum(array.raw().nbytes for array in arrays)


class ClientActor:
    """The actor around a worker."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment, share: float) -> None:
        self._cards = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if share and len(self._cards) != 1:
            raise RuntimeError(f"an actor with a GPU share of {share} was given the cards {self._cards}, not one")
        if experiment.execution.device == "cuda" and torch.cuda.device_count() != 1:
            raise RuntimeError(f"execution.device=cuda, but torch sees {torch.cuda.device_count()} GPUs in the actor")
        keep_freed_memory()
        self._worker = JobRunner(experiment, dataset, assignment)
        self._numerics = numerics(experiment, hardware_of(experiment.execution.device))
        self._kind = device_class(experiment.execution.device)
        self._token = 0
        self._job: Any = None

    def ready(self) -> dict[str, Any]:
        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "gpus": self._cards,
            "pid": os.getpid(),
            "numerics": self._numerics,
            "kind": self._kind,
        }

    def call(
        self, method: str, token: int, common: list[Any], calls: list[tuple[tuple[Any, ...], int]], *states: Any
    ) -> Any:
        """Some calls in a row: (their :class:`Answer`, further results of the first call, of the second, ...).

        ``common`` holds the reference to (shared, job), opened once a round and not once a call; ``calls`` the
        arguments of each call and how many of ``states`` are its.
        """
        if token != self._token:
            shared, self._job = ray.get(common[0])
            self._worker.receive(shared)
            self._token = token
        began = time.perf_counter()
        values, handles = [], []
        left = iter(states)
        for args, count in calls:
            value = getattr(self._worker, method)(self._job, *args, *islice(left, count))
            first, *rest = value if isinstance(value, tuple) else (value,)
            values.append(first)
            handles += rest
        answer = Answer(values, time.perf_counter() - began, [size_of(value) for value in values], self._kind)
        return (answer, *handles) if handles else answer


@dataclass
class Place:
    """An actor of the roster."""

    handle: Any
    ready: Any  # a reference to its first answer
    since: float  # when it was started, and from its first answer on when that came
    where: dict[str, Any] | None = None  # that answer; none: it is starting

    @property
    def node(self) -> str | None:
        return self.where["node"] if self.where else None


class Roster:
    """The actors of a pool, by number. A number stays an actor's while calls are out; see :meth:`close_ranks`."""

    def __init__(self, start: Callable[[], Any], execution: Execution, share: float) -> None:
        """``start`` gives a new actor's handle; ``share``: of a GPU."""
        self._new = start
        self._execution = execution
        self._share = share
        self._places: list[Place | None] = [self._start() for _ in range(execution.actors)]
        self._idle: list[Place] = []  # see use
        self.narrow = set[str]()  # nodes on which memory did not do, so that one trip at a time goes to an actor there
        self.alone = False  # whether the last actor was tried alone, since memory did not do
        self.numerics: dict[str, str] = {}

    def _start(self) -> Place:
        handle = self._new()
        return Place(handle, handle.ready.remote(), time.perf_counter())

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Place:
        place = self._places[number]
        assert place is not None, f"actor {number} was given up"
        return place

    @property
    def numbers(self) -> list[int]:
        """Of the actors that were not given up."""
        return [number for number, place in enumerate(self._places) if place is not None]

    @property
    def kinds(self) -> list[str]:
        """The device class of each, as it is known by now; one that is starting is taken to be like the first."""
        known = [place.where["kind"] for place in self._places if place and place.where]
        like = known[0] if known else self._execution.device
        return [place.where["kind"] if place and place.where else like for place in self._places]

    @property
    def placement(self) -> list[dict[str, Any]]:
        return [place.where for place in self._places if place and place.where]

    def await_all(self) -> None:
        """Until all are ready; a :class:`ResourceError` if they cannot be."""
        refs = {number: self[number].ready for number in self.numbers}
        _, pending = ray.wait([*refs.values()], num_returns=len(refs), timeout=self._execution.start_timeout)
        for number, ref in refs.items():
            if ref not in pending:
                self.started(number)
        if pending:
            raise self.not_started(len(pending))

    def started(self, number: int) -> None:
        """Take in the first answer of an actor; a :class:`ResourceError` if it is none, or of other bits."""
        place = self[number]
        try:
            where: dict[str, Any] = ray.get(place.ready)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            raise ResourceError(f"a client actor could not start: {first_line(error)}") from None
        before = [self.numerics] if self.numerics else []
        self.numerics = one_numerics([*before, where["numerics"]], self._execution)
        place.where, place.since = where, time.perf_counter()
        log.info("actor %d: process %d on node %s, GPU %s", number, where["pid"], where["node"], where["gpus"])

    def starting(self) -> dict[Any, int]:
        """The references to first answers that are not there yet -> whose."""
        places = ((number, self[number]) for number in self.numbers)
        return {place.ready: number for number, place in places if place.where is None}

    def start_time_left(self, number: int) -> float:
        """Seconds that an actor which is starting has for that."""
        return self[number].since + self._execution.start_timeout - time.perf_counter()

    def replace(self, number: int) -> None:
        ray.kill(self[number].handle)
        self._places[number] = self._start()

    def give_up(self, number: int) -> None:
        """Go on without an actor; the last one is not to be given up."""
        assert len(self.numbers) > 1
        ray.kill(self[number].handle)
        self._places[number] = None

    def close_ranks(self) -> None:
        """Number anew those that are left; between runs of calls."""
        self._places = [place for place in self._places if place is not None]

    def use(self, count: int) -> None:
        """The first ``count`` from now on; the others wait until they are used again."""
        everyone = [*(self[number] for number in self.numbers), *self._idle]
        self._places, self._idle = [*everyone[:count]], everyone[count:]

    def kill_all(self) -> None:
        for place in [*self._places, *self._idle]:
            if place is not None:
                ray.kill(place.handle)
        self._places, self._idle = [], []

    def not_started(self, pending: int) -> ResourceError:
        """What to raise where so many actors are overdue."""
        asked = {"CPU": self._execution.cpus_per_actor} | ({"GPU": self._share} if self._share else {})
        free, total = ray.available_resources(), ray.cluster_resources()
        told = ", ".join(f"{name}: {free.get(name, 0):g} free of {total.get(name, 0):g}" for name in asked)
        return ResourceError(
            f"execution.actors={self._execution.actors}: {pending} of them could not start within "
            f"{self._execution.start_timeout:g} s; asked for {asked} each, available {told}; "
            "lower execution.actors or their shares, or raise execution.start_timeout"
        )


def one_numerics(of_actors: Sequence[dict[str, str]], execution: Execution) -> dict[str, str]:
    """What all actors compute with; refuses a pool in which bits would depend on who does what."""
    merged = {name: mixed(*(numerics[name] for numerics in of_actors)) for name in of_actors[0]}
    for name, value in merged.items():
        if value != of_actors[0][name]:
            if not execution.mixed_hardware:
                raise ResourceError(
                    f"execution.mixed_hardware=False: the actors differ in {name} ({value}), so bits would depend on "
                    "who does what; use nodes of one kind, or set execution.mixed_hardware=true, which marks the result"
                )
            log.warning("actors differ in %s (%s): bits depend on who does what", name, value)
    return merged


def store_full(what: str) -> RunError:
    return RunError(f"{what}: {NO_ROOM}; then resume from the last checkpoint")


def first_line(error: Exception) -> str:
    """The first line that says something, of Ray's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if "Traceback" in str(error) else lines[0] if lines else type(error).__name__


def cause_of(error: ray.exceptions.RayTaskError) -> BaseException:
    """The exception as the worker raised it, with the remote traceback in its notes."""
    if isinstance(error.cause, FULL):
        return store_full("an actor's results")
    cause = error.cause if isinstance(error.cause, BaseException) else error
    cause.add_note(str(error))
    return cause
