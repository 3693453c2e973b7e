"""The last word of a command to the process that started it: how to go on after it, and that it has come to its end.

The parent (``fedskew/cli/entry.py``) is told through pipes, and so it knows these whatever becomes of this process.
Without one (``python -m fedskew.cli.main``, a notebook, tests) nobody is told, and nothing is changed.

Imports next to nothing, as the parent does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

DIED = 3  # the exit code where a process has died that the command needs
_telling: int | None = None  # the pipe for lines of text
_told: dict[str, str] = {}
needed_files: list[str] = []  # the user's own, that were named to this process
before_ray: list[Callable[[], None]] = []  # what is to be done before this process uses Ray


def begin(telling: int, catching: int, alive: int) -> None:
    """Be the child of a parent, and end as at SIGTERM when it is gone.

    Descriptors: ``telling`` takes lines of text, ``catching`` a byte for each signal that this process gets; ``alive``
    comes to its end with the parent.
    """
    global _telling
    import threading

    _telling = telling
    os.set_blocking(catching, False)
    signal.set_wakeup_fd(catching, warn_on_full_buffer=False)

    def watch() -> None:
        os.read(alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def is_awaited() -> bool:
    """Return whether this process has a parent that waits for it, and so ends with its command."""
    return _telling is not None


def again(text: str) -> None:
    """Tell how to go on if the command should end from now on: ``continue with: fedskew resume runs/one``."""
    _tell("again", text)


def resume_command(folder: object, address: str | None = None) -> str:
    """Return ``continue with: fedskew resume FOLDER``, with the address and the user's own files that are needed."""
    import shlex

    words = ["fedskew", "resume", str(folder), *(["--address", address] if address else [])]
    for file in needed_files:
        words += ["--with", file]
    return f"continue with: {shlex.join(words)}"


def leaves(folder: object, inode: int) -> None:
    """Tell of a folder that this process removes when it ends, and the parent where it cannot any more."""
    _tell("leaves", f"{inode} {folder}")


def how_to_go_on() -> str | None:
    """Return what :func:`again` was told last."""
    return _told.get("again")


def answered() -> None:
    """Tell that the command's object is on standard output, so that the parent writes none."""
    _tell("answered", "json")


def failed(sentence: str, parts: Mapping[str, Any]) -> bool:
    """Tell of the error that ends the command, so that the parent says it; return whether there is a parent.

    Ray ends this process in the middle of a line where its server is gone, which may be what the error is about. So the
    parent writes the sentence and, where ``--json`` asks for one and there is none yet, the object of these ``parts``.
    """
    if _telling is not None:
        import json

        _tell("failed", json.dumps({"sentence": sentence, "parts": dict(parts)}, default=str))
    return _telling is not None


def ended(code: int) -> None:
    """Tell that the command is over, and its exit code."""
    _tell("ended", str(code))


def keep_rays_text() -> tuple[int, int] | None:
    """Send what is written to standard output and error from now on to a file, which the parent names if this process
    dies.

    Ray writes to both from many threads, in the middle of a progress bar. Returns descriptors of the two as they were;
    None without a parent or at the second call, and nothing is changed.
    """
    if _telling is None or "said" in _told:
        return None
    import tempfile

    file, path = tempfile.mkstemp(prefix="fedskew-ray-", suffix=".txt")
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    _tell("said", path)
    return before


def _tell(what: str, text: str) -> None:
    _told[what] = text
    if _telling is not None:
        with contextlib.suppress(OSError):
            os.write(_telling, f"{what} {' '.join(text.splitlines())}\n".encode(errors="backslashreplace"))


# --- the parent's part -------------------------------------------------------------------------------------------


def heard(texts: bytes) -> dict[str, str]:
    """Return what a child told last, of ``again``, ``answered``, ``ended``, ``failed``, ``leaves`` and ``said``."""
    lines = texts.decode(errors="replace").split("\n")[:-1]  # the last one has not come whole
    return dict(line.split(" ", 1) for line in lines if " " in line)


def of_a_sudden_end(number: int, told: dict[str, str]) -> str:
    """Return the sentence on a process that died by the signal of that ``number`` or, at 0, by itself."""
    if number == signal.SIGKILL:
        what = "the command's process was killed, perhaps for want of memory"
    elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        what = f"the command was stopped by {signal.Signals(number).name} before it had begun"
    elif number and number != signal.SIGABRT:
        what = f"the command's process died by {signal.Signals(number).name}"
    else:
        what = "the command's process died, as it does when Ray's server (GCS), raylet or agent has died"
    where = f" (what was said last: {told['said']})" if "said" in told else ""
    return f"{what}{where}; {told.get('again', 'give the command again')}"
