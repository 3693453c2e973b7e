"""Steps that are captured once and replayed: for other clients, in later blocks and rounds.

A step of a small network is bound by the time that the host takes to start its operations. A CUDA graph starts all of
them at once, on the addresses and with the numbers of the moment in which it was captured. What keeps that right:

* Whatever a step reads or writes lies in a :class:`Program`'s memory, which is copied into, never replaced.
* What is no tensor is part of what a program or a bucket of it is found by: hyper-parameters, shapes of entries, what
  of the algorithm acts; the phase, the range of clients, the shapes of a step's inputs, and what the step has read of
  the context, which is noted.
* Nothing that leaves a program's memory is a view of it.

A bucket is captured when it comes for the second time. The first time its step is run as it is written, on the stream
that will capture it, so that whatever a library sets up on its first call is there; and what comes once, like the last
batch of a client whose number of rows nobody else has, costs no capture. Clients of many sizes have more buckets than
there is room for: a capture then takes the place of one that has come less often, or in a context that is over. To make
room for each in turn would be to capture nearly all again, and a capture takes as long as some hundred steps.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from engine.algorithm import Algorithm, Client, Context, Tensors
from engine.base.errors import RunError
from engine.client.steps.step_inputs import Inputs
from engine.client.vmap.block_inputs import shared
from engine.client.vmap.compiled_step import Compiled, Compiler, Usual, alignments
from engine.client.vmap.cuda_streams import Lane
from engine.client.vmap.step_memory import Memory
from engine.client.vmap.step_plan import StepPlan
from engine.experiment import Local

PROGRAMS = 2  # whose memory and graphs are kept; a run has one at a time, unless a round has blocks of one client
GRAPHS = 64  # of a program
COUNTED = 4096  # buckets whose uses are counted

log = logging.getLogger("fedskew")


Work = Callable[[], None]


class Recorder(Protocol):
    """A way to capture work."""

    def warm_up(self, work: Work) -> None:
        """Do the work, where it is to be captured later."""
        ...

    def record(self, work: Work) -> Work:
        """Capture the work without doing it; what is returned does it, on the same tensors."""
        ...


class CudaRecorder:
    """By torch.cuda.CUDAGraph.

    All graphs of a recorder share a pool for what is allocated within them. That is safe, since they run one after the
    other on one stream and nothing that was allocated in one is read after it.
    """

    def __init__(self, device: torch.device, lane: Lane | None = None) -> None:
        """``lane``: in which all graphs are to be replayed; None: on the present stream, whichever that is."""
        self._stream = _capture_stream(device) if lane is None else lane.stream
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        present = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(present)
        try:
            with torch.cuda.stream(self._stream):
                work()
        finally:  # of a client that fails, too: others go on in the memory that its step was still reading
            present.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        torch.clear_autocast_cache()  # casts made before are not of the weights as they will be
        try:
            with _nothing_collected(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        finally:
            torch.clear_autocast_cache()  # those made now lie in the pool
        return graph.replay


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keep Python's garbage collector away: CUDA gives a capture up when another graph is destroyed during it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recorders: libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device)


class Programs:
    """The programs of one network on one data set, whose steps are all in one ``lane``, if in any."""

    def __init__(
        self, recorder: Callable[[], Recorder], lane: Lane | None = None, compiler: Compiler | None = None
    ) -> None:
        """``compiler``: of steps, where they are compiled before they are captured."""
        self.recorder = recorder
        self.lane = lane
        self._compiler = compiler
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    def of(
        self,
        algorithm: Algorithm,
        local: Local,
        plans: tuple[StepPlan, ...],
        clients: Sequence[Client],
        received: Sequence[Tensors],
        states: Sequence[Tensors],
    ) -> Program:
        """The one that fits these clients; what they have received and keep counts by its shapes."""
        same = shared(received)
        entries = [(name, name in same, *_form(tensor)) for name, tensor in received[0].items()]
        entries += [(name, *_form(tensor)) for name, tensor in states[0].items()]
        step = repr(local.doing(1))  # is the same whatever number of them a client takes
        key = (type(algorithm), repr(algorithm), step, plans, tuple(entries))
        program = self._programs.get(key)
        if program is None or program.capacity < len(clients):
            program = Program(self.recorder(), len(clients), type(algorithm).__name__, self.lane, self._compiler)
        self._programs[key] = program
        self._programs.move_to_end(key)
        if len(self._programs) > PROGRAMS:
            self._programs.popitem(last=False)
        program.context = clients[0].context
        return program

    def settle(self) -> None:
        """Let whatever is done next come after all steps."""
        if self.lane is not None:
            self.lane.join()


class Key(NamedTuple):
    """What a bucket is found by."""

    bucket: Hashable
    forms: Hashable  # of a step's inputs
    context: Hashable  # what the step has read of it


@dataclass(frozen=True)
class Captured:
    """A step that can be replayed."""

    inputs: Inputs
    replay: Work

    def run(self, inputs: Inputs) -> None:
        for name, tensor in inputs.named().items():
            self.inputs.named()[name].copy_(tensor)
        self.replay()


class Program(Memory):
    """The memory of up to ``capacity`` clients, and the steps that were captured on it."""

    context: Context  # of the round

    def __init__(
        self,
        recorder: Recorder,
        capacity: int,
        algorithm: str,
        lane: Lane | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self.capacity = capacity
        self.compiles = compiler is not None
        self._compiler = compiler
        self._lane = lane
        self._recorder = recorder
        self._algorithm = algorithm
        self._held: Tensors = {}
        self._of_clients: set[str] = set()  # names of what is held of each client
        self._captured: dict[Key, Captured] = {}
        self._compiled: dict[Hashable, Compiled | None] = {}  # by form
        self._usual: dict[tuple[Usual, Hashable], Captured | None] = {}
        self._uses: Counter[Key] = Counter()
        self._read: set[str] = set()  # fields of the context
        self._told: set[str] = set()

    # --- memory -----------------------------------------------------------------------------------------

    def rows(self, name: str, tensor: Tensor) -> Tensor:
        self._of_clients.add(name)
        return self._at(name, tensor, (self.capacity, *tensor.shape[1:]))[: len(tensor)].copy_(tensor)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return self._at(name, tensor, tensor.shape).copy_(tensor)

    def number(self, name: str, value: float, like: Tensor) -> Tensor:
        return self._at(name, like, ()).fill_(value)

    def watched(self, context: Context) -> Context:
        return cast(Context, _Watched(context, self._read))

    def _at(self, name: str, like: Tensor, shape: Sequence[int]) -> Tensor:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = like.new_empty(tuple(shape))
        assert (held.shape, held.dtype) == (torch.Size(shape), like.dtype), name
        return held

    # --- steps ------------------------------------------------------------------------------------------

    def step(
        self, bucket: Hashable, work: Callable[[Inputs], None], inputs: Inputs, usual: Usual | None = None
    ) -> None:
        compiled = self._compiled_step(self._compiler, usual, work, inputs) if self._compiler and usual else None
        if compiled is not None:
            with self._in_lane(inputs):
                compiled.run(inputs)
            return
        key = self._key(bucket, inputs)
        if key not in self._captured and self._makes_room(key):
            self._captured[key] = self._capture(work, inputs)
        if key in self._captured:
            with self._in_lane(inputs):
                self._captured[key].run(inputs)
        else:
            self._recorder.warm_up(lambda: work(inputs))
        self._uses[self._key(bucket, inputs)] += 1  # the step may have read more of the context
        if len(self._uses) > COUNTED:
            self._uses = Counter({key: uses // 2 for key, uses in self._uses.items() if uses > 1})

    def _makes_room(self, key: Key) -> bool:
        """Return whether a bucket is to be captured, with a place left for it."""

        def worth(one: Key) -> tuple[bool, int]:
            return one.context == key.context, self._uses[one]

        if key in self._uses and len(self._captured) >= GRAPHS:
            least = min(self._captured, key=worth)
            if worth(least) < worth(key):
                del self._captured[least]
        return key in self._uses and len(self._captured) < GRAPHS

    def _in_lane(self, read: Inputs | None = None) -> AbstractContextManager[None]:
        """Put work within where replays are."""
        if self._lane is None:
            return nullcontext()
        return self._lane.after(read.named().values() if read is not None else ())

    def copied(self, tensor: Tensor) -> Tensor:
        with self._in_lane():
            return tensor.clone()

    def settle(self) -> None:
        if self._lane is not None:
            self._lane.join()

    def aside(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            log.info("%s: %s are not captured, but run step by step", self._algorithm, why)

    def _key(self, bucket: Hashable, inputs: Inputs) -> Key:
        context = tuple((name, getattr(self.context, name)) for name in sorted(self._read))
        return Key(bucket, self._forms(inputs), context)

    @staticmethod
    def _forms(inputs: Inputs) -> Hashable:
        return tuple((name, *_form(tensor)) for name, tensor in inputs.named().items())

    def _compiled_step(
        self, compiler: Compiler, usual: Usual, work: Callable[[Inputs], None], inputs: Inputs
    ) -> Captured | None:
        """Return the compiled step, from the first time on: it has other bits. None for one that is not compiled."""
        key = usual, self._forms(inputs)
        if key not in self._usual:
            before = {name: tensor.clone() for name, tensor in self._held.items()}
            try:
                self._usual[key] = self._first_compiled(compiler, key, work, inputs.copied())
            finally:
                for name, tensor in before.items():
                    self._held[name].copy_(tensor)
        return self._usual[key]

    def _first_compiled(
        self, compiler: Compiler, key: tuple[Usual, Hashable], work: Callable[[Inputs], None], own: Inputs
    ) -> Captured | None:
        """Compile and capture a step on ``own`` inputs, which is taken more than once by this."""
        usual, forms = key
        of_clients = [self._held[name] for name in sorted(self._of_clients)]
        form = usual.form, forms, alignments(of_clients, usual.first)
        if form not in self._compiled:
            earlier = set(self._read)
            self._read.clear()
            try:
                self._compiled[form] = compiler.compiled(work, own, usual, self._read, of_clients)
            finally:
                self._read |= earlier
        compiled = self._compiled[form]
        if compiled is None:
            return None
        step = compiled.bound(usual, own)
        self._recorder.warm_up(step)  # what is set up or loaded on a first call is not for a capture
        return self._recorded(own, step)

    def _capture(self, work: Callable[[Inputs], None], inputs: Inputs) -> Captured:
        with self._in_lane(inputs):
            own = inputs.copied()  # memory of the lane's, whenever the capture is dropped
        return self._recorded(own, lambda: work(own))

    def _recorded(self, own: Inputs, step: Work) -> Captured:
        try:
            return Captured(own, self._recorder.record(step))
        except torch.OutOfMemoryError:  # is one, too, and is told as elsewhere: with the number of clients to lower
            raise
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise RunError(
                f"a step of {self._algorithm} cannot be captured as a CUDA graph: {why}; set execution.executor=block"
            ) from error


class _Watched:
    """A context of which is noted what is read."""

    def __init__(self, context: Context, read: set[str]) -> None:
        self._context = context
        self._names = read

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._context, name)


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
