"""The process of a command: what it tells its parent (``launcher.py``), and how signals stop it as Ctrl-C does.

It tells lines: ``again TEXT``, how to go on, ``finished TEXT``, that all is saved, and ``ended CODE``. Under
``python -m fedskew.cli.main``, in notebooks and tests there is no parent, and nobody is told. Imports next to nothing,
as the parent does.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

from engine.base.errors import RunError

AS_CTRL_C = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # the last: of batch systems, before the time is up
_telling: int | None = None  # the pipe to the parent
_again = _finished = ""
_stopped_by: list[int] = []  # the signals that asked this command to stop, in order


class _Stream(io.FileIO):
    """One of the two streams. What it does not take is lost; of standard output that is told, but for a terminal's."""

    is_of_results = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # whose reader has seen enough
            raise
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
            if self.is_of_results and error.errno != errno.EIO:
                raise RunError(f"standard output cannot be written ({error.strerror})") from None
            return len(data)


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
    for stream in filter(None, (sys.stdout, sys.stderr)):  # none: it was closed
        stream.flush()
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = _Stream(os.dup(number), "w")
        raw.is_of_results = name == "stdout"
        stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)
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


def finished(text: str) -> None:
    """Tell that all that was asked for is saved: a signal that ends the command from now on changes nothing of that."""
    global _finished
    _finished = text
    _tell("finished", text)


def what_is_finished() -> str:
    """Return what :func:`finished` was told; empty if nothing was."""
    return _finished


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
    """Take other signals as Ctrl-C, where nobody else has them: under nohup SIGHUP is left alone."""
    global _again, _finished
    _again = _finished = ""
    _stopped_by.clear()
    here = threading.current_thread() is threading.main_thread()
    taken = [one for one in AS_CTRL_C if here and signal.getsignal(one) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _as_ctrl_c)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def stop_code() -> int:
    """Return the exit code of a command that was stopped: 143 by SIGTERM, 130 by Ctrl-C, and so on."""
    return 128 + (_stopped_by[0] if _stopped_by else signal.SIGINT)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    _stopped_by.append(number)
    handler = signal.getsignal(signal.SIGINT)  # that of the run, or Tune's
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
