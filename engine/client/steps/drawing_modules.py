"""Modules that draw random numbers in their forward pass (dropout, stochastic depth, noise), with keys to their draws.

torch's modules draw from its global generator, whose state depends on what the process has done before. So while such
a module runs, its draws are made from the step streams of the clients that are trained (:class:`StepDraws`), which
their trainer has put at hand with :func:`drawing_from`, for the thread: workers of one process are threads. In a pass
over several clients each one's numbers come from its own stream, in the shape that they have where it is alone, so
that executors agree to the bit.

It is done below autograd and ``vmap``, where whatever way a module draws has become one of torch's operations that are
tagged as random; an operation without a rule here is refused. Networks of modules that are known not to draw are not
touched. What draws beside torch, or beside a module, is found by ``global_generators.py``.

Shapes: k clients of a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engine.base.errors import UnkeyedDraw
from engine.client.steps.random_operations import RULES, Draw, NotEachClients

PURPOSE = "forward"  # of the streams
QUIET = ("torch.nn.", "engine.models.")  # packages whose modules do not draw, but for those that follow
DRAWING = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MultiheadAttention,  # as the recurrent ones: where it has dropout
    nn.RNNBase,
)
# Tensors that a module makes within a mapped function, in torch's way: all clients' at once, which none may fill alone.
FACTORIES = frozenset(
    (torch.empty, torch.zeros, torch.ones, torch.full, Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones)
)


def may_draw(module: nn.Module) -> bool:
    """Return whether a module's own forward pass may draw; of a module that is not known it may."""
    if isinstance(module, DRAWING):
        return getattr(module, "dropout", 1.0) != 0.0
    return not type(module).__module__.startswith(QUIET)


class StepDraws:
    """The streams of the clients whose steps are taken, each consumed in step order."""

    def __init__(
        self, streams: Sequence[Callable[[str], torch.Generator]], stacked: bool = False, refusal: str = ""
    ) -> None:
        """``stacked``: the clients are computed in one mapped function. ``refusal``: why nothing may be drawn."""
        self.stacked = stacked
        self.refusal = refusal
        self.token: Tensor | None = None  # [] 0 within the mapped function, of each client
        self._streams = streams

    def generators(self) -> list[torch.Generator]:
        return [stream(PURPOSE) for stream in self._streams]

    def states(self) -> list[Tensor]:
        """The states of the streams, from which the next draws can be made once more."""
        return [generator.get_state() for generator in self.generators()]

    @staticmethod
    def again(states: Sequence[Tensor], stacked: bool = False) -> StepDraws:
        """Return draws that go on from the states of others, which stay as they are."""
        streams = []
        for state in states:
            generator = torch.Generator()
            generator.set_state(state)
            streams.append(partial(_given, generator))
        return StepDraws(streams, stacked)


class _Here(threading.local):
    """The thread's draws, and what was opened for modules that are under way."""

    def __init__(self) -> None:
        self.draws: StepDraws | None = None
        self.opened: list[ExitStack] = []


_here = _Here()


@contextmanager
def drawing_from(draws: StepDraws) -> Iterator[None]:
    """Let modules that run in this thread draw from ``draws``."""
    before, _here.draws = _here.draws, draws
    try:
        yield
    finally:
        _here.draws = before


def watch(model: nn.Module) -> bool:
    """Key the draws of a network's modules; return whether any of them may draw."""
    inside: list[str] = []
    for name, module in model.named_modules():
        if may_draw(module) and not any(name.startswith(f"{outer}.") for outer in inside):
            inside.append(name)
            module.register_forward_pre_hook(partial(_enter, f"{name} ({type(module).__name__})"))
            module.register_forward_hook(_leave, always_call=True)
    return bool(inside)


def _enter(name: str, module: nn.Module, args: Any) -> None:
    stack = ExitStack()
    keyed = _Keyed(name, _here.draws)
    stack.enter_context(_Made(keyed))
    stack.enter_context(keyed)
    _here.opened.append(stack)


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    _here.opened.pop().close()


class _Keyed(TorchDispatchMode):
    """Random operations by the rules, from the streams at hand."""

    def __init__(self, name: str, draws: StepDraws | None) -> None:
        super().__init__()
        self.name = name
        self.draws = draws
        self.within = False  # one of the rules
        self._turn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_random(func) or _without_dropout(func, args, kwargs):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None or any(isinstance(arg, torch.Generator) for arg in args):
            raise self._refused(func, "from a generator of its own, whose state is the worker's and not the client's")
        rule = RULES.get(func)
        if rule is None:
            raise self._refused(func, "which has no rule to be keyed; draw by torch.rand, randn or bernoulli")
        if self.draws is None:
            raise self._refused(func, "outside of training; draw where self.training is True alone")
        if self.draws.refusal:
            raise self._refused(func, self.draws.refusal)
        self.within = True
        try:
            return rule(Draw(self.draws.generators(), self.draws.stacked, self._next), args, kwargs)
        except NotEachClients as error:
            raise self._refused(func, f"{error}; set execution.executor=loop") from error
        finally:
            self.within = False

    def _next(self, count: int) -> int:
        """The number of the client whose turn it is, where each one's is drawn in a call of its own."""
        turn, self._turn = self._turn, (self._turn + 1) % count
        return turn

    def _refused(self, func: Any, why: str) -> UnkeyedDraw:
        operation = func.overloadpacket.__name__
        return UnkeyedDraw(f"the network's module {self.name} draws random numbers by {operation}, {why}")


class _Made(TorchFunctionMode):
    """What has to be seen before ``vmap`` does: it refuses to fill a tensor in place that was made for all clients."""

    def __init__(self, keyed: _Keyed) -> None:
        super().__init__()
        self._keyed = keyed

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._keyed.within:
            return func(*args, **kwargs)
        if func is F.rrelu:
            return rrelu(*args, **kwargs)
        made = func(*args, **kwargs)
        draws = self._keyed.draws
        if func in FACTORIES and draws is not None and draws.token is not None and made.is_floating_point():
            return made + draws.token.to(made.dtype)
        return made


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """``F.rrelu``, with a slope drawn for every number: torch's operation cannot be mapped over clients."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2, inplace)
    out = torch.where(x >= 0, x, x * (torch.rand_like(x) * (upper - lower) + lower))
    return x.copy_(out) if inplace else out


@cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation draws for its dropout alone, of which there is none."""
    at = _dropout_at(func)
    if at is None:
        return False
    number, name = at
    return not (args[number] if number < len(args) else kwargs.get(name, 0.0))


@cache
def _dropout_at(func: Any) -> tuple[int, str] | None:
    """The place and name of an operation's chance of dropout, which attention and recurrent layers have."""
    names = [argument.name for argument in func._schema.arguments]
    return next(((names.index(name), name) for name in ("dropout_p", "dropout") if name in names), None)


def _given(generator: torch.Generator, purpose: str) -> torch.Generator:
    return generator
