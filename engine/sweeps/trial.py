"""One trial: a run behind Ray Tune's Trainable interface.

A step is some rounds: as many as fit into a second, or, where a scheduler may end or change the trial between two
steps, a fixed number. What a step came to is on disk before Tune hears of it.

A trial that has ended before (``fedskew resume``) computes nothing: its steps report what its tables hold. One that was
under way reports what it has behind it first, where a scheduler compares trials at given rounds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.base.imports import uncollected

with uncollected():  # each trial is a process of its own
    import ray
    import torch
    from ray import tune
    from ray.exceptions import RayError

    from engine.base.errors import Busy, FedskewError, MachineFailed, OtherMachine, ResourceError, StoreError, require
    from engine.base.files import writing
    from engine.base.opening import read_text
    from engine.base.owned import move, remove
    from engine.data import Dataset
    from engine.experiment import Change, Execution, Experiment
    from engine.experiment.parts import Own
    from engine.record.shapes import TRIAL_CHECKPOINT
    from engine.record.stage_hashes import code_of
    from engine.record.store import StageStore
    from engine.run.local_driver import LocalDriver
    from engine.run.preparing import prepare
    from engine.run.recording import weights_sha256
    from engine.sweeps import mending
    from engine.sweeps.away import Away
    from engine.sweeps.definition import Partitions, experiment_of
    from engine.sweeps.folder import SweepFolder
    from engine.sweeps.scores import Scores
    from engine.sweeps.storage import Storage
    from engine.worker.pool import Pool
    from engine.worker.ray.gauges import show
    from engine.worker.ray.pool import RayPool

log = logging.getLogger("fedskew")
REPORT_SECONDS = 1.0  # between two reports, where nothing depends on them
# What may be different at the next try: Tune starts the trial again, from its last checkpoint.
PASSING = (OSError, RayError, Busy, ResourceError, StoreError, torch.OutOfMemoryError)
LOCK_SECONDS = 60.0  # that a trial waits for the process that ran it before, on a node that was lost


@dataclass(frozen=True)
class Job:
    """The common part of all trials of a sweep."""

    folder: Path
    base: Experiment  # a trial's own is made of it, its setting and its seed
    data: Mapping[str, Any]  # data section as JSON -> reference to the data set that each node holds once
    store: StageStore | None
    actors: int  # client actors of a trial; 0: in its own process
    step: int | None  # rounds between two reports; None: about a second
    mutable: tuple[str, ...]  # hyper-parameters that a scheduler changes
    personal: bool = False  # whether trials report the figures of personal models
    by_class: tuple[str, ...] = ()  # figures of single classes that trials report
    damaged: frozenset[str] = frozenset()  # trials that have ended, and compute again what has been lost of them
    codes: Mapping[str, str] = field(default_factory=dict)  # of planned trials, and under "" of the base
    partitions: Partitions = "anew"
    storage: Storage | None = None  # for nodes that do not see ``folder``; None: there is no other node
    own: Own | None = None  # parts of the user's own that settings name; the base's come with it

    @property
    def mark(self) -> Path:
        """The file by which a node knows that it sees the sweep's folder."""
        return self.folder / ".lock"

    @property
    def tunes_place(self) -> dict[str, Any]:
        """What Tune's ``RunConfig`` is told of where the sweep is."""
        if self.storage is None:
            return {"storage_path": str(self.folder)}
        return {"storage_path": self.storage.path, "storage_filesystem": self.storage.files}

    def folder_for(self, trial: str, disk: str) -> SweepFolder:
        """Return the sweep's folder, or one of the trial in the folder ``disk`` of a node that does not see that."""
        if self.storage is None or self.storage.is_seen(self.mark):
            return SweepFolder(self.folder)
        for older in Path(disk).glob(f"away-{trial}-*-*"):
            if not _is_alive(int(older.name.split("-")[2])):  # Tune may have begun the trial in another process, too
                shutil.rmtree(older, ignore_errors=True)
        prefix = f"away-{trial}-{os.getpid()}-"
        away = Away(Path(tempfile.mkdtemp(prefix=prefix, dir=disk)), self.storage, trial)
        away.fetch()
        return away

    def store_for(self, disk: str) -> StageStore | None:
        """Return the sweep's store, or that of a node that sees no other, in the folder of Ray's session."""
        store = self.store
        if store is None or self.storage is None or self.storage.is_seen(store.mark):
            return store
        path = Path(disk).parents[3] / "fedskew-store"  # above artifacts/TIME/tune/working_dirs/TRIAL
        return StageStore(path, store.limit_bytes, store.heartbeat, store.patience)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's by now
        pass
    return True


def data_key(experiment: Experiment) -> str:
    return json.dumps(experiment.to_mapping()["data"], sort_keys=True)


class Trial(tune.Trainable):
    """A run; its folder is ``trials/<name>``, its name its number in the sweep."""

    def setup(self, config: dict[str, Any], job: Job | None = None) -> None:
        assert job is not None  # tune.with_parameters gives it
        self._job = job
        self._datasets: dict[str, Dataset] = {}
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._end()
        if isinstance(self._sweep, Away):
            shutil.rmtree(self._sweep.path, ignore_errors=True)

    # --- a trial's life -----------------------------------------------------------------------------------

    def _begin(self, config: dict[str, Any]) -> None:
        """Begin a trial and open nothing yet: a checkpoint to go on from may follow."""
        config["trial"] = self.trial_name  # in a copy's, PBT leaves the name of the trial that it has copied
        self._config = dict(config)
        self._sweep = self._job.folder_for(self.trial_name, str(self.logdir))
        self._record = self._sweep.begun(self.trial_name)
        self._local: LocalDriver | None = None
        self._scores = Scores(self._job.personal, self._job.by_class)
        self._replay: list[dict[str, Any]] | None = None
        self._source: Path | None = None  # a checkpoint of another trial, to go on from

    def _end(self) -> None:
        """Let go of everything; what is written stays."""
        if self._local is not None:
            with suppress(FedskewError):
                self._local.close()
        self._local = None

    def step(self) -> dict[str, Any]:
        try:
            if self._record.ended and self._source is None:
                return self._replayed()
            if self._local is None:
                self._open()
                self._replay = self._earlier_reports()
            return self._replay.pop(0) if self._replay else self._advance()
        except PASSING:
            raise
        except Exception as error:  # the trial's own: the sweep goes on, and trying again would end the same way
            return self._failed(error)

    def _open(self) -> None:
        source, self._source = self._source, None
        planned = self._experiment()
        check_code(self._job, self.trial_name, planned)
        folder = self._sweep.run_folder(self.trial_name)
        with writing(self._sweep.path):
            if source is not None:
                self._open_copy(source)
            else:
                mending.make_room(folder, LOCK_SECONDS)
        if self._local is None and folder.has_experiment():
            try:
                self._local = self._driver(folder.experiment())
            except OtherMachine as error:
                log.warning("trial %s begins anew: %s", self.trial_name, error)
        if self._local is None:
            # What is left of a copy that did not come to its end, or of a run that is damaged.
            remove(self._aside, TRIAL_CHECKPOINT)
            with folder.locked(LOCK_SECONDS):
                mending.clear(folder)
            self._local = self._driver(planned)
        assert self._local is not None
        # What the folder holds of earlier processes of this trial.
        self._scores.read(folder, self._local.driver.experiment, self._local.driver.round)

    def _experiment(self) -> Experiment:
        record = self._record
        planned = experiment_of(self._job.base, record.setting, record.seed, self._job.partitions)
        planned = mending.scheduled(planned, record.schedule)
        return placed(planned).resolve()  # the executor, that is: it depends on what the trial sets

    def _driver(self, experiment: Experiment) -> LocalDriver:
        """Open the run in this trial's folder."""
        execution = in_trial(experiment.execution, self._job.actors)
        experiment = experiment.model_copy(update={"execution": execution})
        key = data_key(experiment)
        reference = self._job.data[key]
        if key not in self._datasets:  # one at a time: arrays of shared memory stay as long as they are used
            self._datasets = {key: ray.get(reference)}
        prepared = prepare(experiment, self._sweep.run_folder(self.trial_name).path, False, self._datasets[key])

        def make_pool() -> Pool:
            return RayPool(prepared.experiment, reference, prepared.assignment)

        with prepared.folder.prepared(overwrite=False):
            with writing(self._sweep.path):
                prepared.write()
            return LocalDriver(
                prepared,
                self._job.store_for(str(self.logdir)),
                make_pool if self._job.actors else None,
                keep_all=self._job.step is not None,
                patience=LOCK_SECONDS,
            )

    def _advance(self) -> dict[str, Any]:
        assert self._local is not None
        driver, step = self._local.driver, self._job.step
        if step is None:
            progress = self._local.advance(REPORT_SECONDS)
        else:
            target = (driver.round // step + 1) * step
            progress = self._local.advance(math.inf, until=target)
            while driver.is_before(target):  # another run computes what is missing
                self._scores.keep(progress.rows)
                progress = self._local.advance(math.inf, until=target)
        self._scores.keep(progress.rows)
        show(driver.folder.path, progress.rows)
        if driver.finished:
            summary = self._local.close()
            self._local = None
            self._note(summary, "finished")
        elif step is not None:  # the trial may end here without being told
            self._note(driver.summary(), "running")
            driver.let_go()
        elif isinstance(self._sweep, Away) and self._sweep.has_new_checkpoint():
            self._sweep.send()
        self._scores.read_personal(driver.folder)
        return self._report(progress.round, driver.finished)

    def _note(self, summary: Mapping[str, Any], status: Any) -> None:
        computed = summary["rounds_computed"] + self._record.replaced
        self._record = replace(
            self._record,
            status=status,
            rounds=summary["rounds"],
            rounds_asked=summary["rounds_asked"],
            rounds_computed=computed,
            schedule=self._record.schedule or [_entry(1, self._record.setting)],
        )
        self._sweep.write(self._record)

    def _failed(self, error: Exception) -> dict[str, Any]:
        text = str(error) if isinstance(error, FedskewError) else f"{type(error).__name__}: {error}"
        reason = " ".join(text.split())
        log.error("trial %s failed: %s", self.trial_name, reason, exc_info=not isinstance(error, FedskewError))
        summary: dict[str, Any] = {}
        if self._local is not None:
            with suppress(FedskewError):
                summary = self._local.close()
            self._local = None
        counts = {name: getattr(self._record, name) for name in ("rounds", "rounds_asked")}
        counts["rounds_computed"] = self._record.rounds_computed - self._record.replaced
        self._record = replace(self._record, reason=reason, died=isinstance(error, MachineFailed))
        self._note({**counts, **summary}, "failed")
        return self._report(self._record.rounds, done=True)

    # --- reports ------------------------------------------------------------------------------------------

    def _report(self, round: int, done: bool) -> dict[str, Any]:
        """A dozen figures: tables are in the trial's folder."""
        figures = self._scores.figures(round)
        failed = done and self._record.status == "failed"
        return {
            "round": round,
            **(dict.fromkeys(figures, math.nan) if failed else figures),  # a failed trial is nobody's best
            "failed": failed,
            "reason": self._record.reason or "",
            "rounds_asked": self._record.rounds_asked,
            "rounds_computed": self._record.rounds_computed,
            "done": done,
            "ended": done,  # of itself: Tune sets the other one for trials that it stops, too
        }

    def _replayed(self) -> dict[str, Any]:
        """The next report of a trial that ended in an earlier process of the sweep."""
        if self._replay is None:
            if self.trial_name in self._job.damaged and self._record.status != "failed":
                self._open()
                assert self._local is not None
                mending.ended_again(self._local, self._record.rounds)
                self._local = None
                self._sweep.write(self._record)  # and with it, from a node that does not see the sweep's folder, all
            folder, last = self._sweep.run_folder(self.trial_name), self._record.rounds
            if folder.has_experiment():
                self._scores.read(folder, folder.experiment(), last)
            self._replay = [*self._reports_before(last), self._report(last, done=True)]
        return self._replay.pop(0)

    def _earlier_reports(self) -> list[dict[str, Any]]:
        """The reports of a trial that goes on in the middle: a scheduler without them would hold it against others by
        the figures of a later round, and decide otherwise than in a sweep that nobody interrupted.

        None of a population: there a report asks for a checkpoint, which is of the round that the trial has reached.
        """
        if self._local is None:
            return []
        driver = self._local.driver
        last = driver.round if driver.finished else driver.experiment.spans[-1].stop - 1
        reports = self._reports_before(min(driver.round + 1, last))
        if reports:
            self._note(driver.summary(), "running")  # should one of them end it, it ends where it stands
        return reports

    def _reports_before(self, last: int) -> list[dict[str, Any]]:
        step = self._job.step
        if step is None or self._job.mutable:  # a population would change a trial that ended long ago, as it reports
            return []
        return [self._report(round, done=False) for round in range(step, last, step)]

    # --- checkpoints, for schedulers that pause and copy trials -----------------------------------------------

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        assert self._local is not None  # a scheduler asks for it after a step
        driver = self._local.driver
        folder = Path(checkpoint_dir)
        about = {
            "trial": self.trial_name,
            "experiment": driver.experiment.to_mapping(),
            "round": driver.round,
            "schedule": self._record.schedule,
            "weights_sha256": weights_sha256(*driver.weights),
        }
        with writing(self._sweep.path):
            driver.write_snapshots(folder / "stages")
            (folder / "about.json").write_text(json.dumps(about))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self._end()
        # Tune may delete its folder before the next step.
        self._source = self._sweep.run_folder(self.trial_name).path / "fetched" / "checkpoint"
        remove(self._source, TRIAL_CHECKPOINT)
        with writing(self._sweep.path):
            shutil.copytree(checkpoint, self._source, dirs_exist_ok=True)

    def _open_copy(self, source: Path) -> None:
        """Go on from a checkpoint: this trial's own, or another one's with other hyper-parameters from here on."""
        about = json.loads(read_text(source / "about.json"))
        origin, round = Experiment.from_mapping(about["experiment"]), about["round"]
        own = {name: self._config[name] for name in self._job.mutable}
        before = origin.at(round + 1)  # it may have been changed already for a round that it has not begun
        changed = {origin.key_of(name): value for name, value in own.items() if before.value_of(name) != value}
        folder = self._sweep.run_folder(self.trial_name)
        same = about["trial"] == self.trial_name and not changed and folder.has_experiment()
        if same and folder.experiment().digest == origin.digest:
            self._local = self._driver(folder.experiment())
            remove(source, TRIAL_CHECKPOINT)
            return
        changes = origin.schedule
        if changed:
            earlier = [change for change in changes if change.round <= round]
            unbegun = [change.set for change in changes if change.round == round + 1]
            changes = (*earlier, Change(round=round + 1, set={**(unbegun[0] if unbegun else {}), **changed}))
        experiment = origin.model_copy(update={"schedule": changes}).replace({})
        aside = self._aside
        remove(aside, TRIAL_CHECKPOINT)
        move(source, aside, TRIAL_CHECKPOINT)
        with folder.locked(LOCK_SECONDS):
            folder.clear()
        # The record before the experiment: one that is killed from here on computes the schedule's rounds itself.
        entry = _entry(round + 1, own, parent=about["weights_sha256"], of=about["trial"])
        self._record = replace(
            self._record,
            schedule=[*(old for old in about["schedule"] if old["first_round"] <= round), entry],
            rounds=round,
            replaced=self._record.rounds_computed,
        )
        self._sweep.write(self._record)
        self._local = self._driver(experiment)
        self._local.driver.adopt_snapshots(aside / "stages")
        remove(aside, TRIAL_CHECKPOINT)

    @property
    def _aside(self) -> Path:
        """The folder of a checkpoint while the trial's folder is made anew."""
        return self._sweep.run_folder(self.trial_name).path.with_name(f".{self.trial_name}.checkpoint")


def check_code(job: Job, trial: str, planned: Experiment) -> None:
    """Refuse to begin in a process that was started after the code had changed under the sweep."""
    name, compared = (trial, planned) if trial in job.codes else ("", job.base)
    before, now = job.codes.get(name), code_of(compared)
    if before is not None and before != now and not job.base.execution.mixed_hardware:
        raise MachineFailed(
            f"the code has changed since the sweep was started ({before}, now {now}), so this trial could not be "
            "compared with the others; go back to that code and resume with --retry-failed, or sweep anew"
        )


def placed(experiment: Experiment) -> Experiment:
    """Return the experiment with the device of its trial: a GPU where it has a share of one."""
    if experiment.execution.device == "auto":
        device = "cuda" if experiment.execution.gpus_per_actor else "cpu"
        experiment = experiment.replace({"execution.device": device})
    require(
        experiment.execution.device == "cpu" or experiment.execution.gpus_per_actor > 0,
        "execution.device",
        "cuda",
        "needs a share of a GPU for each trial",
        "set execution.gpus_per_actor, for example to 0.25",
    )
    return experiment


def in_trial(execution: Execution, actors: int) -> Execution:
    """Return ``execution`` for a trial that was given room for so many actors, or for one worker in its own process."""
    cpus = max(execution.cpus_per_actor, execution.threads) if actors else execution.cpus_per_actor
    return execution.model_copy(update={"actors": actors, "cpus_per_actor": float(cpus), "workers": 1})


def _entry(first_round: int, values: Mapping[str, Any], parent: str | None = None, of: str | None = None) -> Any:
    """Make an entry of a trial's schedule, see :class:`~engine.sweeps.folder.TrialRecord`."""
    return {"first_round": first_round, "set": dict(values), "parent": parent, "from": of}
