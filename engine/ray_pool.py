"""Blocks on Ray actors: dispatch, replacement of the dead, deadlines, GPU shares.

Public Ray API only, but for one constant (see :func:`_loopback_alone`). Actors are started by whoever builds the pool
(the driver actor, or a trial in its placement group) and land where that caller's children land. An actor is never
restarted by Ray: a new one takes its place and its blocks are run again, which changes no bit, since a block's result
depends on nothing but its arguments.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

# Read by Ray at import. An actor without a GPU share must see no GPU, and nothing is sent home.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.exceptions
import torch

from engine.allocator import keep_freed_memory
from engine.data import Assignment, Dataset
from engine.devices import cores, device_class
from engine.dispatch import Dispatch, Rates, Room
from engine.entries import Arrays
from engine.errors import ResourceError, RunError
from engine.experiment import Execution, Experiment, no_gpu
from engine.pool import Call, Pool, Result
from engine.stages import hardware_of, mixed, numerics
from engine.state_room import size_text
from engine.states import Handle
from engine.worker import Worker

log = logging.getLogger("fedskew")
NO_ROOM = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
ROOM = 0.25  # of this node's object store for blocks that are out: the data and clients' states lie there too


def connect(execution: Execution, address: str | None = None, crowd: bool = True) -> None:
    """Use the Ray that is there, or start one on this machine.

    ``crowd``: with room for the actors asked for, even where they are more than the machine has cores.
    """
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address or os.environ.get("RAY_ADDRESS"):
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ResourceError(f"no Ray answers at {address or os.environ['RAY_ADDRESS']}: {error}") from None
        return
    if execution.gpus_per_actor > 0 and not torch.cuda.is_available():
        raise no_gpu(execution)
    there = cores()
    wanted = math.ceil(execution.actors * execution.cpus_per_actor)
    if crowd and wanted > there:
        log.warning(
            "%d actors want %d CPUs and this machine has %d: slower, the same bits",
            execution.actors,
            wanted,
            there,
        )
    with _loopback_alone():
        ray.init(address="local", num_cpus=max(there, wanted) if crowd else there, include_dashboard=False, **quiet)


@contextmanager
def _loopback_alone() -> Iterator[None]:
    """What Ray starts meanwhile can be reached from this machine only.

    Who reaches a port of Ray can run code. On Linux Ray takes the machine's own address even where it is asked for
    127.0.0.1, and its processes then listen on all; with this variable it does as on macOS and Windows. Its processes
    read it when they start, this one has read it at import. A Ray on several nodes is never started in here.
    """
    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    constants: Any = sys.modules["ray._private.ray_constants"]
    before = os.environ.get(name), getattr(constants, "ENABLE_RAY_CLUSTER", True)
    os.environ[name], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[name]
        else:
            os.environ[name] = before[0]


def cluster() -> dict[str, float]:
    """What the Ray that :func:`connect` found has: nodes, and CPUs and GPUs over all of them."""
    total = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return {"nodes": nodes, "cpus": total.get("CPU", 0.0), "gpus": total.get("GPU", 0.0)}


def share(dataset: Dataset) -> Any:
    """A reference to the one copy that each node will hold."""
    try:
        return ray.put(dataset)
    except NO_ROOM:
        raise ResourceError(f"the data have no room: {_no_room()}") from None


def object_store_bytes() -> float:
    """Of Ray on this node."""
    here = ray.get_runtime_context().get_node_id()
    [resources] = [node["Resources"] for node in ray.nodes() if node["NodeID"] == here]
    return resources["object_store_memory"]


def gpu_share(asked: float) -> float:
    """``asked`` snapped to 1/n, the largest number of actors that fit on one card side by side.

    0.3 becomes 1/3 (three per card), since a share of 0.3 would leave a tenth of each card to nobody.
    """
    if asked == 0:
        return 0.0
    per_card = math.floor(1 / asked + 1e-6)
    return math.floor(1e4 / per_card) / 1e4  # Ray counts in ten-thousandths


def check_resources(execution: Execution) -> None:
    """Refuse a GPU share where there is no GPU; say how a share is snapped."""
    cards = ray.cluster_resources().get("GPU", 0)
    if execution.gpus_per_actor > 0 and cards == 0:
        raise no_gpu(execution)
    share = gpu_share(execution.gpus_per_actor)
    if abs(share - execution.gpus_per_actor) > 1e-3:
        log.warning(
            "execution.gpus_per_actor=%g is taken as 1/%d, so that %d actors share a card",
            execution.gpus_per_actor,
            round(1 / share),
            round(1 / share),
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


def argument_bytes(call: Call) -> int:
    """Of the arrays that travel with a call; states that lie in the object store already do not."""
    parts = [part for part in (*call.args, *call.states) if isinstance(part, dict)]
    return sum(array.nbytes for part in parts for array in part.values())


class ClientActor:
    """The actor around a worker."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment, share: float) -> None:
        self._cards = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if share and len(self._cards) != 1:
            raise RuntimeError(f"an actor with a GPU share of {share} was given the cards {self._cards}, not one")
        if experiment.execution.device == "cuda" and torch.cuda.device_count() != 1:
            raise RuntimeError(f"execution.device=cuda, but torch sees {torch.cuda.device_count()} GPUs in the actor")
        keep_freed_memory()
        self._worker = Worker(experiment, dataset, assignment)
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


@dataclass(frozen=True)
class Flight:
    """Calls that are on an actor."""

    actor: int
    calls: list[int]
    handles: list[Any]


class RayPool(Pool):
    """Client actors, each with its CPUs and its share of one card."""

    def __init__(self, experiment: Experiment, dataset: Any, assignment: Assignment) -> None:
        """``dataset`` is an object reference, so that a node holds one copy for all its actors."""
        execution = experiment.execution
        self._execution = execution
        self._share = gpu_share(execution.gpus_per_actor)
        self._arguments = (experiment, dataset, ray.put(assignment), self._share)
        options: dict[str, Any] = {
            "num_cpus": execution.cpus_per_actor,
            "num_gpus": self._share,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,  # of each call; Ray's server would keep them, a megabyte in a hundred rounds
        }
        self._class = ray.remote(**options)(ClientActor)
        self._token = 0
        self._rates = Rates()  # changes no bit
        self._result_bytes: dict[str, float] = {}  # of a call of each method, as last measured
        self._room = ROOM * object_store_bytes()
        self._held = False  # whether calls were held back for want of room
        self._actors: list[Any] = [self._start() for _ in range(execution.actors)]
        self._idle: list[tuple[Any, str]] = []  # actors with their kinds, see use
        try:
            self.placement = self._await_all()
            self.numerics = one_numerics([where["numerics"] for where in self.placement], execution)
            self._kinds = [where["kind"] for where in self.placement]  # of each actor
            for number, where in enumerate(self.placement):
                log.info("actor %d: process %d on node %s, GPU %s", number, where["pid"], where["node"], where["gpus"])
            nodes = Counter(where["node"] for where in self.placement)
            cards = min(int(1 / self._share + 1e-6), execution.actors) if execution.device == "cuda" else 0
            self.side_by_side = cards or max(nodes.values())
        except BaseException:
            self.close()
            raise

    def use(self, count: int) -> None:
        """Run on the first ``count`` actors from now on; the others wait until they are used again."""
        everyone = [*zip(self._actors, self._kinds, strict=True), *self._idle]
        self._actors, self._kinds = [actor for actor, _ in everyone[:count]], [kind for _, kind in everyone[:count]]
        self._idle = everyone[count:]

    def _start(self) -> Any:
        return self._class.remote(*self._arguments)

    def _await_all(self) -> list[dict[str, Any]]:
        """Where each actor is, once all are ready."""
        refs = [actor.ready.remote() for actor in self._actors]
        ready, pending = ray.wait(refs, num_returns=len(refs), timeout=self._execution.start_timeout)
        try:
            ray.get(ready)
        except ray.exceptions.RayActorError as error:
            raise ResourceError(f"a client actor could not start: {first_line(error)}") from None
        if pending:
            asked = {"CPU": self._execution.cpus_per_actor} | ({"GPU": self._share} if self._share else {})
            free, total = ray.available_resources(), ray.cluster_resources()
            told = ", ".join(f"{name}: {free.get(name, 0):g} free of {total.get(name, 0):g}" for name in asked)
            raise ResourceError(
                f"execution.actors={len(refs)}: {len(pending)} of them could not start within "
                f"{self._execution.start_timeout:g} s; asked for {asked} each, available {told}; "
                "lower execution.actors or their shares, or raise execution.start_timeout"
            )
        return ray.get(refs)

    # --- blocks ---------------------------------------------------------------------------------------

    def run(self, method: str, shared: Arrays, job: Any, calls: Sequence[Call], what: str) -> Iterator[Result]:
        self._token += 1
        common = ray.put((shared, job))
        room = Room(self._room, [argument_bytes(call) for call in calls], self._result_bytes.get(method, 0.0))
        dispatch = Dispatch([call.cost for call in calls], self._kinds, partial(self._rates.of, method), room)
        attempts = [0] * len(calls)
        done: dict[int, Result] = {}  # that wait for one before them
        flying: dict[Any, Flight] = {}

        def submit(number: int, taken: list[int]) -> None:
            handles = sum(calls[index].handles for index in taken)
            method_of = self._actors[number].call
            if handles:
                method_of = method_of.options(num_returns=1 + handles)
            arguments = [(calls[index].args, len(calls[index].states)) for index in taken]
            states = [state for index in taken for state in calls[index].states]
            refs = method_of.remote(method, self._token, [common], arguments, *states)
            first, rest = (refs[0], refs[1:]) if handles else (refs, [])
            flying[first] = Flight(number, taken, rest)

        def fill(wanted: int) -> None:
            while (trip := dispatch.next(time.perf_counter(), wanted)) is not None:
                submit(*trip)
            if dispatch.held and not self._held:
                self._held = True
                log.warning(
                    "%s: blocks wait until there is room for their results: those that are out may take %s, %g of "
                    "Ray's object store here; the same bits, perhaps slower; start Ray with a larger store",
                    what,
                    size_text(self._room),
                    ROOM,
                )

        def lost(number: int, reason: str) -> None:
            """Replace a dead actor and queue its blocks again."""
            ray.kill(self._actors[number])
            self._actors[number] = self._start()
            for ref in [ref for ref, flight in flying.items() if flight.actor == number]:
                del flying[ref]
            for index in dispatch.lost(number):
                attempts[index] += 1
                if attempts[index] > self._execution.retries:
                    raise RunError(
                        f"{what}: {calls[index].label} failed {attempts[index]} times, last because {reason}; "
                        "look into the actor's memory, or raise execution.retries"
                    )
                log.warning("%s: %s; %s will run again on a new actor", what, reason, calls[index].label)

        def land(ref: Any) -> None:
            """Take in the results of a trip."""
            flight = flying[ref]
            try:
                answer: Answer = ray.get(ref)
            except ray.exceptions.RayActorError as error:
                return lost(flight.actor, f"actor {flight.actor} died ({first_line(error)})")
            except ray.exceptions.ObjectLostError:
                raise _state_lost(what) from None
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ray.exceptions.ObjectLostError):  # an argument that could not be fetched
                    raise _state_lost(what) from None
                raise cause_of(error) from None
            del flying[ref]
            dispatch.landed(flight.actor, flight.calls[0], time.perf_counter(), answer.sizes)
            self._kinds[flight.actor] = answer.kind  # a new one in a dead one's place may be elsewhere
            self._rates.add(method, answer.kind, answer.seconds, sum(calls[index].cost for index in flight.calls))
            self._result_bytes[method] = answer.sizes[-1]
            handles = iter(flight.handles)
            for index, value in zip(flight.calls, answer.values, strict=True):
                done[index] = Result(value, tuple(islice(handles, calls[index].handles)), flight.actor)
            return None

        for index in range(len(calls)):
            while index not in done:
                fill(index)
                ready, _ = ray.wait(list(flying), num_returns=1, timeout=self._execution.block_timeout)
                if ready:
                    land(ready[0])
                    continue
                for number in sorted({flight.actor for flight in flying.values()}):
                    lost(number, f"actor {number} gave nothing back for {self._execution.block_timeout:g} s")
            fill(index)  # before the caller adds, so that no actor waits for it
            yield done.pop(index)
            dispatch.taken(index)

    def fetch(self, handle: Handle) -> Arrays:
        if not isinstance(handle, ray.ObjectRef):
            return handle
        try:
            return ray.get(handle, timeout=self._execution.block_timeout)
        except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError):
            raise _state_lost("reading client state") from None

    def close(self) -> None:
        for actor in [*self._actors, *(actor for actor, _ in self._idle)]:
            ray.kill(actor)
        self._actors, self._idle = [], []


def _state_lost(what: str) -> RunError:
    return RunError(f"{what}: client state was lost with the node that held it; resume from the last checkpoint")


def _no_room() -> str:
    return (
        "Ray's object store is full, and so is the disk that it spills to; free space there (below /tmp/ray, if "
        "nothing else was said), or start Ray with a larger store"
    )


def first_line(error: Exception) -> str:
    """The first line that says something, of Ray's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if "Traceback" in str(error) else lines[0] if lines else type(error).__name__


def cause_of(error: ray.exceptions.RayTaskError) -> BaseException:
    """The exception as the worker raised it, with the remote traceback in its notes."""
    if isinstance(error.cause, NO_ROOM):
        return RunError(f"{_no_room()}; then resume from the last checkpoint")
    cause = error.cause if isinstance(error.cause, BaseException) else error
    cause.add_note(str(error))
    return cause
