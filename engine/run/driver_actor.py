"""The driver as a Ray actor: it owns the client actors, the weights and the clients' states."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engine.worker.ray.errors import cause_of, last_cause  # first: its package sets what Ray reads at import
from engine.worker.ray.gauges import show
from engine.worker.ray.pool import RayPool

import ray  # isort: skip
import ray.exceptions  # isort: skip
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # isort: skip

from engine.base.errors import ProcessDied, ResourceError, resume_command
from engine.data import Assignment
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run.driver import Driver
from engine.run.local_driver import Progress, reuse_for
from engine.run.log import Messages, log_to
from engine.run.preparing import Prepared

log = logging.getLogger("fedskew")


GONE_WITHIN = 20.0  # seconds: the driver of a run that was killed goes after the process that started it


class DriverActor:
    """The actor around a :class:`~engine.run.driver.Driver`."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._messages = Messages()
        log.addHandler(self._messages)
        log_to(folder)

    def ready(self) -> None:
        """Answers once the actor is there."""

    def open(
        self, experiment: Experiment, dataset: list[Any], assignment: Assignment, store: StageStore | None
    ) -> Progress:
        # In a list, the reference arrives as a reference: the client actors of a node share what it points to.
        self._lock = ExitStack()
        self._lock.enter_context(self._folder.locked(GONE_WITHIN))
        log.info("driver: process %d", os.getpid())
        self._pool = RayPool(experiment, dataset[0], assignment)
        reuse = reuse_for(self._folder, store)
        self._driver = Driver(experiment, self._folder, ray.get(dataset[0]), assignment, self._pool, reuse)
        return self._progress([])

    def advance(self, seconds: float, until: int | None = None) -> Progress:
        rows = self._driver.advance(seconds, until)
        show(self._folder.path, rows)
        return self._progress(rows)

    def close(self) -> dict[str, Any]:
        with self._lock:
            return self._driver.close()

    def placement(self) -> list[dict[str, Any]]:
        return self._pool.placement

    def messages(self) -> list[str]:
        """Warnings that no progress has carried yet."""
        return self._messages.drain()

    def _progress(self, rows: list[dict[str, Any]]) -> Progress:
        return Progress(
            rows, self._driver.round, self._driver.rounds_done, self._driver.finished, tuple(self._messages.drain())
        )


class RemoteDriver:
    """The same methods, called across processes; errors come back as they were raised."""

    def __init__(self, prepared: Prepared, dataset: Any, store: StageStore | None = None) -> None:
        """``dataset``: a reference to that of ``prepared``."""
        self._folder = folder = prepared.folder.path
        experiment = prepared.experiment
        # On this node, where the folder is; with no CPU of its own, since it adds and waits beside the client actors.
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor_class: Any = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=here)(DriverActor)
        self._actor = actor_class.remote(folder.resolve())
        self._reference = dataset  # owned here: the object lives as long as this does
        try:
            timeout = experiment.execution.start_timeout
            if not ray.wait([self._actor.ready.remote()], timeout=timeout)[0]:
                raise ResourceError(f"the driver actor could not start within {timeout:g} s; is this Ray node alive?")
            self.opened = self.end(self._actor.open.remote(experiment, [dataset], prepared.assignment, store))
        except BaseException:
            ray.kill(self._actor)
            raise

    def advance(self, seconds: float, until: int | None = None) -> Progress:
        return self.end(self.begin(seconds, until))

    def begin(self, seconds: float, until: int | None = None) -> Any:
        """Start rounds without waiting for them; :meth:`end` gives what they came to."""
        return self._actor.advance.remote(seconds, until)

    def end(self, begun: Any) -> Progress:
        progress: Progress = self._get(begun)
        for text in progress.messages:
            log.warning(text)
        return progress

    def close(self) -> dict[str, Any]:
        try:
            return self._get(self._actor.close.remote())
        finally:
            ray.kill(self._actor)

    def placement(self) -> list[dict[str, Any]]:
        """For each client actor its node, its process and its GPU, as it was started."""
        return self._get(self._actor.placement.remote())

    def _get(self, ref: Any) -> Any:
        """Waits as long as the driver does: each wait of its own has a deadline."""
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            for text in ray.get(self._actor.messages.remote()):
                log.warning(text)
            raise cause_of(error) from None
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            again = resume_command(self._folder)
            raise ProcessDied(f"the driver actor died ({last_cause(error)}); {again}") from None
