"""Errors not written for users, such as those of an algorithm's hooks: a sentence, and the traceback in a file."""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from pathlib import Path

from engine.base.errors import RunError
from engine.base.opening import regular


def unforeseen(error: Exception, log: Path | None = None, again: str = "") -> RunError:
    """Return ``error`` as one sentence, which says where its traceback is and, if given, how to go on (``again``).

    The traceback is added to the end of ``log``, or written to a file of its own.
    """
    told = f"{type(error).__name__}: {error} (the traceback is at the end of {_kept(error, log)})"
    return RunError(f"{told}; {again}" if again else told)


def _kept(error: Exception, log: Path | None) -> Path:
    """Write the traceback and return its file."""
    text = "".join(traceback.format_exception(error))
    if log is not None:
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8", opener=regular) as file:
            file.write(text)
            return log
    handle, name = tempfile.mkstemp(prefix="fedskew-", suffix=".txt")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)
