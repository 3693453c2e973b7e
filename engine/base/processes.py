"""Names of processes, by which another one on the same machine can tell that they are over."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from engine.base.opening import read_bytes, read_text

PROC = Path("/proc")


def this_process() -> str:
    """Name this process by its machine's boot, namespace of process numbers, number, and time of start.

    No later process has the same name. Empty where the system does not tell these.
    """
    number = str(os.getpid())
    try:
        return " ".join((*_here(), number, _start_of(number)))
    except (OSError, IndexError):
        return ""


def is_over(name: str) -> bool:
    """Return whether the process of that name has ended; False where this process cannot know."""
    try:
        *there, number, start = name.split(" ")
        return tuple(there) == _here() and _start_of(number) != start
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):
        return False


@cache
def _here() -> tuple[str, str]:
    boot = read_text(PROC / "sys/kernel/random/boot_id").strip()
    return boot, os.readlink(PROC / "self/ns/pid")


def _start_of(number: str) -> str:
    """Return when a live process was started, in ticks since the boot; empty for one that nobody has reaped."""
    state, *fields = read_bytes(PROC / str(int(number)) / "stat").rpartition(b")")[2].decode("ascii").split()
    return "" if state in "ZX" else fields[18]
