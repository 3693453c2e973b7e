"""The program ``fedskew``: a small process that runs the command in a child and says how it ended, if the child cannot.

Where Ray's server or node manager dies, Ray ends the process that uses it, in the middle of a line and with an exit
code of its own. So this process, which imports next to nothing, waits for the command: it hands on signals, returns the
command's exit code and, where the child is gone without one, says what happened and how to go on. It also ends what Ray
has left running. Both processes are of the terminal's foreground, so Ctrl-C and Ctrl-Z reach both.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from engine.base.errors import DIED
from fedskew.cli import child as command_process

HANDED_ON = (signal.SIGINT, *command_process.AS_CTRL_C)
SAME = 0.3  # seconds in which a signal that reached the whole group has reached the child, too
LEAVING = 60.0  # seconds that a command may take to leave after it has told its exit code
ORPHANS = 5.0  # seconds between SIGTERM and SIGKILL for what the command left running
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


def main() -> None:
    """Run the command that was typed in a child, and exit as it does; a shell that completes a word needs no child."""
    sys.exit(_typed() if "_FEDSKEW_COMPLETE" in os.environ else guarded(_typed))


def _typed() -> None:
    from engine.base.imports import uncollected

    with uncollected():
        from fedskew.cli.main import main as command  # in the child alone: it takes seconds

    gc.freeze()  # the collector passes over what has been imported
    command()


def guarded(command: Callable[[], None]) -> int:
    """Run ``command`` in a child; return its exit code. The child never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is inherited as ignored, the child's end is not reported
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:  # a closed standard stream's number, or the next file had it
        os.set_inheritable(spare, True)
    os.close(spare)
    before = {*_children()}  # of a shell that has become this process: ``exec fedskew run > >(tee log)``
    _adopt_orphans()
    try:
        libraries, said = tempfile.mkstemp(prefix="fedskew-said-", suffix=".txt")
    except OSError as error:
        _write(f"error: no temporary folder can be written ({error.strerror}); set TMPDIR to one\n")
        return 2
    told, telling = os.pipe()
    signals, signalling = os.pipe()
    alive, living = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until either process has somebody who takes them
    child = os.fork()
    if child == 0:
        for descriptor in (told, signals, living):
            os.close(descriptor)
        command_process.begin(telling, signalling, alive, libraries)
        command_process.run(command, mask)
    for descriptor in (telling, signalling, alive, libraries):
        os.close(descriptor)
    status, messages = _until_ended(child, told, signals, mask)
    _end_orphans(before)
    _remove_sessions(child)
    if "ended" in messages:
        Path(said).unlink(missing_ok=True)
        return int(messages["ended"])
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if "finished" in messages and number in HANDED_ON:
        Path(said).unlink(missing_ok=True)
        _write(f"\n{messages['finished']}\n")
        return 0
    _say_sudden_end(number, said, messages.get("again"))
    return 128 + number if number in (*HANDED_ON, signal.SIGKILL) else DIED


def _until_ended(child: int, told: int, signals: int, mask: Iterable[int]) -> tuple[int, dict[str, str]]:
    """Wait, with that mask of signals, and hand on those that the child did not get itself.

    Return the child's status and what it told last, by kind. Pipes: ``told`` has its lines, ``signals`` a byte for each
    signal that it got.
    """
    got, reached = dict[int, float](), dict[int, float]()  # signal -> when it came here, and to the child
    for number in HANDED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:  # under nohup
            signal.signal(number, lambda number, _: got.setdefault(number, time.monotonic()))
    for pipe in (told, signals):
        os.set_blocking(pipe, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ended, status, text, messages, leaving = 0, 0, "", dict[str, str](), float("inf")
    while not ended:
        select.select([told, signals], [], [], SAME)
        ended, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        reached |= dict.fromkeys(_read(signals), now)
        text += _read(told).decode(errors="replace")
        messages = dict(line.split(" ", 1) for line in text.split("\n")[:-1])  # the last one has not come whole
        leaving = min(leaving, now) if "ended" in messages else leaving
        due = [number for number, when in got.items() if now >= when + SAME]
        lacking = [number for number in due if reached.get(number, 0.0) < got.pop(number) - SAME]
        for number in [*lacking, *([signal.SIGKILL] if now >= leaving + LEAVING else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
    return status, messages


def _read(descriptor: int) -> bytes:
    """Return what a pipe holds now."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


def _say_sudden_end(number: int, said: str, again: str | None) -> None:
    """Say on standard error that the process died by the signal of that ``number`` or, at 0, by itself.

    The child may have died in the middle of a line: on a terminal a progress bar's line goes and the cursor, which the
    bar has hidden, comes back; elsewhere a new line is begun.
    """
    if number == signal.SIGKILL:
        what = "the command's process was killed, perhaps for want of memory"
    elif number in HANDED_ON:
        what = f"the command was stopped by {signal.Signals(number).name}{'' if again else ' before it had begun'}"
    elif number and number != signal.SIGABRT:
        what = f"the command's process died by {signal.Signals(number).name}"
    else:
        what = "the command's process died, as it does when Ray's server (GCS), raylet or agent has died"
    if os.path.getsize(said):
        what += f" (what was said last: {said})"
    else:
        os.unlink(said)
    terminal = os.isatty(2)
    word = "\x1b[1;31merror:\x1b[0m" if terminal and not os.environ.get("NO_COLOR") else "error:"
    _write(("\r\x1b[K\x1b[?25h" if terminal else "\n") + f"{word} {what}; {again or 'give the command again'}\n")


def _write(text: str) -> None:
    """Write to standard error."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


# --- what a dead command leaves behind ----------------------------------------------------------------------------


def _adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents die; elsewhere than on Linux nothing happens."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def _end_orphans(before: set[int]) -> None:
    """End every child that is left, and theirs, but for those of ``before``: parts of Ray, some of which never end."""
    start = time.monotonic()
    warned = set[int]()
    while (left := {*_children()} - before) and time.monotonic() < start + 2 * ORPHANS:
        late = time.monotonic() > start + ORPHANS
        for child in left if late else left - warned:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        warned |= left
        time.sleep(0.02)


def _children() -> Iterator[int]:
    """Forget the children that have ended, and yield the others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                yield int(status.parent.name)


def _remove_sessions(child: int) -> None:
    """Remove Ray's sessions that a dead child could not remove, see engine/worker/ray/session_folder.py."""
    for base in {os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "/tmp"}:
        for folder in Path(base).glob(f"fedskew-{child}-*"):
            from engine.base.owned import remove_made

            remove_made(folder, folder.lstat().st_ino)


if __name__ == "__main__":
    main()
