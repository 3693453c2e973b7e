"""Calls of parts: what a process has one of is watched meanwhile, and what comes from outside is contained.

A generator of the process has a state that depends on all that the process has done, so a number drawn there has no
key, and a run would come to other bits each time without a word. Its states before and after a call tell. torch's and
numpy's are looked at. Python's ``random`` is not: libraries draw from it for their own purposes, such as the time until
they try again; whoever draws from it comes to other results the second time, for which other checks look.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.base.errors import ConfigError, FedskewError, RunError, UnkeyedDraw, require
from engine.base.own_modules import is_ours, name_of, told

log = logging.getLogger("fedskew")
MERSENNE = 4 * 624 + 4  # bytes of a Mersenne twister: its words, and how many of them are used
ADVICE = "draw from client.rng(...) or tools.rng(...), or of seeds.generator(...) where neither is at hand"


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


@contextmanager
def on_the_server(what: str, given: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """Watch an algorithm's method, which does ``what`` on the server and was ``given`` its entries.

    Raises :class:`UnkeyedDraw` where it draws from a global generator, :class:`RunError` where it writes into what it
    was given, which the engine goes on with, or ends the process.
    """
    before, entries = GlobalStates.now(), given or {}
    written_to = {name: writes(tensor) for name, tensor in entries.items()}
    with staying(what):
        yield
    generator = before.moved(GlobalStates.now())
    if generator:
        raise UnkeyedDraw(f"{what} draws from {generator}, which has no key; {ADVICE}")
    written = first_other(written_to, {name: writes(tensor) for name, tensor in entries.items()})
    require_unwritten(f"{what} writes into server", written)


def first_other(before: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """Return the first name under which two mappings have different values; one that is missing is None."""
    return next((name for name in {**before, **now} if before.get(name) != now.get(name)), None)


def require_unwritten(rule: str, name: str | None) -> None:
    """Raise :class:`RunError` for the entry ``name`` that somebody writes into."""
    if name is not None:
        repair = "make a new tensor, as by a + b, in place of a += b, a.add_(b) or a[...] = b"
        raise RunError(f"{rule}[{name!r}], which it was given and others share; {repair}")


def writes(tensor: Tensor) -> int:
    """How often a tensor has been written to, as torch counts it for the sake of gradients."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def staying(what: str) -> Iterator[None]:
    """Raise :class:`RunError` where the block, which does ``what``, ends the process by ``sys.exit``."""
    try:
        yield
    except SystemExit as error:
        if hasattr(error, "ray_terminate_msg"):  # Ray's own: the process was told to end
            raise
        raise RunError(f"{what} calls sys.exit({error.code!r}); let it return, or raise an error") from error


# What a process has one of: how it is read, and set.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the working directory": (os.getcwd, os.chdir),
    "torch's default device": (
        torch.get_default_device,
        lambda kept: torch.set_default_device(None if kept.type == "cpu" else kept),
    ),
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's choice of algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "torch's precision of products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's recording of gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "numpy's handling of errors": (np.geterr, lambda kept: np.seterr(**kept)),
}


def settings() -> dict[str, Any]:
    """Read what a part could set for all others."""
    found = {}
    for what, (read, _) in SETTINGS.items():
        with suppress(OSError):  # of a working directory that is gone
            found[what] = read()
    return found


_ONE_CALL = threading.RLock()  # at a time: what is watched, and standard output, are the whole process's


@contextmanager
def calling(part: object, field: str, advice: str) -> Iterator[None]:
    """Surround a short call of a part, ``field`` of an experiment, which is advised where to draw from.

    Raises :class:`ConfigError` where it draws from a global generator. Of a part from outside also what it raises
    becomes one, with the line, and so does ``sys.exit``; what it prints goes to standard error; what it sets for the
    whole process is put back, with a word.
    """
    with _ONE_CALL:
        before, name = GlobalStates.now(), name_of(part)
        with nullcontext() if is_ours(type(part)) else _contained(part, field, name):
            yield
        generator = before.moved(GlobalStates.now())
        require(not generator, field, name, f"draws from {generator}, which has no key", advice)


@contextmanager
def _contained(part: object, field: str, name: str) -> Iterator[None]:
    before = settings()
    try:
        with redirect_stdout(sys.stderr):
            yield
    except FedskewError:
        raise
    except (Exception, SystemExit) as error:
        if hasattr(error, "ray_terminate_msg"):  # Ray's own: the process was told to end
            raise
        raise ConfigError(field, name, f"raised {told(error, _file_of(part))}", "see that line") from error
    finally:
        now = settings()
        for what, kept in before.items():
            if now.get(what) != kept:
                SETTINGS[what][1](kept)
                log.warning("%s=%s changes %s, which is put back: others share it", field, name, what)


def _file_of(part: object) -> Path:
    """The file that a part is written in."""
    code = getattr(getattr(part, "function", None), "__code__", None)
    return Path(getattr(code, "co_filename", getattr(sys.modules.get(type(part).__module__), "__file__", None) or "/"))


def bits(value: Any) -> Any:
    """Return what is equal for values of equal bits alone, be they tensors, arrays, numbers, or lists of such."""
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [bits(one) for one in value]
    if isinstance(value, Tensor):
        held = value.detach().cpu().contiguous()
        return held.dtype, held.shape, hashlib.sha256(held.reshape(-1).view(torch.uint8).numpy().data).digest()
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value)
