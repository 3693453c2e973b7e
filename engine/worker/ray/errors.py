"""Ray's errors as ours: one sentence each, with what to do."""

from __future__ import annotations

import ray.exceptions

from engine.base.errors import RunError

FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
NO_ROOM = (
    "Ray's object store is full, and so is the disk that it spills to; free space there (the temporary folder, if "
    "nothing else was said), or start Ray with a larger store"
)


def store_full(what: str) -> RunError:
    """Return the error for an object store without room; ``what`` says what was being done."""
    return RunError(f"{what}: {NO_ROOM}; then resume from the last checkpoint")


def state_lost(what: str) -> RunError:
    """Return the error for client state that has gone with its node; ``what`` says what was being done."""
    return RunError(f"{what}: client state was lost with the node that held it; resume from the last checkpoint")


def first_line(error: Exception) -> str:
    """Return the first line that says something, of Ray's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if "Traceback" in str(error) else lines[0] if lines else type(error).__name__


def cause_of(error: ray.exceptions.RayTaskError) -> BaseException:
    """Return the exception as the worker raised it, with the remote traceback in its notes."""
    if isinstance(error.cause, FULL):
        return store_full("an actor's results")
    cause = error.cause if isinstance(error.cause, BaseException) else error
    cause.add_note(str(error))
    return cause
