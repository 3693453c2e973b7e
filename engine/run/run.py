"""One run from an experiment to its folder: data, checks, driver, pictures. What the command line calls.

run = Run.open(experiment)            # or Run.open(experiment, out=Path("somewhere"))
while not run.finished:
    progress = run.advance(seconds=0.5)
summary = run.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from engine.base.allocator import give_back_freed_memory
from engine.base.errors import FedskewError
from engine.base.files import writing
from engine.experiment import Experiment
from engine.record.store import StageStore
from engine.run.local_driver import DriverLike, LocalDriver, Progress
from engine.run.preparing import Prepared, check_place, prepare

log = logging.getLogger("fedskew")


class Run:
    """A run that is under way."""

    def __init__(self, prepared: Prepared, driver: DriverLike) -> None:
        self.experiment = prepared.experiment
        self.folder = prepared.folder
        self.assignment = prepared.assignment
        self.classes = prepared.dataset.classes
        self.shape = prepared.dataset.shape
        self.labels = prepared.dataset.train.labels
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
    ) -> Run:
        """Everything that can be refused is refused before the folder is made.

        Continues a folder that holds an unfinished run of the same experiment; ``overwrite`` starts it again. With a
        ``store``, rounds that another run has put there are taken from it, and this run's are put there.
        """
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
        run = cls(prepared, driver)
        run._note(driver.opened)
        return run

    @property
    def total_rounds(self) -> int:
        return sum(stage.rounds for stage in self.experiment.chain)

    def advance(self, seconds: float = 0.0, until: int | None = None) -> Progress:
        """Rounds for about ``seconds``, at least one, none beyond ``until`` (global)."""
        return self._note(self.driver.advance(seconds, until))

    def close(self, then: Callable[[], None] | None = None) -> dict[str, Any]:
        """Write everything; the summary. The folder can be resumed if the run was not finished.

        ``then``: called when all is computed, before the pictures are drawn.
        """
        summary = self.driver.close()
        if then is not None:
            then()
        counts = self.assignment.class_counts(self.labels, len(self.classes))
        with writing(self.folder.path):
            # Here, since matplotlib takes a second to import, and only ends need it.
            from engine.analysis.run_pictures import draw_pictures

            draw_pictures(self.experiment, self.folder, counts, self.classes)
        return summary

    def _note(self, progress: Progress) -> Progress:
        self.round, self.done, self.finished = progress.round, progress.done, progress.finished
        return progress


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    address: str | None = None,
    store: StageStore | None = None,
    overwrite: bool = False,
    track: str | Sequence[str] = (),
) -> dict[str, Any]:
    """Run to the end and return the summary. After an error the folder holds what was done before it.

    An unfinished run of the same experiment in the folder is continued. ``track``: a tracker that follows it, such as
    ``"mlflow:http://127.0.0.1:5000"``, or several; see docs/trackers.md.
    """
    followed = _trackers(track)
    under_way = Run.open(experiment, out, address, overwrite, store)
    with followed(under_way.folder.path, under_way.experiment.digest):
        try:
            while not under_way.finished:
                under_way.advance(seconds=1.0)
        except BaseException:
            with suppress(FedskewError):  # of two errors the first one counts
                under_way.close()
            raise
        return under_way.close()


def _trackers(track: str | Sequence[str]) -> Callable[[Path, str], AbstractContextManager[None]]:
    """Return what lets trackers follow a folder; refuses those that there are not."""
    if not track:
        return lambda folder, digest: nullcontext()
    from engine.export.beside import beside
    from engine.export.targets import parsed

    targets = parsed([track] if isinstance(track, str) else track, "track")
    return lambda folder, digest: beside(targets, folder, log.log, digest)
