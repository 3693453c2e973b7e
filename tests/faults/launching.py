"""One launch of the command line with a fault in it, and what it came to.

A fault that waits at a gate (``inject.py``) is met there by the harness: it does its deed while one process of the
launch stands still at a known event, so that the deed reaches its victim on any machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.base.errors import DIED
from tests.faults import inject

Process = subprocess.Popen[bytes]
Deed = Callable[[Process, int | None], bool]  # (the command, who waits at the gate); whether it reached its victim
EXIT_CODES = (0, 1, 2, DIED, 129, 130, 138, 143)  # of docs/scripting.md
FOREIGN = ("Traceback", "the traceback is", "Fatal Python error", "*** SIG", "Stack trace")  # no user is to see them
SESSIONS = "sessions"  # beside the events of a schedule: the numbers of the sessions that its launches began
LAST_WORDS = re.compile(r"(error: |continue with: fedskew resume |stopped; give the command again$| is finished; )")


@dataclass
class Launch:
    """How one call of the command line ended."""

    words: str
    fault: str
    happened: bool  # the fault reached its victim
    code: int
    seconds: float
    message: str


@dataclass
class Outcome:
    """Of a schedule."""

    seed: int
    told: str
    faults: list[str]
    launches: list[Launch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ended:
    """A launch as it was seen from outside."""

    code: int
    text: str  # all that it said
    seconds: float
    happened: bool
    in_time: bool


def launch(
    words: Sequence[str],
    said: Path,
    fault: inject.Fault | None = None,
    deed: Deed | None = None,
    delay: float = 0.0,
    cores: int = 0,
    patience: float = 180.0,
) -> Ended:
    """Call the command line with ``words``, which says what it does into the file ``said``.

    The fault happens inside of it, and ``deed`` outside: while a process waits at the gate, or ``delay`` seconds after
    the start. ``cores``: that the launch may use; 0 for all.
    """
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    if fault is not None:
        fault.arm()
        environment |= fault.environment()
    command = [sys.executable, "-m", "fedskew.cli.launcher", *words]
    began, happened, in_time = time.monotonic(), False, True
    with open(said, "w+", errors="replace") as output:
        # Through a pipe: a limit to the length of files is not one to what is said.
        tee = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=output)
        assert tee.stdin is not None
        process = subprocess.Popen(command, env=environment, stdout=tee.stdin, stderr=tee.stdin, start_new_session=True)
        tee.stdin.close()
        if fault is not None:
            with open(Path(fault.folder) / SESSIONS, "a") as sessions:
                sessions.write(f"{process.pid}\n")
        if cores:
            os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:cores])
        try:
            if fault is not None and deed is not None and _is_due(process, fault, delay):
                happened = deed(process, fault.waiting)
                fault.let_go()
            code = process.wait(max(1.0, began + patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code, in_time = process.wait(), False
        finally:
            if process.poll() is None:  # the harness itself was interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            tee.wait(1.0)
        except subprocess.TimeoutExpired:  # something of the launch is still there, and holds the pipe
            tee.kill()
            tee.wait()
        output.seek(0)
        text = output.read()
    if fault is not None and deed is None:
        happened = fault.has_happened
    return Ended(code, text, round(time.monotonic() - began, 1), happened, in_time)


def _is_due(process: Process, fault: inject.Fault, delay: float) -> bool:
    """Wait for the moment of a deed; False if the command has ended before."""
    if delay:
        time.sleep(delay)
        return process.poll() is None
    while process.poll() is None:
        if fault.waiting is not None:
            return True
        time.sleep(0.01)
    return False


def bad_end(ended: Ended, killed: bool) -> str | None:
    """Say what is wrong with how a launch ended, by the rule of docs/scripting.md: a code, and one sentence last."""
    lines = [" ".join(line.split()) for line in ended.text.splitlines() if line.strip()]
    told = " / ".join(lines[-3:])[-400:]
    if not ended.in_time:
        return f"did not end in time: {told}"
    if any(foreign in ended.text for foreign in FOREIGN):
        return f"exit {ended.code}, with a traceback: {told}"
    if killed and ended.code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return None
    if ended.code not in EXIT_CODES:
        return f"exit {ended.code}, which is not documented: {told}"
    if ended.code and not (lines and LAST_WORDS.search(lines[-1])):
        return f"exit {ended.code} without a sentence at the end: {told}"
    return None


def message_of(text: str) -> str:
    """Return the sentence that a launch ended with."""
    return next((line for line in text.splitlines() if "error:" in line), "")[:300]


# --- processes ------------------------------------------------------------------------------------------------


def processes_of(folder: Path) -> dict[int, str]:
    """Find the live processes of the launches whose faults are counted in ``folder``: number -> command line.

    By the sessions that launches began, and by their environment: Ray's agents write their titles over theirs.
    """
    mark, found, begun = str(folder).encode() + b'"', {}, folder / SESSIONS
    sessions = begun.read_text().split() if begun.exists() else []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and (session in sessions or mark in (path / "environ").read_bytes()):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def send(pids: Mapping[int, str] | Sequence[int], number: signal.Signals) -> bool:
    """Send a signal to these processes; False if none of them lives."""
    reached = False
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached = True
    return reached


def command_of(process: Process) -> int:
    """Return the process that does a launch's work, which the one that was started waits for."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for pid in map(int, children.read_text().split()):
        if b"fedskew.cli" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return process.pid


def stopped(pids: Sequence[int], seconds: float) -> bool:
    """Stop these processes for a while."""
    reached = send(pids, signal.SIGSTOP)
    time.sleep(seconds)
    send(pids, signal.SIGCONT)
    return reached


def gone(folder: Path, seconds: float) -> dict[int, str]:
    """Wait until the processes of ``folder`` have ended; those that have not after so long are killed and returned."""
    deadline = time.monotonic() + seconds
    while left := processes_of(folder):
        if time.monotonic() > deadline:
            send(left, signal.SIGKILL)
            break
        time.sleep(0.2)
    return left
