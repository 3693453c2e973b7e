"""SIGTERM and SIGHUP as Ctrl-C: what has been done is kept, and the exit code says which it was."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from fedskew.cli.show import console

_asked: list[int] = []  # the signals that came, in order


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Take these signals, where nobody else has: under nohup SIGHUP is left alone."""
    _asked.clear()
    here = threading.current_thread() is threading.main_thread()
    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(one) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _as_ctrl_c)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def exit_code() -> int:
    """Return the exit code of a command that was stopped: 143 by SIGTERM, 129 by SIGHUP, 130 by Ctrl-C."""
    return 128 + (_asked[0] if _asked else signal.SIGINT)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    if number == signal.SIGHUP:
        _do_without_a_lost_terminal()
    handler = signal.getsignal(signal.SIGINT)  # that of the run, or Tune's
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _do_without_a_lost_terminal() -> None:
    """Write no more to a terminal that is gone: each write would be an error."""
    for stream in (console.file, sys.stdout):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            descriptor = stream.fileno()
            try:
                os.tcgetpgrp(descriptor)
            except OSError as error:
                if error.errno != errno.ENOTTY:  # isatty() says no to a terminal that is gone, too
                    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
