"""The program ``fedskew``: a small process that starts the command in another one and has the last word.

Where Ray's server or its node manager dies, Ray ends the process that uses it, in the middle of a line, with an exit
code and a text of its own. So the command runs in a child, and this process, which has imported next to nothing, waits
for it: it hands on signals, takes over the child's exit code, and where the child is gone without having said so, it
says what happened, how to go on, and ends what Ray has left behind.

Both are of the terminal's foreground, so Ctrl-C and Ctrl-Z reach both. A debugger takes ``python -m fedskew.cli.main``,
which is the command alone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from engine.base import last_word
from engine.base.imports import uncollected
from fedskew.cli.orphans import adopt, end_adopted

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME = 0.3  # seconds in which a signal that reached the whole group has reached the child, too
LEAVING = 60.0  # seconds that a command may take to leave after its last word


def main() -> None:
    """Run the command that was typed in a child, and exit as it does; answer a shell that completes a word here."""
    if "_FEDSKEW_COMPLETE" in os.environ:
        from fedskew.cli import completion

        completion.main()
    sys.exit(guarded(_typed))


def _typed() -> None:
    with uncollected():
        from fedskew.cli.main import main as command  # in the child alone: it takes seconds

    gc.freeze()  # what has come is not looked through later, either
    command()


def guarded(command: Callable[[], None]) -> int:
    """Run ``command`` in a child; return its exit code. The child never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as it may be inherited, the child's end is never told
    adopt()
    told, telling = os.pipe()
    caught, catching = os.pipe()
    alive, living = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until either process has somebody who takes them
    child = os.fork()
    if child == 0:
        for descriptor in (told, caught, living):
            os.close(descriptor)
        last_word.begin(telling, catching, alive)
        _child(command, mask)
    for descriptor in (telling, catching, alive):
        os.close(descriptor)
    return _Waiting(child, told, caught).code(mask)


def _child(command: Callable[[], None], mask: Iterable[int]) -> NoReturn:
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
        last_word.ended(code if isinstance(code, int) else 0 if code is None else 1)
        gc.freeze()  # nobody needs the memory that Python would look for as it ends
    sys.exit(0)


class _Waiting:
    """The parent, until the child has ended."""

    def __init__(self, child: int, told: int, caught: int) -> None:
        self._child = child
        self._told = told  # what the child says, see last_word.py
        self._caught = caught  # the numbers of the signals that the child has got
        self._texts = b""
        self._open = [told, caught]
        self._reached: dict[int, float] = {}  # a signal that the child has got, not from here -> when
        self._handed_on = Counter[int]()  # signals from here that the child has not told of yet
        self._due: dict[int, float] = {}  # a signal that this process got -> when it is handed on
        self._leaving: float | None = None
        self._failed: int | None = None  # the exit code of the error that has been said

    def code(self, mask: Iterable[int]) -> int:
        """Wait, with that mask of signals; return the exit code."""
        wakes, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in (*HANDED_ON, signal.SIGCHLD):
            if signal.getsignal(number) != signal.SIG_IGN:  # under nohup
                signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while True:
            ready, _, _ = select.select([wakes, *self._open], [], [], self._patience())
            for descriptor in ready:
                self._take(descriptor, os.read(descriptor, 4096), wakes)
            self._hand_on()
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                for descriptor in self._open:
                    os.set_blocking(descriptor, False)
                    with contextlib.suppress(BlockingIOError):
                        self._take(descriptor, os.read(descriptor, 65536), wakes)
                return self._end(status)

    def _patience(self) -> float | None:
        times = [*self._due.values()] + ([] if self._leaving is None else [self._leaving])
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take(self, descriptor: int, content: bytes, wakes: int) -> None:
        if descriptor == wakes:
            for number in content:
                if number in HANDED_ON and number not in self._due:
                    self._due[number] = time.monotonic() + SAME
        elif not content:
            if descriptor in self._open:
                self._open.remove(descriptor)
        elif descriptor == self._caught:
            for number in content:
                if self._handed_on[number]:
                    self._handed_on[number] -= 1
                else:
                    self._reached[number] = time.monotonic()
        else:
            self._texts += content
            told = last_word.heard(self._texts)
            if self._failed is None and "failed" in told:
                self._failed = _fail(told)
            if self._leaving is None and ("ended" in told or self._failed is not None):
                self._leaving = time.monotonic() + LEAVING

    def _hand_on(self) -> None:
        """Give the child the signals that it did not get by itself; end a child that does not leave."""
        now = time.monotonic()
        for number, due in list(self._due.items()):
            if self._reached.get(number, 0.0) >= due - 2 * SAME:
                del self._due[number], self._reached[number]
            elif now >= due:
                del self._due[number]
                self._handed_on[number] += 1
                self._send(number)
        if self._leaving is not None and now >= self._leaving:
            self._send(signal.SIGKILL)
            self._leaving = now + LEAVING

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _end(self, status: int) -> int:
        told = last_word.heard(self._texts)
        end_adopted()
        if "leaves" in told:
            from engine.base.owned import remove_made  # needed once, at the end

            inode, folder = told["leaves"].split(" ", 1)
            remove_made(folder, int(inode))
        code = self._failed if self._failed is not None else told.get("ended")
        if code is not None:
            if "said" in told:
                with contextlib.suppress(OSError):
                    os.unlink(told["said"])
            return int(code)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        text = last_word.of_a_sudden_end(number, told)
        code = 128 + number if number in (*HANDED_ON, signal.SIGKILL) else last_word.DIED
        _clear()
        _tell(text)
        if "answered" not in told:
            _answer({"kind": "ProcessDied", "message": text, "exit_code": code})
        return code


def _fail(told: dict[str, str]) -> int:
    """Say the error that the child has told of, whose own text is at the end of a line; return its exit code."""
    import json  # needed once, at the end

    error = json.loads(told["failed"])
    _tell(error["sentence"])
    if "answered" not in told:
        _answer(error["parts"])
    return error["parts"]["exit_code"]


def _answer(parts: dict[str, Any]) -> None:
    """Write the object of a command that ``--json`` was asked of, as ``json_output.print_error`` does."""
    import json  # needed once, at the end

    if "--json" in sys.argv:
        error = dict.fromkeys(("field", "value", "rule", "repair")) | parts
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps({"error": error}) + "\n").encode())


def _clear() -> None:
    """Begin a line on standard error: the child may have died in the middle of one.

    On a terminal a progress bar's line is taken away and the cursor, which the bar has hidden, is shown. Elsewhere
    nobody knows what was written last, so a new line is begun at all events.
    """
    with contextlib.suppress(OSError):
        os.write(2, b"\r\x1b[K\x1b[?25h" if os.isatty(2) else b"\n")


def _tell(text: str) -> None:
    """Write a sentence to standard error, at once: nobody who ends this process finds it half written."""
    word = "\x1b[1;31merror:\x1b[0m" if os.isatty(2) and not os.environ.get("NO_COLOR") else "error:"
    with contextlib.suppress(OSError):
        os.write(2, f"{word} {text}\n".encode(errors="backslashreplace"))


if __name__ == "__main__":
    main()
