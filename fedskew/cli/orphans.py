"""The processes that a command leaves behind that has died: on Linux they come to the program ``fedskew``, which ends
them when it ends.

Ray's server, its node manager and their agents are the command's children and grandchildren. Most end with their
parent, some a minute later, some never.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL
_others: set[int] = set()  # children of a shell that has become this process: ``exec fedskew run > >(tee log)``


def adopt() -> None:
    """Become the parent of all descendants whose own parents die; elsewhere than on Linux nothing happens."""
    _others.update(_children())
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_adopted() -> None:
    """End every child that is left, and theirs, but for those that were there before :func:`adopt`."""
    deadline = time.monotonic() + PATIENCE
    asked = set[int]()
    while left := set(_children()) - _others:
        late = time.monotonic() > deadline
        for child in left:
            if late or child not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
            asked.add(child)
        if time.monotonic() > deadline + PATIENCE:
            return
        time.sleep(0.02)


def _children() -> Iterator[int]:
    """Forget the children that have ended, and yield the others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    here = os.getpid()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == here:  # if it has just ended, too: it is forgotten at the next look
                yield int(status.parent.name)
