"""Trackers that are told of a run or a sweep as it goes: each by a thread of its own, which can cost it nothing.

with tracked(parsed("mlflow:runs/mlflow"), folder, log.log) as look:
    run(experiment, folder, observers=[OnRound(look)])

A tracker that is slow, down or wrong costs a line in the log, and never a round, a bit or the exit code.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from engine.base.errors import ConfigError, nearest, one_line, require
from engine.base.files import holds_results
from engine.run.local_driver import Progress
from engine.run.run import Run, RunObserver
from fedskew.trackers.records import Push, Tracker

log = logging.getLogger("fedskew")
TRACKERS = ("mlflow", "tensorboard", "wandb")
Say = Callable[[int, str], None]  # takes a level of logging, and a sentence
LOOK = 1.0  # seconds between two passes over a folder, at least
SHARE = 20  # of a pass's own time: a tracker takes no more than a twentieth of a core
LATEST = 60.0  # seconds between two tries of a tracker that fails, at most
ANSWER = 120.0  # seconds that a call of an export may take
PATIENCE = 30.0  # seconds that a tracker is waited for, once the run is over


@dataclass(frozen=True)
class Target:
    """A tracker, and its place: a folder, or for MLflow any URI that it knows."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{without_secrets(self.place)}"

    def open(self) -> Tracker:
        """Import the tracker's library and reach its store; the errors are the library's own."""
        if self.kind == "mlflow":
            from fedskew.trackers.mlflow import Mlflow

            return Mlflow(self.place)
        if self.kind == "tensorboard":
            from fedskew.trackers.tensorboard import TensorBoard

            return TensorBoard(self.place)
        from fedskew.trackers.wandb import WandB

        return WandB(self.place)

    def check(self, option: str, folder: Path | None = None) -> None:
        """Refuse a library that is not installed, and a place in the folder itself, which holds what is its own."""
        if find_spec(self.kind) is None:
            raise ConfigError(option, self.kind, "is not installed", f"pip install 'fedskew[{self.kind}]'")
        is_folder = "://" not in self.place and self.place != "databricks"
        if folder is not None and is_folder:
            place = Path(self.place).resolve()
            inside = folder.resolve() in (place, *place.parents)
            require(not inside, option, self.place, f"lies in {folder}", "name a folder beside it")


def parsed(texts: str | Iterable[str], option: str = "--track") -> tuple[Target, ...]:
    """Return the trackers that ``KIND:PLACE`` names; raises :class:`ConfigError` for what none can be made of."""
    targets = []
    for text in [texts] if isinstance(texts, str) and texts else texts:
        kind, colon, place = text.partition(":")
        require(kind in TRACKERS, option, kind, "names no tracker", nearest(kind, TRACKERS))
        require(bool(colon and place), option, text, "names no place", f"for example {kind}:FOLDER")
        targets.append(Target(kind, place))
        targets[-1].check(option)
    return tuple(targets)


def without_secrets(place: str) -> str:
    """Return a URI as it may be shown: without user, password, query and fragment. A folder stays as it is.

    Nobody knows where a password ends that has a slash or a question mark in it: nothing of such a URI is shown.
    """
    scheme, is_uri, _ = place.partition("://")
    try:
        parts = urlsplit(place)
    except ValueError:  # an address in brackets that is none
        return f"{scheme}://..."
    if not is_uri:
        return place
    if parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        return f"{scheme}://..."
    host = parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}{parts.path}" + "?..." * bool(parts.query or parts.fragment)


@contextmanager
def tracked(targets: Sequence[Target], folder: Path, say: Say) -> Iterator[Callable[[], None]]:
    """Let trackers follow ``folder`` while the body runs, and say at its end what they have and what they lack.

    Yields a function that lets them look, for when there is something new. Nothing that happens to a tracker is raised,
    and nothing of the body's is held back. Raises :class:`ConfigError` for a tracker's place that lies in the folder.
    """
    for target in targets:
        target.check("--track", folder)
    threads = [_Thread(target, folder) for target in targets]

    def look() -> None:
        for thread in threads:
            thread.news.set()

    try:
        yield look
    finally:
        deadline = time.monotonic() + PATIENCE
        for thread in threads:
            thread.finish()
        for thread in threads:
            say(*thread.outcome(max(deadline - time.monotonic(), 0.0)))


def within(call: Callable[..., Any], *values: Any) -> Any:
    """Call and return what comes of it, or raise TimeoutError after a while.

    A library's own deadlines are of each read: a server that sends a byte now and then meets them all.
    """
    outcome = Future[Any]()

    def work() -> None:
        try:
            outcome.set_result(call(*values))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="tracker's call", daemon=True).start()
    try:
        return outcome.result(ANSWER)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no whole answer in {ANSWER:g} s") from None


class Bounded:
    """A tracker whose every call ends, see :func:`within`."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(within, getattr(self._tracker, name))


class OnRound(RunObserver):
    """Lets trackers look at a run's folder after each round."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def on_round(self, run: Run, progress: Progress) -> None:
        self._look()


class _Thread:
    """Tells one tracker what comes to be in a folder; tried again, less and less often, while it fails."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._push: Push | None = None
        self._tracker: Tracker | None = None
        self._points = 0
        self.news = threading.Event()
        self._over = threading.Event()
        self._error = ""  # of the last pass
        self._thread = threading.Thread(target=self._follow, name=f"tracker {target.kind}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Let it tell what is new now, and end."""
        self._over.set()
        self.news.set()

    def outcome(self, seconds: float) -> tuple[int, str]:
        """Wait for the end for so long; return what became of it, and how bad that is."""
        try:
            self._thread.join(seconds)
        except KeyboardInterrupt:  # the user waits no longer
            seconds = 0.0
        if self._thread.is_alive():
            return logging.WARNING, f"tracker {self._target} was not done in time; {self._repair()}"
        if self._error:
            return logging.WARNING, f"tracker {self._target} lacks numbers ({self._error}); {self._repair()}"
        points, records = self._points, self._push.records if self._push else 0
        return logging.INFO, f"tracked    {self._target}: {points:,} numbers, runs: {records:,}"

    def _repair(self) -> str:
        words = ["fedskew", "export", str(self._folder), "--to", str(self._target)]
        hidden = ", with what is left out of its address," * str(self._target).endswith("...")
        return f"{shlex.join(words)}{hidden} makes it whole"

    def _follow(self) -> None:
        failures = 0
        while True:
            self.news.wait()
            self.news.clear()
            over, began = self._over.is_set(), time.monotonic()
            self._error = self._look()
            pause = max(LOOK, SHARE * (time.monotonic() - began))
            if self._error:
                failures += 1
                pause = min(LOOK * 2**failures, LATEST)
                self.news.set()  # what was not told is to be told
                if failures == 1:
                    log.warning("tracker %s cannot be reached, and is tried again (%s)", self._target, self._error)
            elif failures:
                failures = 0
                log.warning("tracker %s is told again", self._target)
            if over:
                break
            self._over.wait(pause)
        self._close()

    def _look(self) -> str:
        """Tell what is new; return the error if there was one."""
        if not holds_results(self._folder):
            return ""
        before = 0
        try:
            if self._push is None:
                self._tracker = self._target.open()
                self._push = Push(self._folder, self._tracker)
            before = self._push.points
            self._push.once()
        except Exception as error:  # whatever a library, a network or a server does
            self._points += self._push.points - before if self._push else 0
            self._close()
            self._push = None  # what the tracker has is asked anew
            return described(error, self._target.place)
        self._points += self._push.points - before
        return ""

    def _close(self) -> None:
        tracker, self._tracker = self._tracker, None
        try:
            if tracker is not None:
                tracker.close()
        except Exception as error:
            self._error = self._error or described(error, self._target.place)


def described(error: Exception, place: str) -> str:
    """Write an error of a library's in a line; ``place``: what it was given, no hidden word of which is repeated."""
    shown, words = without_secrets(place), re.compile(r"\w+")
    hidden = {*words.findall(f"{place} {unquote(place)}")} - {*words.findall(shown)}
    text = " ".join(str(error).split()).replace(place, shown)
    text = words.sub(lambda word: "..." if word[0] in hidden else word[0], text)
    text = re.sub(r"[\w+.-]+://\S+", lambda uri: without_secrets(uri[0]), text)  # of a proxy, say
    return one_line(f"{type(error).__name__}: {text}")[:300]


def default_place(kind: str, folder: Path) -> str:
    """Return the place of a tracker that none was named for: beside the folder, which so holds what is its own."""
    return (kind == "mlflow" and os.environ.get("MLFLOW_TRACKING_URI")) or str(folder.resolve().parent / kind)
