"""The process that follows a folder for one tracker: ``python -m fedskew.trackers.following``.

It reads what a run or a sweep has put on disk and tells the tracker, at the lowest priority. Nobody waits for it but at
the end, for a bounded time, and nothing it meets reaches the run: a failure is a line in the folder's ``log.txt``, and
the tracker is tried again, less and less often. Its standard input says in one line what to do, and by its end that
the run is over, however the run's process ended.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.base.opening import regular
from fedskew.trackers.pushing import Pushing, points_of
from fedskew.trackers.reading import Folder
from fedskew.trackers.records import Tracker
from fedskew.trackers.targets import Target, without_password

LOOK = 1.0  # seconds between two looks, at least
SHARE = 20  # of a look's own time: it takes no more than a twentieth of a core
LATEST = 60.0  # seconds between two tries of a tracker that fails, at most


@dataclass(frozen=True)
class Told:
    """What a tracker has at the end."""

    records: int  # runs, trials and sweeps
    points: int  # numbers that were told
    left: int  # numbers on disk that it does not have, as far as is known
    error: str | None  # of the last look, if that failed


class Following:
    """A folder that is followed for a tracker."""

    def __init__(self, folder: Path, target: Target, digest: str | None, wait: Callable[[float], bool]) -> None:
        """``wait``: waits for so many seconds, and returns early, and True, when the run is over."""
        self._folder = folder
        self._target = target
        self._digest = digest
        self._wait = wait
        self._pushing: Pushing | None = None
        self._tracker: Tracker | None = None
        self._failures = 0
        self._told = self._held = self._records = 0

    def to_the_end(self) -> Told:
        """Follow until the run is over, and tell what is new then."""
        pause, error, over = 0.0, None, False
        while not over:
            over = self._wait(pause)
            pause, error = self._look()
            if over and error is None:  # what came between the look at the tables and that at the end
                _, error = self._look()
        self._drop()
        left = 0 if error is None else max(points_of(Folder(self._folder, self._digest)) - self._held, 0)
        return Told(self._records, self._told, left, error)

    def _look(self) -> tuple[float, str | None]:
        """Tell what is new; how long to wait for the next look, and the error, if there was one."""
        began = time.monotonic()
        if not Folder(self._folder).is_there():
            return LOOK, None
        before = 0
        try:
            if self._pushing is None:
                self._tracker = self._target.open()
                self._pushing = Pushing(self._folder, self._tracker, self._digest)
                began = time.monotonic()  # a library is imported once, and the first numbers are not to wait for it
            before = self._pushing.points
            self._pushing.once()
        except Exception as error:  # whatever a library, a network or a server does
            text = without_password(" ".join(f"{type(error).__name__}: {error}".split()))[:160]  # whole, to be known
            self._count(before)
            self._drop()
            self._failures += 1
            if self._failures == 1:
                self._note(f"cannot be reached, and is tried again ({text})")
            return min(LOOK * 2**self._failures, LATEST), text
        self._count(before)
        if self._failures:
            self._note("is told again")
            self._failures = 0
        return max(LOOK, SHARE * (time.monotonic() - began)), None

    def _count(self, before: int) -> None:
        if self._pushing is not None:
            self._told += self._pushing.points - before
            self._held = max(self._held, self._pushing.points + self._pushing.there)
            self._records = max(self._records, self._pushing.records)

    def _drop(self) -> None:
        """Let go of the tracker."""
        tracker, self._tracker, self._pushing = self._tracker, None, None
        if tracker is not None:
            try:
                tracker.close()
            except Exception as error:
                self._note(f"was not closed ({type(error).__name__})")

    def _note(self, text: str) -> None:
        """Add a line to the folder's log, as the run's own lines are."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')},000 WARNING tracker {self._target} {text}\n"
        try:
            with open(self._folder / "log.txt", "a", encoding="utf-8", opener=regular) as file:
                file.write(line)
        except OSError:  # the run does without its log there, too
            pass


def _until_over(seconds: float) -> bool:
    """Wait for the end of standard input."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def main() -> None:
    """Follow as standard input says, and print what came of it as the last line, as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    asked = json.loads(_first_line())
    logging.disable(logging.INFO)
    told = Following(Path(asked["folder"]), Target(asked["kind"], asked["place"]), asked["digest"], _until_over)
    print(f"\n{json.dumps(asdict(told.to_the_end()))}", flush=True)


def _first_line() -> str:
    """Read one line, and nothing behind it: its end is waited for by the descriptor."""
    found = b""
    while not found.endswith(b"\n") and (letter := os.read(sys.stdin.fileno(), 1)):
        found += letter
    return found.decode()


if __name__ == "__main__":
    main()
