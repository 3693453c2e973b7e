"""One run from an experiment to its folder: data, checks, driver, pictures. What the command line calls.

run = Run.open(experiment)            # or Run.open(experiment, out=Path("somewhere"))
while not run.finished:
    progress = run.advance(seconds=0.5)
summary = run.close()
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from engine.base.allocator import give_back_freed_memory
from engine.base.errors import ConfigError, DataError, FedskewError, require
from engine.base.files import writing
from engine.data import Assignment, Dataset
from engine.experiment import Execution, Experiment, no_gpu
from engine.models import check_size
from engine.record import matrices
from engine.record.run_folder import Row, RunFolder
from engine.record.store import StageStore
from engine.run.driver import Driver
from engine.run.sharing import Reuse
from engine.server.class_balance import changes_classes, last_trained, step_classes
from engine.server.evaluation_schedule import measures_own_models
from engine.worker.in_process import InProcessPool
from engine.worker.pool import Pool

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

    def advance(self, seconds: float, until: int | None = None) -> Progress: ...

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


class LogFile(logging.FileHandler):
    """A run goes on without its log where the disk does not take it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # of opening the file
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if self in _handlers:
            _handlers.remove(self)
            log.removeHandler(self)
            log.warning("%s cannot be written; the run goes on without it", self.baseFilename)


def log_to(folder: Path) -> None:
    """Log to ``folder/log.txt`` until :func:`stop_logging`, or the next run of this process."""
    file = LogFile(folder / "log.txt", encoding="utf-8", delay=True)
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
    check_size(experiment.model, dataset.shape, len(dataset.classes))
    for model in experiment.client_models:
        try:
            check_size(model, dataset.shape, len(dataset.classes))
        except ConfigError as error:
            field = error.field.replace("model", "client_models", 1)
            raise ConfigError(field, error.value, error.rule, "for example client_models=[mlp]") from None
    _check_public(experiment, dataset, assignment)
    holders = int((assignment.sizes() > 0).sum())
    own = any(measures_own_models(experiment, stage.algorithm) for stage in experiment.chain)
    if own and not any(map(len, assignment.tests)):
        raise DataError("no client has a test row to measure its own model on: keep more test samples")
    count = experiment.participation.count
    require(
        count is None or count <= holders,
        "participation.count",
        count,
        f"must be at most {holders}, the number of clients that hold data",
        f"set participation.count={holders}",
    )


def _check_public(experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
    """Whether there are the public samples that a stage will ask for."""
    counts = np.bincount(dataset.train.labels[assignment.public], minlength=len(dataset.classes))
    least, there = int(counts.argmin()), int(counts.min())
    if there:
        repair = f"set it to {there} or less, or raise partition.public_per_class"
    elif counts.any():
        repair = "take partition.sets that have every class"
    elif hasattr(experiment.partition, "public_per_class"):
        repair = "raise partition.public_per_class"
    else:
        repair = "set partition.name=class_sets"
    rule = f"asks for more public samples of each class than there are: class {least} has {there}"
    for stage in experiment.chain:
        wanted = stage.algorithm.public_per_class
        require(wanted <= there, f"stages.{stage.name}.algorithm.per_class", wanted, rule, repair)


@dataclass(frozen=True)
class Prepared:
    """A run that nothing speaks against, before its folder is made."""

    experiment: Experiment
    folder: RunFolder
    dataset: Dataset
    assignment: Assignment

    def write(self) -> None:
        """The experiment last: a folder that has one can be gone on with."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.assignment.save(self.folder.path / "partition.parquet")
        self.folder.create(self.experiment)


def prepare(experiment: Experiment, out: Path | None, overwrite: bool, dataset: Dataset | None = None) -> Prepared:
    """Refuse what can be refused, resolve what is ``auto``; ``dataset`` if it is loaded already."""
    experiment = experiment.resolve()
    folder = RunFolder.for_experiment(experiment, out)
    # As saved: a run goes on with the partition it began with. What cannot be read is refused before data are.
    begun = folder.has_experiment() and not overwrite
    saved = Assignment.load(folder.path / "partition.parquet") if begun else None
    dataset = dataset or experiment.data.load()
    fingerprint = dataset.fingerprint
    if saved is None:
        assignment = experiment.partition.assign(dataset.train.labels, len(dataset.classes), dataset.train.owners)
        assignment = experiment.partition.share_tests(replace(assignment, data=fingerprint), dataset)
    else:
        assignment = saved
        root = getattr(experiment.data, "root", None)
        require(
            assignment.data == fingerprint,
            "data.root",
            root,
            "holds other data than this run began with",
            "name another folder with --out, or put the data back",
        )
        assignment.check_rows(len(dataset.train), len(dataset.test))
    check_against_data(experiment, dataset, assignment)
    return Prepared(experiment, folder, dataset, assignment)


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
        out: Path | None = None,
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

    def close(self) -> dict[str, Any]:
        """Write everything; the summary. The folder can be resumed if the run was not finished."""
        summary = self.driver.close()
        counts = self.assignment.class_counts(self.labels, len(self.classes))
        with writing(self.folder.path):
            draw_pictures(self.experiment, self.folder, counts, self.classes)
        return summary

    def _note(self, progress: Progress) -> Progress:
        self.round, self.done, self.finished = progress.round, progress.done, progress.finished
        return progress


def check_place(execution: Execution, address: str | None = None) -> None:
    """Refuse what this process cannot do where it is to compute, and say what it leaves unused."""
    if execution.actors:
        return
    if execution.device == "cuda" and not torch.cuda.is_available():
        raise no_gpu(execution)
    require(
        address is None,
        "--address",
        address,
        "is of a Ray cluster, and execution.actors=0 computes in this process",
        "set execution.actors, for example to 8",
    )
    if os.environ.get("RAY_ADDRESS"):
        log.warning("execution.actors=0 computes in this process, and not on the Ray at RAY_ADDRESS")
    if execution.gpus_per_actor > 0:
        log.warning(
            "execution.actors=0 computes in this process, on a whole GPU: execution.gpus_per_actor is of actors"
        )


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
        """``make_pool``: where blocks run; none: in this process. ``keep_all``: see :class:`~engine.run.sharing.Reuse`.

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


def draw_pictures(experiment: Experiment, folder: RunFolder, counts: Any, classes: tuple[str, ...]) -> None:
    # Here, since matplotlib takes a second to import, and only ends need it.
    from engine.analysis.curves import draw_curves
    from engine.analysis.partition_picture import draw_partition, draw_steps

    if changes_classes(experiment):
        held, stage = counts[counts.sum(axis=1) > 0], last_trained(experiment)
        draw_steps(held, step_classes(stage.algorithm, stage.local, held), classes, folder.path / "sampler.png")
    draw_partition(counts, classes, folder.path / "partition.png")
    draw_curves(folder, folder.path / "curves.png")
    if not experiment.chain[-1].rounds:  # curves over rounds say little of what it does
        from engine.analysis.class_pictures import draw_classes

        draw_classes(folder, counts, classes)
    if (folder.path / matrices.FILE).exists():
        from engine.analysis.class_pictures import draw_matrices

        draw_matrices(folder, classes)


def run(
    experiment: Experiment, out: Path | None = None, address: str | None = None, store: StageStore | None = None
) -> dict[str, Any]:
    """Run to the end; the summary. After an error the folder holds what was done before it."""
    under_way = Run.open(experiment, out, address, store=store)
    try:
        while not under_way.finished:
            under_way.advance(seconds=1.0)
    except BaseException:
        with suppress(FedskewError):  # of two errors the first one counts
            under_way.close()
        raise
    return under_way.close()
