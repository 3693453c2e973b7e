"""One run from an experiment to its folder: data, checks, driver. What the command line calls.

run = Run.open(experiment)            # or Run.open(experiment, out=Path("somewhere"))
while not run.finished:
    progress = run.advance(seconds=0.5)
summary = run.close()

Pictures, trackers and progress bars are observers of a run, see :class:`RunObserver`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.base.allocator import give_back_freed_memory
from engine.base.errors import FedskewError, one_line
from engine.base.files import writing
from engine.base.own_modules import check_not_importing
from engine.experiment import Experiment
from engine.record.store import StageStore
from engine.run.local_driver import DriverLike, LocalDriver, Progress
from engine.run.preparing import Prepared, check_place, prepare

log = logging.getLogger("fedskew")


class RunObserver:
    """Does nothing at each event; pictures and trackers override what they need. One that raises costs a log line."""

    def on_start(self, run: Run) -> None:
        """Called when the run's folder is there and nothing has been computed by this process."""

    def on_round(self, run: Run, progress: Progress) -> None:
        """Called after some rounds, with what their evaluations came to."""

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Called when all is on disk: at the run's end, or where it was stopped."""


class Run:
    """A run that is under way."""

    def __init__(self, prepared: Prepared, driver: DriverLike, observers: Sequence[RunObserver] = ()) -> None:
        self._observers = list(observers)
        self.experiment = prepared.experiment
        self.folder = prepared.folder
        self.assignment = prepared.assignment
        self.classes = prepared.dataset.classes
        self.shape = prepared.dataset.shape
        self.labels = prepared.dataset.train.labels
        self.told, self.warnings = prepared.dataset.told, prepared.dataset.warnings
        self.driver = driver
        self.round = self.done = 0
        self.finished = False

    @classmethod
    def open(
        cls,
        experiment: Experiment,
        out: Path | str | None = None,
        address: str | None = None,
        overwrite: bool = False,
        store: StageStore | None = None,
        observers: Sequence[RunObserver] = (),
    ) -> Run:
        """Everything that can be refused is refused before the folder is made.

        Continues a folder that holds an unfinished run of the same experiment; ``overwrite`` starts it again. With a
        ``store``, rounds that another run has put there are taken from it, and this run's are put there.
        """
        check_not_importing("a run")
        experiment = experiment.resolve()
        execution = experiment.execution
        check_place(execution, address)
        prepared = prepare(experiment, out, overwrite)
        reference = None
        if execution.actors:
            from engine.worker.ray import cluster  # Ray is imported where it is used: in process nothing waits for it

            cluster.connect(execution, address)
            cluster.check_resources(execution)
            reference = cluster.share(prepared.dataset)
        with prepared.folder.prepared(overwrite):
            with writing(prepared.folder.path):
                prepared.write()
            give_back_freed_memory()
            if reference is None:
                driver: DriverLike = LocalDriver(prepared, store)
            else:
                from engine.run.driver_actor import RemoteDriver

                driver = RemoteDriver(prepared, reference, store)
        run = cls(prepared, driver, observers)
        run._note(driver.opened)
        run._tell("on_start")
        return run

    @property
    def total_rounds(self) -> int:
        return sum(stage.rounds for stage in self.experiment.chain)

    def advance(self, seconds: float = 0.0, until: int | None = None) -> Progress:
        """Rounds for about ``seconds``, at least one, none beyond ``until`` (global)."""
        progress = self._note(self.driver.advance(seconds, until))
        self._tell("on_round", progress)
        return progress

    def close(self) -> dict[str, Any]:
        """Write everything; the summary. The folder can be resumed if the run was not finished."""
        summary = self.driver.close()
        self._tell("on_end", summary)
        return summary

    def _tell(self, event: str, *values: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, event)(self, *values)
            except (Exception, SystemExit) as error:  # of a picture or a tracker, without which the run is whole
                name, text = type(observer).__name__, one_line(str(error))
                log.warning("%s failed in %s (%s: %s)", name, event, type(error).__name__, text)

    def _note(self, progress: Progress) -> Progress:
        self.round, self.done, self.finished = progress.round, progress.done, progress.finished
        return progress


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    address: str | None = None,
    store: StageStore | None = None,
    overwrite: bool = False,
    observers: Sequence[RunObserver] = (),
) -> dict[str, Any]:
    """Run to the end and return the summary. After an error the folder holds what was done before it.

    An unfinished run of the same experiment in the folder is continued.
    """
    under_way = Run.open(experiment, out, address, overwrite, store, observers)
    for sentence in under_way.warnings:
        log.warning("data: %s", sentence)
    try:
        while not under_way.finished:
            under_way.advance(seconds=1.0)
    except BaseException:
        with suppress(FedskewError):  # of two errors the first one counts
            under_way.close()
        raise
    return under_way.close()
