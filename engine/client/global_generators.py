"""A guard on generators that a process has one of: nothing that a run computes may draw from them.

Their state depends on all that the process has done, so a number drawn there has no key, and a run would come to other
bits each time without a word. Their states before and after a block of clients' work, or a method of the server's step,
tell. Who it was is then looked for among the network's modules, in forward passes made for that.

torch's and numpy's generators are looked at. Python's ``random`` is not: libraries draw from it for their own
purposes, such as the time until they try again. What others, callbacks say, do between blocks does not concern it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from engine.base.errors import UnkeyedDraw
from engine.client.steps.drawing_modules import StepDraws, drawing_from
from engine.client.steps.flat_net import FlatNet

PASSES = 3  # in which a module must have drawn each time: threads beside this one may draw in the meantime
ROWS = 2  # of a pass
MERSENNE = 4 * 624 + 4  # bytes of a Mersenne twister: its words, and how many of them are used
_ONE_SEARCH = threading.Lock()  # at a time, in this process


class GlobalStates(NamedTuple):
    """The states of a process's global generators at a moment."""

    of_torch: bytes
    of_numpy: bytes
    of_card: bytes = b""

    @classmethod
    def now(cls, device: torch.device | None = None) -> GlobalStates:
        card = _bytes(torch.cuda.get_rng_state(device)) if device is not None and device.type == "cuda" else b""
        return cls(_bytes(torch.get_rng_state()), _numpy_state(), card)

    def moved(self, now: GlobalStates) -> str:
        """Name the generator whose state is another one now; empty if none is."""
        named = zip(("torch's", "numpy's", "the card's"), self, now, strict=True)
        return next((f"{whose} global generator" for whose, before, after in named if before != after), "")


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _numpy_state() -> bytes:
    """The state of numpy's global generator, but for a normal number that it may hold in reserve.

    Read where it lies: ``np.random.get_state`` takes a hundred times as long as all else here.
    """
    generator = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
    if isinstance(generator, np.random.MT19937):
        return ctypes.string_at(generator.ctypes.state_address, MERSENNE)
    return repr(generator.state).encode()  # set by np.random.set_bit_generator


class Runner(Protocol):
    """Whoever does jobs with networks on a device."""

    device: torch.device

    @property
    def nets(self) -> Sequence[FlatNet]: ...


P = ParamSpec("P")
R = TypeVar("R")
Job = TypeVar("Job")
Of = TypeVar("Of", bound=Runner)


def drawing_by_key(
    work: Callable[Concatenate[Of, Job, P], R],
) -> Callable[Concatenate[Of, Job, P], R]:
    """Let a runner's method raise :class:`UnkeyedDraw` where its job draws from a global generator."""

    @wraps(work)
    def guarded(runner: Of, job: Job, *args: P.args, **kwargs: P.kwargs) -> R:
        before = GlobalStates.now(runner.device)
        result = work(runner, job, *args, **kwargs)
        generator = before.moved(GlobalStates.now(runner.device))
        if generator:
            raise _of_job(runner, job, generator)
        return result

    return guarded


@contextmanager
def drawing_nothing(what: str) -> Iterator[None]:
    """Raise :class:`UnkeyedDraw` where the block, which does ``what`` on the server, draws from a global generator."""
    before = GlobalStates.now()
    yield
    generator = before.moved(GlobalStates.now())
    if generator:
        raise UnkeyedDraw(f"{what} draws from {generator}, which has no key; {ADVICE}")


ADVICE = "draw from client.rng(...) or tools.rng(...), or of seeds.generator(...) where neither is at hand"


def _of_job(runner: Runner, job: Any, generator: str) -> UnkeyedDraw:
    """The error for a job, by the module that draws or else by the algorithm."""
    context = getattr(job, "context", job)
    when = f"round {context.round}: " if hasattr(context, "round") else ""
    for net in runner.nets:
        module = drawing_module(net, runner.device)
        if module is not None:
            return UnkeyedDraw(
                f"{when}the network's module {module} draws from {generator}, which has no key; draw by torch's own "
                "functions in its forward, while self.training is True: those draws are keyed by client and round"
            )
    who = getattr(job, "fn", None) or getattr(job, "algorithm", job)
    who = getattr(who, "func", who)  # of a partial
    name = getattr(who, "__name__", type(who).__name__)
    return UnkeyedDraw(
        f"{when}{name}, and no module of the network, draws from {generator}, which has no key; {ADVICE}"
    )


def drawing_module(net: FlatNet, device: torch.device) -> str | None:
    """Name a module whose own forward pass in training mode moves a global generator; None if none does."""
    with _ONE_SEARCH:
        moving = [_moving(net, device) for _ in range(PASSES)]
    return next((name for name in moving[0] if all(name in names for names in moving)), None)


def _moving(net: FlatNet, device: torch.device) -> list[str]:
    """The modules that do in one pass, each without those within it."""
    begun: list[GlobalStates] = []
    found: list[str] = []

    def enter(module: nn.Module, args: Any) -> None:
        begun.append(GlobalStates.now(device))

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        inside = any(other.partition(" ")[0].startswith(f"{name}.") for other in found) or (not name and found)
        if begun.pop().moved(GlobalStates.now(device)) and not inside:
            found.append(f"{name} ({type(module).__name__})")

    handles = []
    for name, module in net.model.named_modules():
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(partial(leave, name), always_call=True))
    training, buffers = net.model.training, net.buffers.clone()
    net.train(True)
    stream = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad(), drawing_from(StepDraws([lambda purpose: stream])):
            net(torch.zeros(ROWS, *net.layout.image, device=device, dtype=net.weights.dtype))
    except Exception:  # an error that the work itself had not is none to be told of
        pass
    finally:
        for handle in handles:
            handle.remove()
        net.train(training)
        net.buffers.copy_(buffers)
    return found
