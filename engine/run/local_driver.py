"""The driver in this process, with the lock and the log of the run's folder; and what any driver tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from engine.record.run_folder import Row, RunFolder
from engine.record.store import StageStore
from engine.run.driver import Driver
from engine.run.log import log_to, stop_logging
from engine.run.preparing import Prepared
from engine.run.reuse import Reuse
from engine.worker.pool import InProcessPool, Pool


@dataclass(frozen=True)
class Progress:
    """What has happened since the last look."""

    rows: list[Row]
    round: int  # global: a stage counts on from the one it needs
    done: int  # rounds of this run, over all its stages
    finished: bool
    messages: tuple[str, ...] = ()  # warnings of another process; those of this one are logged as they come


class DriverLike(Protocol):
    """The driver, in this process or as an actor."""

    opened: Progress

    def advance(self, seconds: float, until: int | None = None) -> Progress: ...

    def close(self) -> dict[str, Any]: ...


class LocalDriver:
    """The driver in this process."""

    def __init__(
        self,
        prepared: Prepared,
        store: StageStore | None = None,
        make_pool: Callable[[], Pool] | None = None,
        keep_all: bool = False,
        patience: float = 0.0,
    ) -> None:
        """``make_pool``: where blocks run; none: in this process. ``keep_all``: see :class:`~engine.run.reuse.Reuse`.

        ``patience``: seconds to wait for a process that still holds the folder.
        """
        self._stack = ExitStack()
        experiment, folder = prepared.experiment, prepared.folder
        with ExitStack() as stack:  # what was begun is undone if the rest fails
            stack.enter_context(folder.locked(patience))
            log_to(folder.path)
            stack.callback(stop_logging)
            data = (prepared.dataset, prepared.assignment)
            pool = make_pool() if make_pool else InProcessPool(experiment, *data)
            stack.callback(pool.close)
            self.driver = Driver(experiment, folder, *data, pool, reuse_for(folder, store, keep_all))
            self._stack = stack.pop_all()
        self.opened = self._progress([])

    def advance(self, seconds: float, until: int | None = None) -> Progress:
        return self._progress(self.driver.advance(seconds, until))

    def close(self) -> dict[str, Any]:
        with self._stack:
            return self.driver.close()

    def _progress(self, rows: list[Row]) -> Progress:
        return Progress(rows, self.driver.round, self.driver.rounds_done, self.driver.finished)


def reuse_for(folder: RunFolder, store: StageStore | None, keep_all: bool = False) -> Reuse | None:
    """The dealings of the run in ``folder`` with a store, if there is one."""
    if store is None:
        return None
    return Reuse(store, folder.path / "fetched", note=str(folder.path), keep_all=keep_all)
