"""One run from an experiment to its folder: data, checks, driver, pictures. What the command line calls.

run = Run.open(experiment)            # or Run.open(experiment, out=Path("somewhere"))
while not run.finished:
    progress = run.advance(seconds=0.5)
summary = run.close()
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from engine.data import Assignment, Dataset
from engine.driver import Driver
from engine.errors import FedskewError, require
from engine.experiment import Experiment, no_gpu
from engine.pool import InProcessPool
from engine.results import Row, RunFolder

log = logging.getLogger("fedskew")


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

    def advance(self, seconds: float) -> Progress: ...

    def close(self) -> dict[str, Any]: ...


class Messages(logging.Handler):
    """Keeps warnings until somebody shows them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def drain(self) -> list[str]:
        texts, self._texts = self._texts, []
        return texts


def log_to(folder: Path) -> None:
    """Log to ``folder/log.txt`` until :func:`stop_logging`, or the next run of this process."""
    file = logging.FileHandler(folder / "log.txt", encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    stop_logging()
    _handlers.append(file)
    log.addHandler(file)
    log.setLevel(logging.INFO)


def stop_logging() -> None:
    while _handlers:
        handler = _handlers.pop()
        log.removeHandler(handler)
        handler.close()


_handlers: list[logging.Handler] = []  # of the run that this process drives


def check_against_data(experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
    """Refuse what only the data can tell: a model that does not fit them, a cohort larger than the clients."""
    with torch.device("meta"):
        experiment.model.build(dataset.shape, len(dataset.classes))
    holders = int((assignment.sizes() > 0).sum())
    count = experiment.participation.count
    require(
        count is None or count <= holders,
        "participation.count",
        count,
        f"must be at most {holders}, the number of clients that hold data",
        f"set participation.count={holders}",
    )


class Run:
    """A run that is under way."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        dataset: Dataset,
        assignment: Assignment,
        driver: DriverLike,
    ) -> None:
        self.experiment = experiment
        self.folder = folder
        self.assignment = assignment
        self.classes = dataset.classes
        self.labels = dataset.train.labels
        self.driver = driver
        self.round = self.done = 0
        self.finished = False

    @classmethod
    def open(
        cls,
        experiment: Experiment,
        out: Path | None = None,
        address: str | None = None,
        overwrite: bool = False,
    ) -> Run:
        """Everything that can be refused is refused before the folder is made.

        Continues a folder that holds an unfinished run of the same experiment; ``overwrite`` starts it again.
        """
        experiment = experiment.resolve()
        execution = experiment.execution
        if execution.actors == 0 and execution.device == "cuda" and not torch.cuda.is_available():
            raise no_gpu(execution)
        folder = RunFolder.for_experiment(experiment, out)
        dataset = experiment.data.load()
        fingerprint = dataset.fingerprint
        if overwrite or not folder.has_experiment():
            assignment = experiment.partition.assign(dataset.train.labels, len(dataset.classes), dataset.train.owners)
            assignment = replace(assignment, data=fingerprint)
        else:  # as saved: a run goes on with the partition it began with
            assignment = Assignment.load(folder.path / "partition.parquet")
            root = getattr(experiment.data, "root", None)
            require(
                assignment.data == fingerprint,
                "data.root",
                root,
                "holds other data than this run began with",
                "name another folder with --out, or put the data back",
            )
        check_against_data(experiment, dataset, assignment)
        reference = None
        if execution.actors:
            from engine import ray_pool  # Ray is imported where it is used: in process nothing waits for it

            ray_pool.connect(execution, address)
            ray_pool.check_resources(execution)
            reference = ray_pool.share(dataset)
        with folder.prepared(overwrite):
            folder.create(experiment)
            assignment.save(folder.path / "partition.parquet")
            if reference is None:
                driver: DriverLike = LocalDriver(experiment, folder, dataset, assignment)
            else:
                from engine.ray_driver import RemoteDriver

                driver = RemoteDriver(experiment, folder.path, reference, assignment)
        run = cls(experiment, folder, dataset, assignment, driver)
        run._note(driver.opened)
        return run

    @property
    def total_rounds(self) -> int:
        return sum(stage.rounds for stage in self.experiment.chain)

    def advance(self, seconds: float = 0.0) -> Progress:
        """Rounds for about ``seconds``, at least one."""
        return self._note(self.driver.advance(seconds))

    def close(self) -> dict[str, Any]:
        """Write everything; the summary. The folder can be resumed if the run was not finished."""
        summary = self.driver.close()
        draw_pictures(self.folder, self.assignment.class_counts(self.labels, len(self.classes)), self.classes)
        return summary

    def _note(self, progress: Progress) -> Progress:
        self.round, self.done, self.finished = progress.round, progress.done, progress.finished
        return progress


class LocalDriver:
    """The driver in this process."""

    def __init__(self, experiment: Experiment, folder: RunFolder, dataset: Dataset, assignment: Assignment) -> None:
        self._stack = ExitStack()
        with ExitStack() as stack:  # what was begun is undone if the rest fails
            stack.enter_context(folder.locked())
            log_to(folder.path)
            stack.callback(stop_logging)
            pool = InProcessPool(experiment, dataset, assignment)
            self._driver = Driver(experiment, folder, dataset, assignment, pool)
            self._stack = stack.pop_all()
        self.opened = self._progress([])

    def advance(self, seconds: float) -> Progress:
        return self._progress(self._driver.advance(seconds))

    def close(self) -> dict[str, Any]:
        with self._stack:
            return self._driver.close()

    def _progress(self, rows: list[Row]) -> Progress:
        return Progress(rows, self._driver.round, self._driver.rounds_done, self._driver.finished)


def draw_pictures(folder: RunFolder, counts: Any, classes: tuple[str, ...]) -> None:
    # Here, since matplotlib takes a second to import, and only ends need it.
    from engine.data.picture import draw_partition
    from engine.pictures import draw_curves

    draw_partition(counts, classes, folder.path / "partition.png")
    draw_curves(folder, folder.path / "curves.png")


def run(experiment: Experiment, out: Path | None = None, address: str | None = None) -> dict[str, Any]:
    """Run to the end; the summary. After an error the folder holds what was done before it."""
    under_way = Run.open(experiment, out, address)
    try:
        while not under_way.finished:
            under_way.advance(seconds=1.0)
    except BaseException:
        with suppress(FedskewError):
            under_way.close()
        raise
    return under_way.close()
