"""One trial: a run behind Ray Tune's Trainable interface.

A step is some rounds: as many as fit into a second, or, where a scheduler may end or change the trial between two
steps, a fixed number. What a step came to is on disk before Tune hears of it.

A trial that has ended before (``fedskew resume``) computes nothing: its steps report what its tables hold.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.exceptions import RayError

from engine.analysis.class_figures import class_figure
from engine.base.errors import FedskewError, ResourceError, RunFolderError
from engine.data import Dataset
from engine.experiment import Change, Execution, Experiment
from engine.record.last_rounds import comparable, of_last_rounds
from engine.record.personal import by_round, figures_of_rounds, of_stages
from engine.record.run_folder import SCHEMAS, Row, RunFolder
from engine.record.store import StageStore
from engine.run.local_driver import LocalDriver
from engine.run.preparing import Prepared, prepare
from engine.run.recording import weights_sha256
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.worker.pool import Pool
from engine.worker.ray.pool import RayPool

log = logging.getLogger("fedskew")
REPORT_SECONDS = 1.0  # between two reports, where nothing depends on them
# What may be different at the next try: Tune starts the trial again, from its last checkpoint.
PASSING = (OSError, RayError, ResourceError, RunFolderError, torch.OutOfMemoryError)
NO_PERSONAL = by_round(SCHEMAS["personal"].empty_table().to_pandas())
LOCK_SECONDS = 60.0  # that a trial waits for the process that ran it before, on a node that was lost


@dataclass(frozen=True)
class Job:
    """What all trials of a sweep have in common."""

    folder: Path
    experiments: Mapping[str, Experiment]  # of planned trials; the others are made of ``base`` and their setting
    base: Experiment
    data: Mapping[str, Any]  # data section as JSON -> reference to the data set that each node holds once
    store: StageStore | None
    actors: int  # client actors of a trial; 0: in its own process
    step: int | None  # rounds between two reports; None: about a second
    mutable: tuple[str, ...]  # hyper-parameters that a scheduler changes
    personal: bool = False  # whether trials report the figures of personal models
    by_class: tuple[str, ...] = ()  # figures of single classes that trials report


def data_key(experiment: Experiment) -> str:
    return json.dumps(experiment.to_mapping()["data"], sort_keys=True)


class Trial(tune.Trainable):
    """A run; its folder is ``trials/<name>``, its name its number in the sweep."""

    def setup(self, config: dict[str, Any], job: Job | None = None) -> None:
        assert job is not None  # tune.with_parameters gives it
        self._job = job
        self._sweep = SweepFolder(job.folder)
        self._datasets: dict[str, Dataset] = {}
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._end()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._end()

    # --- a trial's life -----------------------------------------------------------------------------------

    def _begin(self, config: dict[str, Any]) -> None:
        """Nothing is opened yet: a checkpoint to go on from may follow."""
        self._config = dict(config)
        self._record = self._known_record()
        self._local: LocalDriver | None = None
        self._scores: list[Row] = []  # each evaluation of the lineage
        self._personal = NO_PERSONAL  # of the lineage, by round, as far as on disk
        self._lineage: set[str] = set()
        self._without_rounds: set[str] = set()  # of the lineage's stages
        self._replay: list[dict[str, Any]] | None = None
        self._source: Path | None = None  # a checkpoint of another trial, to go on from

    def _known_record(self) -> TrialRecord:
        record = self._sweep.record(self.trial_name)
        if record is None:  # written before the trial was handed to Tune
            raise RunFolderError(f"{self._job.folder} has no record of trial {self.trial_name}")
        return record

    def _end(self) -> None:
        """Let go of everything; what is written stays."""
        if self._local is not None:
            with suppress(FedskewError):
                self._local.close()
        self._local = None

    def step(self) -> dict[str, Any]:
        if self._record.ended and self._source is None:
            return self._replayed()
        try:
            if self._local is None:
                self._open()
            return self._advance()
        except PASSING:
            raise
        except Exception as error:  # the trial's own: the sweep goes on, and trying again would end the same way
            return self._failed(error)

    def _open(self) -> None:
        source, self._source = self._source, None
        folder = self._sweep.run_folder(self.trial_name)
        if source is not None:
            self._open_copy(source)
        elif folder.has_experiment():
            self._local = self._driver(folder.experiment())
        else:
            # What is left of a copy that did not come to its end.
            shutil.rmtree(self._aside, ignore_errors=True)
            folder.clear()
            self._record = replace(self._record, schedule=[])
            self._local = self._driver(self._experiment())
        assert self._local is not None
        # What the folder holds of earlier processes of this trial.
        self._read_scores(folder, self._local.driver.experiment, self._local.driver.round)

    def _read_scores(self, folder: RunFolder, experiment: Experiment, last: int) -> None:
        self._lineage = experiment.lineage
        self._without_rounds = experiment.without_rounds
        self._scores = []
        self._keep_scores(row for row in folder.frame("evaluations").to_dict("records") if row["round"] <= last)
        self._read_personal(folder)

    def _read_personal(self, folder: RunFolder) -> None:
        if self._job.personal:
            self._personal = by_round(of_stages(folder.frame("personal"), self._lineage))

    def _keep_scores(self, rows: Iterable[Row]) -> None:
        self._scores += [row for row in rows if row["accuracy"] is not None and row["stage"] in self._lineage]

    def _experiment(self) -> Experiment:
        planned = self._job.experiments.get(self.trial_name)
        if planned is None:
            planned = self._job.base.replace({**self._record.setting, "seed": self._record.seed})
        return planned.resolve()  # the executor, that is: it depends on what the trial sets

    def _driver(self, experiment: Experiment) -> LocalDriver:
        """Open the run in this trial's folder."""
        execution = in_trial(experiment.execution, self._job.actors)
        experiment = experiment.model_copy(update={"execution": execution})
        key = data_key(experiment)
        reference = self._job.data[key]
        if key not in self._datasets:  # one at a time: arrays of shared memory stay as long as they are used
            self._datasets = {key: ray.get(reference)}
        prepared = prepare(experiment, self._sweep.run_folder(self.trial_name).path, False, self._datasets[key])
        with prepared.folder.prepared(overwrite=False):
            prepared.write()
            return LocalDriver(
                prepared,
                self._job.store,
                self._pool_maker(prepared, reference) if self._job.actors else None,
                keep_all=self._job.step is not None,
                patience=LOCK_SECONDS,
            )

    def _pool_maker(self, prepared: Prepared, reference: Any) -> Callable[[], Pool]:
        return lambda: RayPool(prepared.experiment, reference, prepared.assignment)

    def _advance(self) -> dict[str, Any]:
        assert self._local is not None
        driver, step = self._local.driver, self._job.step
        if step is None:
            progress = self._local.advance(REPORT_SECONDS)
        else:
            target = (driver.round // step + 1) * step
            progress = self._local.advance(math.inf, until=target)
            while not driver.finished and driver.round < target:  # another run computes what is missing
                self._keep_scores(progress.rows)
                progress = self._local.advance(math.inf, until=target)
        self._keep_scores(progress.rows)
        if driver.finished:
            summary = self._local.close()
            self._local = None
            self._note(summary, "finished")
        elif step is not None:  # the trial may end here without being told
            self._note(driver.summary(), "running")
            driver.let_go()
        self._read_personal(driver.folder)
        return self._report(progress.round, driver.finished)

    def _note(self, summary: Mapping[str, Any], status: Any) -> None:
        computed = summary["rounds_computed"] + self._record.replaced
        self._record = replace(
            self._record,
            status=status,
            rounds=summary["rounds"],
            rounds_asked=summary["rounds_asked"],
            rounds_computed=computed,
            schedule=self._record.schedule or [self._entry(1, self._record.setting)],
        )
        self._sweep.write(self._record)

    @staticmethod
    def _entry(first_round: int, values: Mapping[str, Any], parent: str | None = None, of: str | None = None) -> Any:
        return {"first_round": first_round, "set": dict(values), "parent": parent, "from": of}

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
        self._record = replace(self._record, reason=reason)
        self._note({**counts, **summary}, "failed")
        return self._report(self._record.rounds, done=True)

    # --- reports ------------------------------------------------------------------------------------------

    def _report(self, round: int, done: bool) -> dict[str, Any]:
        """A dozen figures: tables are in the trial's folder."""
        known = comparable([score for score in self._scores if score["round"] <= round])
        last10 = of_last_rounds(known, round, self._without_rounds)
        nothing = {"accuracy": math.nan, "loss": math.nan, "class_accuracy": None}
        latest: Mapping[str, Any] = known[-1] if known else nothing
        figures = {
            "accuracy": latest["accuracy"],
            "loss": math.nan if latest["loss"] is None else latest["loss"],
            "best_accuracy": max((score["accuracy"] for score in known), default=math.nan),
            "last10_accuracy": sum(last10) / len(last10) if last10 else math.nan,
        }
        figures |= {name: class_figure(name, latest["class_accuracy"]) for name in self._job.by_class}
        if self._job.personal:
            reached = self._personal.loc[self._personal["round"] <= round]
            personal = figures_of_rounds(reached, round, self._without_rounds)
            figures |= {name: math.nan if value is None else value for name, value in personal.items()}
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
            self._replay = self._old_reports()
        return self._replay.pop(0)

    def _old_reports(self) -> list[dict[str, Any]]:
        folder, last = self._sweep.run_folder(self.trial_name), self._record.rounds
        if folder.has_experiment():
            self._read_scores(folder, folder.experiment(), last)
        step = self._job.step
        rounds = [] if step is None else list(range(step, last, step))
        return [self._report(round, done=False) for round in rounds] + [self._report(last, done=True)]

    # --- checkpoints, for schedulers that pause and copy trials -----------------------------------------------

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        assert self._local is not None  # a scheduler asks for it after a step
        driver = self._local.driver
        folder = Path(checkpoint_dir)
        driver.write_snapshots(folder / "stages")
        about = {
            "trial": self.trial_name,
            "experiment": driver.experiment.to_mapping(),
            "round": driver.round,
            "schedule": self._record.schedule,
            "weights_sha256": weights_sha256(*driver.weights),
        }
        (folder / "about.json").write_text(json.dumps(about))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self._end()
        # Tune may delete its folder before the next step.
        self._source = self._sweep.run_folder(self.trial_name).path / "fetched" / "checkpoint"
        shutil.rmtree(self._source, ignore_errors=True)
        shutil.copytree(checkpoint, self._source)

    def _open_copy(self, source: Path) -> None:
        """Go on from a checkpoint: this trial's own, or another one's with other hyper-parameters from here on."""
        about = json.loads((source / "about.json").read_text())
        origin, round = Experiment.from_mapping(about["experiment"]), about["round"]
        own = {name: self._config[name] for name in self._job.mutable}
        before = origin.at(round + 1)  # it may have been changed already for a round that it has not begun
        changed = {origin.key_of(name): value for name, value in own.items() if before.value_of(name) != value}
        folder = self._sweep.run_folder(self.trial_name)
        same = about["trial"] == self.trial_name and not changed and folder.has_experiment()
        if same and folder.experiment().digest == origin.digest:
            self._local = self._driver(folder.experiment())
            shutil.rmtree(source)
            return
        changes = origin.schedule
        if changed:
            earlier = [change for change in changes if change.round <= round]
            unbegun = [change.set for change in changes if change.round == round + 1]
            changes = (*earlier, Change(round=round + 1, set={**(unbegun[0] if unbegun else {}), **changed}))
        experiment = origin.model_copy(update={"schedule": changes}).replace({})
        aside = self._aside
        shutil.rmtree(aside, ignore_errors=True)
        source.rename(aside)
        folder.clear()
        # The record before the experiment: one that is killed from here on computes the schedule's rounds itself.
        entry = self._entry(round + 1, own, parent=about["weights_sha256"], of=about["trial"])
        self._record = replace(
            self._record,
            schedule=[*(old for old in about["schedule"] if old["first_round"] <= round), entry],
            replaced=self._record.rounds_computed,
        )
        self._sweep.write(self._record)
        self._local = self._driver(experiment)
        self._local.driver.adopt_snapshots(aside / "stages")
        shutil.rmtree(aside)
        self._scores.clear()

    @property
    def _aside(self) -> Path:
        """Where a checkpoint lies while the trial's folder is made anew."""
        return self._sweep.run_folder(self.trial_name).path.with_name(f".{self.trial_name}.checkpoint")


def in_trial(execution: Execution, actors: int) -> Execution:
    """As a trial has it that was given room for so many actors, or for one worker in its own process."""
    cpus = max(execution.cpus_per_actor, execution.threads) if actors else execution.cpus_per_actor
    return execution.model_copy(update={"actors": actors, "cpus_per_actor": float(cpus), "workers": 1})
