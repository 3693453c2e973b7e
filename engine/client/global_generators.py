"""A guard on generators that a process has one of: no block of clients' work may draw from them.

Their states before and after it tell, see ``engine/base/part_calls.py``. Who it was is then looked for among the
network's modules, in forward passes made for that. What others, callbacks say, do between blocks does not concern it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import nn

from engine.base.errors import UnkeyedDraw
from engine.base.part_calls import ADVICE, GlobalStates, staying
from engine.client.steps.drawing_modules import StepDraws, drawing_from
from engine.client.steps.flat_net import FlatNet

PASSES = 3  # in which a module must have drawn each time: threads beside this one may draw in the meantime
ROWS = 2  # of a pass
_ONE_SEARCH = threading.Lock()  # at a time, in this process


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
        with staying(f"{_when(job)}{_who(job)}, or a module of the network,"):
            result = work(runner, job, *args, **kwargs)
        generator = before.moved(GlobalStates.now(runner.device))
        if generator:
            raise _of_job(runner, job, generator)
        return result

    return guarded


def _of_job(runner: Runner, job: Any, generator: str) -> UnkeyedDraw:
    """The error for a job, by the module that draws or else by the algorithm."""
    when = _when(job)
    for net in runner.nets:
        module = drawing_module(net, runner.device)
        if module is not None:
            return UnkeyedDraw(
                f"{when}the network's module {module} draws from {generator}, which has no key; draw by torch's own "
                "functions in its forward, while self.training is True: those draws are keyed by client and round"
            )
    return UnkeyedDraw(
        f"{when}{_who(job)}, and no module of the network, draws from {generator}, which has no key; {ADVICE}"
    )


def _when(job: Any) -> str:
    context = getattr(job, "context", job)
    return f"round {context.round}: " if hasattr(context, "round") else ""


def _who(job: Any) -> str:
    who = getattr(job, "fn", None) or getattr(job, "algorithm", job)
    who = getattr(who, "func", who)  # of a partial
    return getattr(who, "__name__", type(who).__name__)


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
