"""Checks of what an algorithm's methods do with values: what they are given, what they return, what they keep and draw.

Each runs the engine on small data and looks on while it calls the methods, so that the message names the method.
"""

from __future__ import annotations

import copy
import math
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from random import getstate
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.algorithm import Algorithm, Kind, ModelState, ParamLayout, Phase
from engine.base.part_calls import ADVICE, GlobalStates
from engine.client.steps.entries import checked, checked_upload
from engine.experiment import CHOICES
from fedskew.testing.failure import NotApplicable, NotConforming, demand, telling
from fedskew.testing.small_runs import ALL, SOME, driven, experiment_of
from fedskew.testing.watching import Called, Look, tensors_in, watched


def watched_run(algorithm: Algorithm, look: Look, **changes: Any) -> None:
    """Run a small experiment under the eyes of ``look``; whatever ends it is told as a fault of the algorithm.

    Every client takes part twice, so that it has a state once.
    """
    config = experiment_of(algorithm, **{"rounds": 2, "local": {"epochs": 1}, "cohorts": (ALL, SOME), **changes})
    name = type(algorithm).__name__
    with watched(type(algorithm), look), telling(f"{name} fails in a small run", "see docs/contract.md for the rules"):
        driven(config)


# --- the value ------------------------------------------------------------------------------------------------


def is_a_frozen_value(algorithm: Algorithm) -> None:
    """Demand that the fields are all that there is: they pickle, and the config writes and reads them."""
    name, registry = type(algorithm).__name__, CHOICES["algorithm"]
    registry.taken(algorithm)
    with telling(f"{name} cannot be pickled", "define the class, and what its fields hold, at the top of a module"):
        again = pickle.loads(pickle.dumps(algorithm))
    demand(again == algorithm, f"{name} is another value after pickling; let fields hold numbers, text and tuples")
    with telling(f"{name} cannot be written to a config and read again", "give fields types that YAML has"):
        again = registry.build(registry.dump(algorithm))
    demand(again == algorithm, f"{name} is another value after it was written to a config; annotate fields with types")
    beside = vars(algorithm).keys() - {field.name for field in fields(algorithm)}
    rule = f"{name} has {', '.join(sorted(beside))} in self beside its fields"
    demand(not beside, f"{rule}; compute it where it is used, or make it a field")


def keeps_nothing(algorithm: Algorithm) -> None:
    """Demand that no method leaves anything in ``self`` or in the class: that would be in no checkpoint."""

    def look(called: Called, work: Callable[[], Any]) -> Any:
        before = _kept_in(called.algorithm)
        result = work()
        after = _kept_in(called.algorithm)
        changed = sorted(name for name in before.keys() | after.keys() if _changed(before, after, name))
        rule = f"{called.where} keeps {', '.join(changed)}, which is in no checkpoint and is shared by all clients"
        demand(not changed, f"{rule}; keep it in a client's state or in the server's entries, and declare its kind")
        return result

    watched_run(algorithm, look)


def _kept_in(algorithm: Algorithm) -> dict[str, Any]:
    """The fields and what else is in ``self``, by value; the attributes of its classes, by identity."""
    own = [owner for owner in type(algorithm).__mro__ if not owner.__module__.startswith(("engine.", "builtins"))]
    ours = {f"self.{name}": copy.deepcopy(value) for name, value in vars(algorithm).items()}
    of_class = {f"{owner.__name__}.{name}": id(value) for owner in own for name, value in vars(owner).items()}
    return ours | {name: value for name, value in of_class.items() if not re.search(r"\.(__|_abc_)", name)}


def _changed(before: dict[str, Any], after: dict[str, Any], name: str) -> bool:
    if name not in before or name not in after:
        return True
    one, other = before[name], after[name]
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not torch.equal(one, other)
    return isinstance(one, Tensor) or isinstance(other, Tensor) or bool(one != other)


# --- what methods are given -----------------------------------------------------------------------------------


def inputs_not_written(algorithm: Algorithm) -> None:
    """Demand that no method changes a tensor or a dictionary that it is given: others have the same memory."""

    def look(called: Called, work: Callable[[], Any]) -> Any:
        given = dict(_all_in(called.given))
        before = {name: tensor.detach().clone() for name, tensor in given.items()}
        entries = {name: dict(value) for name, value in called.given.items() if isinstance(value, dict)}
        result = work()
        for name, tensor in given.items():
            rule = f"{called.where} writes into {name}, which it was given and others share"
            repair = "make a new tensor, as by a + b, in place of a += b, a.add_(b) or a[...] = b"
            same = before[name].shape == tensor.shape and torch.allclose(before[name], tensor, 0, 0, equal_nan=True)
            demand(same, f"{rule}; {repair}")
        for name, known in entries.items():
            now = called.given[name]
            rule = f"{called.where} changes the entries of {name}, which it was given and others share"
            same = now.keys() == known.keys() and all(now[key] is value for key, value in known.items())
            demand(same, f"{rule}; return {{**{name}, ...}} in place of {name}[...] = ...")
        if called.method == "upload":
            _check_own_memory(called, result)
        return result

    watched_run(algorithm, look)


def _check_own_memory(called: Called, result: Any) -> None:
    """Demand that what is sent is no tensor that the client has received or keeps."""
    given = {which: called.given.get(which, {}) for which in ("received", "state")}
    known = {one.data_ptr(): name for name, one in _all_in(given) if one.numel()}
    for name, tensor in _all_in({"upload": result[0]} if isinstance(result, tuple) else {}):
        rule = f"{called.where} sends {known.get(tensor.data_ptr())} itself as {name}, memory that others share"
        demand(not tensor.numel() or tensor.data_ptr() not in known, f"{rule}; send a clone(), or leave it out")


def _all_in(given: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in given.items():
        yield from tensors_in(value, name)


def values_not_read(algorithm: Algorithm) -> None:
    """Demand that loss and gradient are arithmetic alone, so that several clients can be trained in one pass."""
    reason = algorithm.requires.no_vmap
    if reason:
        raise NotApplicable(f"it says why it is not for several clients in one pass: {reason}")

    def look(called: Called, work: Callable[[], Any]) -> Any:
        def told(name: str, args: tuple[Any, ...], result: Any) -> None:
            if name in READS and any(isinstance(one, Tensor) for one in args):
                how = "branches on a tensor's value" if name == "__bool__" else f"takes a tensor's value ({name})"
                rule = f"{called.where} {how}{_line_of(called.algorithm)}"
                why_not = "say why it cannot be in requires=Requires(no_vmap=...)"
                raise NotConforming(f"{rule}; write it with torch.where or torch.clamp, or {why_not}")

        with _EachCall(told) if called.method in ("loss", "perturbation", "gradient") else nullcontext():
            return work()

    watched_run(algorithm, look)


READS = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__contains__"}


class _EachCall(TorchFunctionMode):
    """Tells ``hear`` of each call of a function of torch: its name, its arguments, its result."""

    def __init__(self, hear: Callable[[str, tuple[Any, ...], Any], None]) -> None:
        super().__init__()
        self._hear = hear

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._hear(getattr(func, "__name__", str(func)), args, result)
        return result


def _line_of(algorithm: Algorithm) -> str:
    """Where in the files of its classes the code that is running stands, in words."""
    files = {getattr(sys.modules.get(owner.__module__), "__file__", None) for owner in type(algorithm).__mro__}
    for frame in reversed(traceback.extract_stack()):
        if frame.filename in files and not frame.filename.endswith(("algorithm/contract.py", "abc.py")):
            return f" in line {frame.lineno}, {frame.line}" if frame.line else f" in line {frame.lineno}"
    return ""


# --- what methods return --------------------------------------------------------------------------------------

_ENTRIES = {"init_server", "prepare", "before_round", "broadcast", "finish", "init_state", "client_setup"}
_ENTRIES |= {"aggregate", "aggregate_with"}


def returns_what_it_declares(algorithm: Algorithm) -> None:
    """Demand of each method's result its type, and of entries that they are declared and have their kind's shape."""

    def look(called: Called, work: Callable[[], Any]) -> Any:
        _check_result(called, result := work())
        return result

    watched_run(algorithm, look)


def _check_result(called: Called, result: Any) -> None:
    method, algorithm = called.method, called.algorithm
    if method in _ENTRIES:
        _check_entries(called, result)
        lost = method in ("init_server", "aggregate", "aggregate_with") and "weights" not in result
        demand(not lost, f"{called.where} returns no entry 'weights'; return {{**server, 'weights': ...}}")
    elif method == "upload":
        pair = isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, dict) for one in result)
        rule = f"{called.where} returns {_kind_of(result)}, and must return two dictionaries"
        demand(pair, f"{rule}; return what is sent and the state that is kept, as in return {{...}}, state")
        _check_entries(called, result[0], sent=True)
        _check_entries(called, result[1])
        keeps = bool(result[1]) and not algorithm.stateful
        rule = f"{called.where} keeps {', '.join(map(repr, result[1]))} as a state that begins nowhere"
        demand(not keeps, f"{rule}; define init_state, which returns a client's first state")
    elif method == "loss":
        rule = f"{called.where} returns {_kind_of(result)}, and must return one number as a tensor of shape []"
        demand(isinstance(result, Tensor) and result.shape == (), f"{rule}; take the mean over the batch")
    elif method in ("perturbation", "gradient"):
        grad = called.given["grad"]
        same = isinstance(result, Tensor) and (result.shape, result.dtype) == (grad.shape, grad.dtype)
        rule = f"{called.where} returns {_kind_of(result)}, and was given {_kind_of(grad)}"
        demand(same, f"{rule}; return a vector of the same shape and dtype, and return it in every case")
    elif method in ("start", "personal_model", "personal_after"):
        _check_model(called, result)
    elif method == "weight":
        number = float(result) if isinstance(result, int | float | Tensor) else math.nan
        rule = f"{called.where} returns {result!r} as the upload's weight"
        demand(math.isfinite(number) and number >= 0, f"{rule}; return a number from 0 on, such as run.num_examples")
    elif method in ("phases", "personalise_phases"):
        right = isinstance(result, tuple) and all(isinstance(one, Phase) for one in result)
        demand(right, f"{called.where} returns {_kind_of(result)}; return a tuple of Phase, as in return (Phase(),)")


def _layout_of(called: Called) -> ParamLayout:
    client = called.client
    return client.context.layout if client is not None else called.given["context"].layout


def _check_entries(called: Called, entries: Any, sent: bool = False) -> None:
    rule = f"{called.where} returns {_kind_of(entries)}, and must return a dictionary of tensors"
    demand(isinstance(entries, dict), f"{rule}; end the method with return {{...}}")
    check = checked_upload if sent else lambda a, entries, layout: checked(a, called.method, entries, layout)
    layout = _layout_of(called)
    try:
        check(called.algorithm, entries, layout)
    except TypeError as error:
        raise NotConforming(f"{error}{_repair_of(called.algorithm, entries, str(error))}") from None


def _repair_of(algorithm: Algorithm, entries: dict[str, Any], told: str) -> str:
    """What to change, where the engine's sentence does not say it."""
    if "has shape" in told:
        return "; give it that shape, or declare Kind.TENSOR, which may have any"
    name = next((name for name in entries if f"entry {name!r} is not declared" in told), None)
    if name is None:
        return "; return tensors"
    return f", as in entries = {{**{type(algorithm).__mro__[1].__name__}.entries, {name!r}: Kind.{Kind.VECTOR.name}}}"


def _check_model(called: Called, result: Any) -> None:
    layout = _layout_of(called)
    right = isinstance(result, ModelState) and all(isinstance(one, Tensor) for one in result)
    rule = f"{called.where} returns {_kind_of(result)}"
    demand(right, f"{rule}; return ModelState(weights, buffers)")
    shapes = tuple(result.weights.shape), tuple(result.buffers.shape)
    wanted = (layout.size,), (layout.buffers,)
    demand(
        shapes == wanted, f"{called.where} returns a model of shapes {shapes}, and this one has {wanted}; join parts"
    )


def _kind_of(value: Any) -> str:
    """A value in words: its type, and of a tensor its shape and dtype."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


# --- precision and draws --------------------------------------------------------------------------------------

_ARITHMETIC = {"broadcast", "aggregate", "start", "phase_start", "loss", "perturbation", "gradient", "upload", "weight"}


def float64_throughout(algorithm: Algorithm) -> None:
    """Demand that no method makes a float32 tensor in a run of float64: its numbers would be those of float32."""

    def look(called: Called, work: Callable[[], Any]) -> Any:
        def told(name: str, args: tuple[Any, ...], result: Any) -> None:
            if isinstance(result, Tensor) and result.dtype in (torch.float32, torch.float16, torch.bfloat16):
                made = f"{name} makes {_kind_of(result)}{_line_of(called.algorithm)}"
                rule = f"{called.where} computes in less than the run's float64: {made}"
                raise NotConforming(f"{rule}; give it dtype=weights.dtype, or make it of a tensor that is there")

        with _EachCall(told) if called.method in _ARITHMETIC else nullcontext():
            return work()

    watched_run(algorithm, look, execution={"precision": "float64"})


def draws_by_key(algorithm: Algorithm) -> None:
    """Demand that no method draws from a generator that is not the client's or the server's own."""

    def look(called: Called, work: Callable[[], Any]) -> Any:
        before, python = GlobalStates.now(), getstate()
        result = work()
        moved = before.moved(GlobalStates.now()) or ("Python's module random" if getstate() != python else "")
        rule = f"{called.where} draws from {moved}, whose numbers are others in every run"
        demand(not moved, f"{rule}; {ADVICE}")
        return result

    watched_run(algorithm, look)
