"""The process of a command: what it tells its parent (``launcher.py``), and how signals stop it as Ctrl-C does.

It tells two lines: ``again TEXT``, how to go on, and ``ended CODE``. Under ``python -m fedskew.cli.main``, in notebooks
and tests there is no parent, and nobody is told. Imports next to nothing, as the parent does.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import NoReturn

_telling: int | None = None  # the pipe to the parent
_again = ""
_stopped_by: list[int] = []  # the signals that asked this command to stop, in order


def begin(telling: int, signalling: int, alive: int, libraries: int) -> None:
    """Be the child of a parent, and end as at SIGTERM when it is gone.

    Descriptors: ``telling`` takes lines of text, ``signalling`` a byte for each signal that this process gets;
    ``alive`` comes to its end with the parent; to the file ``libraries`` goes what is written past Python's own
    streams: Ray writes from many threads, in the middle of a progress bar.
    """
    global _telling
    _telling = telling
    for pipe in (telling, signalling):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(signalling, warn_on_full_buffer=False)
    sys.stdout.flush()
    sys.stderr.flush()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(os.dup(number), "w", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # whose terminal's width is asked for
        os.dup2(libraries, number)
    os.close(libraries)

    def watch() -> None:
        os.read(alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def run(command: Callable[[], None], mask: Iterable[int]) -> NoReturn:
    """Run the command and tell its exit code before Python ends, and Ray with it."""
    code: object = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        command()
        code = 0
    except SystemExit as exit:
        code = exit.code
        raise
    except KeyboardInterrupt:
        code = 130
        sys.exit(code)
    finally:
        ended(code if isinstance(code, int) else 0 if code is None else 1)
        gc.freeze()  # nobody needs the memory that Python would look for as it ends
    sys.exit(0)


def is_child() -> bool:
    """Return whether this process has a parent that waits for it, and so ends with its command."""
    return _telling is not None


def again(text: str) -> None:
    """Tell how to go on if the command should end from now on: ``continue with: fedskew resume runs/one``."""
    global _again
    _again = text
    _tell("again", text)


def how_to_go_on() -> str:
    """Return what :func:`again` was told last; empty if there is nothing to go on with."""
    return _again


def ended(code: int) -> None:
    """Tell the exit code, once all is said: how Ray ends this process from now on changes nothing."""
    _tell("ended", str(code))


def _tell(what: str, text: str) -> None:
    if _telling is not None:
        with contextlib.suppress(OSError):
            os.write(_telling, f"{what} {' '.join(text.splitlines())}\n".encode(errors="backslashreplace"))


def leave_ray() -> None:
    """Leave Ray while the command draws what it still has to; a notebook's Ray stays for what may come."""
    if is_child():
        from engine.worker.ray import cluster  # of runs on actors

        cluster.leave()


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Take SIGTERM and SIGHUP as Ctrl-C, where nobody else has them: under nohup SIGHUP is left alone."""
    global _again
    _again = ""
    _stopped_by.clear()
    here = threading.current_thread() is threading.main_thread()
    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(one) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _as_ctrl_c)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def stop_code() -> int:
    """Return the exit code of a command that was stopped: 143 by SIGTERM, 129 by SIGHUP, 130 by Ctrl-C."""
    return 128 + (_stopped_by[0] if _stopped_by else signal.SIGINT)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    _stopped_by.append(number)
    if number == signal.SIGHUP:
        _leave_lost_terminal()
    handler = signal.getsignal(signal.SIGINT)  # that of the run, or Tune's
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _leave_lost_terminal() -> None:
    """Write no more to a terminal that is gone: each write would be an error."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            descriptor = stream.fileno()
            try:
                os.tcgetpgrp(descriptor)
            except OSError as error:
                if error.errno != errno.ENOTTY:  # isatty() says no to a terminal that is gone, too
                    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
