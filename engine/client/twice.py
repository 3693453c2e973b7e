"""Twice the same: whether parts come to the same bits for a client again, after another client's round.

And to the same model, but for rounding, by the loop as in a pass of several clients, in which Python runs once for all
of them: what it changes in place, or decides by a tensor's facts, may be lost there without a word.

What a round depends on is all in what it is given. A part that keeps something elsewhere, in a class, a module, a
cache, a file, comes to numbers that depend on whom its process trained before: on the number of workers, and on where
a run was resumed. So a client's round is computed, then another's, then the first one again.

Out of reach are what whoever comes first decides for all that follow (nothing of a user's is put back for a trial: it
may be there once for good, like a registered operator), state that acts on later rounds, other rows or other clients
alone, numbers that are the same all through a process (its number, its host, addresses of objects), and what threads
do to each other.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from torch import nn

from engine.algorithm import Tensors
from engine.base.errors import RunError
from engine.base.own_modules import OURS
from engine.base.part_calls import bits, first_other, require_unwritten, settings
from engine.base.sources import is_installed
from engine.client.messages import Scores, TrainResult
from engine.client.steps.flat_net import FlatNet

ROWS, STEPS = 24, 2  # that a client of a trial has at least; that it takes, unless its phases say how many
LONG = 10.0  # seconds of a client's trial after which it is the only one
MOST, MOST_IN_ALL = 10_000, 300_000  # entries of a container that is looked into; of all that is
ALIKE = 1e-3  # of the way that a client's model goes: by how much it may be another one by the loop, by rounding
REPAIR = "keep it in a client's state or in the server's entries, and what a network keeps in buffers of real numbers"
CACHED = type(lru_cache(int))
CONTAINERS = (dict, list, set, deque)
OPENED = (tuple, staticmethod, classmethod, property, partial, MethodType)  # that hold others, and never other ones

Trial = Callable[[int], tuple[TrainResult, Scores]]


def compared(
    who: str, parts: Sequence[object], shared: Tensors, trial: Trial, certain: bool
) -> tuple[list[TrainResult], str]:
    """Make the trials of client 0, client 1 and client 0 again; return the first two, none if one takes too long.

    who: who answers for ``parts``, in words. shared: what all clients receive. certain: see :func:`check_same`, whose
    doubt is returned as well. Raises :class:`RunError` also for parts that write into ``shared``, or set what is the
    whole process's.
    """
    reached, before, given = Reached(parts), settings(), bits(shared)
    began = time.perf_counter()
    first, of_first = trial(0)
    numbers = _numbers(first, of_first)  # now: they may lie in memory that is written to again
    require_unwritten(f"{who} writes into received", first_other(given, bits(shared)))
    moved = first_other(before, settings())
    if moved is not None:
        raise RunError(f"{who} changes {moved} in a client's round, and others share it; leave it as it is")
    if time.perf_counter() - began > LONG:
        return [], ""
    second, of_same_weights = trial(1)
    numbers_then = _numbers(first, of_first)
    scores, other = ({"score": bits(one)} for one in (of_first, of_same_weights))
    doubt = check_same(who, "the test of the same weights", scores, other, reached, certain)
    doubt = check_same(who, "a client's round", numbers, _numbers(*trial(0)), reached, certain) or doubt
    if first_other(numbers, numbers_then):
        raise RunError(f"{who} writes into what an earlier client has sent, which is added later; send a new tensor")
    return [first, second], doubt


def check_loop(who: str, shared: Tensors, stacked: TrainResult, alone: TrainResult) -> None:
    """Raise :class:`RunError` where a client's model is another one by the loop, or the loop fails."""
    repair = "set execution.executor=loop"
    if alone.failures and not stacked.failures:
        raise RunError(f"{who} fails one client at a time ({alone.failures[0].reason}), and not with several at once")
    if stacked.failures:
        return  # the round will tell
    for one, other in zip(stacked.models, alone.models, strict=True):
        for name in ("weights", "buffers"):
            start, ends = shared.get(name), (one[name].double().cpu(), other[name].double().cpu())
            if start is None or start.shape != ends[0].shape or not start.numel():
                continue
            start = start.double().cpu()
            rounding = ALIKE * (ends[1] - start).norm() + 1e-6 * start.norm()
            if (ends[0] - ends[1]).norm() > rounding:
                raise RunError(f"{who} gives a client other {name} alone than in a pass of several clients; {repair}")


def check_buffers(who: str, net: FlatNet) -> None:
    """Raise :class:`RunError` where a pass has put another tensor in a buffer's place: one of several clients undoes
    that, so that the buffer never moves.
    """
    for name, piece in zip(net.buffer_names, net.buffer_pieces(net.buffers), strict=True):
        if net.model.get_buffer(name).data_ptr() != piece.data_ptr():
            rule = f"puts another tensor in the place of buffer {name}"
            raise RunError(f"{who} {rule}; write into it, as self.{name.rpartition('.')[2]}.copy_(...) does")


def check_same(
    who: str, what: str, first: dict[str, object], again: dict[str, object], reached: Reached, certain: bool = True
) -> str:
    """Raise :class:`RunError` where two times have other bits under a name.

    certain: whether nothing but the parts can be the cause; otherwise a doubt is returned, unless something is found
    that has changed.
    """
    name = first_other(first, again)
    if name is None:
        return ""
    rule = f"{who} comes to another {name} when {what} is computed again after another client's"
    kept = reached.changed()
    if not kept and not certain:
        return f"{rule}: it keeps something, or the card adds in no fixed order"
    by = ", ".join(kept[:3]) or "what a class, a module, a cache, a file or a clock has"
    raise RunError(f"{rule}, by {by}: results would depend on the number of actors, and on resuming; {REPAIR}")


def _numbers(trained: TrainResult, scores: Scores) -> dict[str, object]:
    """The bits of all that a trial came to, by name."""
    total = trained.sum.whole()
    held = {f"upload[{name!r}]": tensor for name, tensor in total.uploads.items()}
    for state in trained.states.values():
        held |= {f"state[{name!r}]": tensor for name, tensor in state.items()}
    for model in trained.models:
        held |= {f"local model's {name}": tensor for name, tensor in model.items()}
    held |= {
        "loss": [(report.loss_before, report.loss_after, report.steps) for report in trained.reports],
        "weight": total.weight,
        "buffers": total.buffers,
        "end": len(trained.failures),
        "score": scores,
    }
    return {name: bits(value) for name, value in held.items()}


class Reached:
    """What parts can reach beside what they are given, as it was when this was made."""

    def __init__(self, parts: Sequence[object]) -> None:
        self._homes = {type(part).__module__.partition(".")[0] for part in parts}
        self._before: dict[int, tuple[str, Any, dict[Any, Any]]] = {}  # id -> name, the object, what it held
        left, room = [("", part) for part in parts], MOST_IN_ALL
        while left and room > 0:
            name, one = left.pop()
            if id(one) in self._before or not self._is_followed(one):
                continue
            held, name = _held(one), _name(one) or name
            self._before[id(one)] = name, one, held
            room -= len(held)
            left += [(f"{name}.{key}" if isinstance(key, str) else name, value) for key, value in held.items()]

    def changed(self) -> list[str]:
        """Name what holds something else now, but for the mode that a network was left in."""
        nothing, found = object(), set[str]()
        for name, one, before in self._before.values():
            now = before if isinstance(one, OPENED) else _held(one)
            keys = {key for key in before.keys() | now.keys() if before.get(key, nothing) is not now.get(key, nothing)}
            found |= {f"{name}.{key}" if isinstance(key, str) else name for key in keys - {"training"}}
        return sorted(found)

    def _is_followed(self, one: Any) -> bool:
        if isinstance(one, type | FunctionType | ModuleType):
            home = one.__name__ if isinstance(one, ModuleType) else one.__module__
            top = str(home).partition(".")[0]
            known = top in (*OURS, *sys.stdlib_module_names) or (top not in self._homes and is_installed(top))
            return not known
        if isinstance(one, CONTAINERS):
            return len(one) <= MOST
        if isinstance(one, (CellType, *OPENED, nn.Module, SimpleNamespace, CACHED)):
            return True
        return hasattr(one, "__dict__") and self._is_followed(type(one))


def _held(one: Any) -> dict[Any, Any]:
    """What an object holds: a name -> a value that it goes by, or a number -> another one."""
    if isinstance(one, dict | ModuleType):
        return dict(one if isinstance(one, dict) else vars(one))
    if isinstance(one, type):
        return {**vars(one), **dict(enumerate(one.__bases__))}
    if isinstance(one, FunctionType):
        return dict(enumerate((one.__globals__, vars(one), one.__closure__, one.__defaults__, one.__kwdefaults__)))
    if isinstance(one, (CellType, *OPENED)):
        return dict(enumerate(gc.get_referents(one)))
    if isinstance(one, CONTAINERS):
        return dict(enumerate(one))
    return {0: one.__wrapped__} if isinstance(one, CACHED) else {0: vars(one), 1: type(one)}


def _name(one: Any) -> str:
    """What an object is called by itself; of a dictionary, if it is a module's."""
    if isinstance(one, dict | ModuleType):
        return str((one if isinstance(one, dict) else vars(one)).get("__name__", ""))
    return getattr(one, "__qualname__", type(one).__qualname__ if hasattr(one, "__dict__") else "")
