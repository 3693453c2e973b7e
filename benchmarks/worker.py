"""Work in a process of its own: what it comes to, or why it failed.

So that neither memory nor the broken context of a device is left to what comes after it.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Worker:
    """A process that does ``work(*arguments)``; a generator goes on to its next value when it is told to.

    With ``log`` its output goes to that file, which is not buffered.
    """

    def __init__(self, work: Callable[..., Any], *arguments: Any, log: Path | None = None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(far, log, work, arguments))
        self._process.start()
        far.close()

    def go_on(self) -> None:
        self.pipe.send(None)

    def answer(self, limit: float) -> dict[str, Any]:
        """The next value, or {"failed": why} if there is an error instead or it takes longer than ``limit`` seconds."""
        try:
            return self.pipe.recv() if self.pipe.poll(limit) else {"failed": f"took longer than {limit:.0f} s"}
        except EOFError:
            self._process.join()
            return {"failed": f"ended with code {self._process.exitcode}"}

    def close(self, patience: float = 5.0) -> None:
        """End the process, by force if it has not ended in ``patience`` seconds."""
        self.pipe.close()
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _serve(pipe: Connection, log: Path | None, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if log is not None:
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    try:
        made = work(*arguments)
        for answer in made if isinstance(made, Iterator) else (made,):
            pipe.send(answer)
            try:
                pipe.recv()
            except (EOFError, ConnectionResetError):  # nobody asks for more
                return
    except Exception as error:  # whatever it is, it is this work's alone
        traceback.print_exc()
        pipe.send({"failed": f"{type(error).__name__}: {error}"})
