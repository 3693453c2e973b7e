"""Ray's errors as ours: one sentence each, with what to do; or the reason why calls have to run again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from engine.base.errors import FedskewError, MachineFailed, one_line
from engine.client.failures import is_of_memory
from engine.worker.ray.wire import CallReply

FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
NO_ROOM = (
    "Ray's object store is full, and so is the disk that it spills to; free space there (the temporary folder, if "
    "nothing else was said), or start Ray with a larger store"
)


def store_full(what: str) -> MachineFailed:
    """Return the error for an object store without room; ``what`` says what was being done."""
    return MachineFailed(f"{what}: {NO_ROOM}; then resume from the last checkpoint")


def state_lost(what: str) -> MachineFailed:
    """Return the error for client state that has gone with its node; ``what`` says what was being done."""
    return MachineFailed(f"{what}: client state was lost with the node that held it; resume from the last checkpoint")


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FRAME = re.compile(r'^\s+File ".*\n(?: {4}.*\n)*', re.MULTILINE)  # of a traceback, with the code that it shows
OURS = f"{FedskewError.__module__}."


def last_cause(error: BaseException) -> str:
    """Return in one plain line what an error of Ray's goes back to, without frames, colours or our classes' names."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    kind, said = f"{type(error).__module__}.{type(error).__name__}", COLOUR.sub("", str(error)).strip()
    *before, said = FRAME.split(said)
    if before:  # Ray's own texts hold tracebacks of other processes
        kind, _, said = said.partition(": ")
    elif isinstance(error, ray.exceptions.RayError):
        return one_line(said.partition("\n")[0]) or kind
    said = " ".join(said.split())
    return one_line(said if kind.startswith(OURS) else f"{kind.rpartition('.')[2].strip()}: {said}".rstrip(": "))


def cause_of(error: ray.exceptions.RayTaskError) -> BaseException:
    """Return the exception as the worker raised it, with the remote traceback in its notes."""
    if isinstance(error.cause, FULL):
        return store_full("an actor's results")
    cause = error.cause if isinstance(error.cause, BaseException) else error
    cause.add_note(str(error))
    return cause


NO_MEMORY = ("low on memory", "memory pressure")  # in Ray's messages of an actor that its memory monitor has killed


@dataclass(frozen=True)
class Loss:
    """The reason why an actor gave no reply; its calls have to run again."""

    reason: str
    of_memory: bool = False  # there was too little memory for the calls
    of_arguments: bool = False  # what they were given was lost


def reply_or_loss(ref: Any, number: int) -> CallReply | Loss:
    """Return the reply of actor ``number`` that ``ref`` stands for, or why there is none.

    Raises what a call raised (see :func:`cause_of`), unless that was want of memory.
    """
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:  # first: it may be of the other types too
        if isinstance(error.cause, ray.exceptions.ObjectLostError):  # an argument that could not be fetched
            return Loss("what it was given was lost with the node that held it", of_arguments=True)
        if isinstance(error.cause, BaseException) and is_of_memory(error.cause):
            return Loss(str(error.cause), of_memory=True)
        raise cause_of(error) from None
    except ray.exceptions.OutOfMemoryError as error:
        return Loss(_killed_for_memory(number, error), of_memory=True)
    except ray.exceptions.RayActorError as error:
        if any(text in str(error) for text in NO_MEMORY):
            return Loss(_killed_for_memory(number, error), of_memory=True)
        return Loss(f"actor {number} died ({last_cause(error)})")
    except ray.exceptions.ObjectLostError:  # it had computed, and its node is gone with the result
        return Loss(f"what actor {number} had computed was lost with its node")


def _killed_for_memory(number: int, error: Exception) -> str:
    used = re.search(r"was (\S+ used / \S+ limit)", str(error))
    return f"actor {number} was killed, since its node was low on memory" + (f" ({used[1]})" if used else "")
