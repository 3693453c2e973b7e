"""Trackers beside a run or a sweep: a process for each, which can cost it nothing.

with beside(parsed(["mlflow:runs/mlflow"]), folder, log.log):
    ...  # the run
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import engine
from fedskew.trackers.targets import Target, check_outside, without_password

Say = Callable[[int, str], None]  # takes a level of logging, and a sentence
PATIENCE = 30.0  # seconds that all trackers together are waited for, once the run is over
COMMAND = ("-P", "-m", "fedskew.trackers.following")  # of Python
ROOT = Path(engine.__file__).parents[1]


@dataclass(frozen=True)
class _Process:
    """A tracker's process."""

    target: Target
    process: subprocess.Popen[bytes]
    said: IO[bytes]  # its standard output

    def told(self) -> dict[str, Any] | None:
        """Return what it said last; None if it did not come to that."""
        self.said.seek(0)
        try:
            found = json.loads(self.said.read().splitlines()[-1])
            return found if isinstance(found, dict) and "left" in found else None
        except (IndexError, ValueError):
            return None


@contextlib.contextmanager
def beside(targets: Sequence[Target], folder: Path, say: Say, digest: str | None = None) -> Iterator[None]:
    """Let trackers follow ``folder`` while the body runs, and say at its end what they have and what they lack.

    digest: of the experiment, of a run. Nothing that happens to a tracker is raised, and nothing of the body's is held
    back. Raises :class:`ConfigError` for a tracker's place that lies in the folder.
    """
    for target in targets:
        check_outside(target, folder, "--track")
    processes = [one for target in targets if (one := _started(target, folder, digest, say)) is not None]
    try:
        yield
    finally:
        _end(processes, folder, say)


def _started(target: Target, folder: Path, digest: str | None, say: Say) -> _Process | None:
    place = target.place if "://" in target.place or target.place == "databricks" else str(Path(target.place).resolve())
    asked = {"folder": str(folder.resolve()), "kind": target.kind, "place": place, "digest": digest}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # one core at most, and no card
    environment = {**os.environ, **alone, "PYTHONPATH": os.pathsep.join(paths)}
    said = tempfile.TemporaryFile()  # noqa: SIM115  # until it is read at the end
    try:
        process = subprocess.Popen(
            [sys.executable, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the run
        )
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(asked)}\n".encode())
        process.stdin.flush()
    except OSError as error:
        said.close()
        say(logging.WARNING, f"tracker {target} could not be started ({error.strerror}); {_repair(target, folder)}")
        return None
    return _Process(target, process, said)


def _end(processes: Sequence[_Process], folder: Path, say: Say) -> None:
    """Wait for the trackers, and say what came of them."""
    for one in processes:
        with contextlib.suppress(OSError):
            assert one.process.stdin is not None
            one.process.stdin.close()
    deadline = time.monotonic() + PATIENCE
    for one in processes:
        try:
            one.process.wait(max(deadline - time.monotonic(), 0.0))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # by Ctrl-C the user waits no longer
            deadline = 0.0
            with contextlib.suppress(OSError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
            say(logging.WARNING, f"tracker {one.target} was not done in time; {_repair(one.target, folder)}")
        else:
            say(*_sentence(one, folder))
        one.said.close()


def _sentence(one: _Process, folder: Path) -> tuple[int, str]:
    told = one.told()
    if told is None:
        how = f"tracker {one.target} died (exit code {one.process.returncode})"
        return logging.WARNING, f"{how}; {_repair(one.target, folder)}"
    if told["error"]:
        lacks = f"tracker {one.target} lacks {told['left']:,} numbers ({without_password(str(told['error']))})"
        return logging.WARNING, f"{lacks}; {_repair(one.target, folder)}"
    return logging.INFO, f"tracked    {one.target}: {told['points']:,} numbers, runs: {told['records']:,}"


def _repair(target: Target, folder: Path) -> str:
    """Return the sentence on what brings the rest."""
    place = without_password(target.place)
    words = ["fedskew", "export", str(folder), "--to", target.kind, "--uri" if "://" in place else "--out", place]
    return f"{shlex.join(words)} makes it whole"
