"""A sweep from its definition to its last trial, and again after a crash."""

from __future__ import annotations

import errno
import hashlib
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import ray

from engine.base import own_modules
from engine.base.errors import RunError, RunFolderError, StoreError, WriteError, require, resume_command
from engine.base.files import locked, not_written, writing
from engine.base.owned import remove
from engine.experiment import Experiment
from engine.experiment.choices import PARTS
from engine.experiment.parts import all_choices, own_parts
from engine.record.numerics import UNKNOWN, mixed
from engine.record.stage_hashes import CODE, code_of
from engine.record.store import StageStore
from engine.record.sweep_files import PlannedTrial, numbered, tuned_by
from engine.sweeps.away import Kept
from engine.sweeps.definition import Asha, Optuna, Pbt, Sweep
from engine.sweeps.folder import TUNE, SweepFolder, TrialRecord
from engine.sweeps.mending import Left, left_behind, with_settings
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.observers import Observers, SweepObserver, SweepStart, TrialEvents
from engine.sweeps.options import How
from engine.sweeps.planning import Mode, Planned, at_once, check_fit, choose_mode, plan
from engine.sweeps.space import options
from engine.sweeps.storage import Storage
from engine.sweeps.trial import Job, data_key, placed
from engine.sweeps.tuner import DEATHS, make_tuner
from engine.worker.addresses import used
from engine.worker.ray import cluster, node_files
from engine.worker.ray.errors import last_cause

log = logging.getLogger("fedskew")
Complete = Callable[[Mapping[str, Any]], dict[str, Any]]  # a setting -> with the values that tuning chose
DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@dataclass(frozen=True)
class SweepResult:
    """The end of a sweep: what became of its trials."""

    folder: Path
    trials: int  # that were to run
    statuses: dict[str, int]
    rounds_asked: int
    rounds_computed: int
    interrupted: bool
    places: int = 1  # trials at a time

    @property
    def all_failed(self) -> bool:
        return 0 < self.trials == self.statuses.get("failed", 0)

    @property
    def measurable(self) -> bool:
        """Whether its trials ran to their end, so that what its claims rest on can be measured."""
        return not (self.interrupted or self.all_failed)


def run_sweep(
    named: NamedSweep,
    out: Path | None,
    how: How,
    address: str | None = None,
    observers: Sequence[SweepObserver] | Observers = (),
    retry_failed: bool = False,
    complete: Complete | None = None,
) -> SweepResult:
    """Run every trial that has not ended yet. After a crash or Ctrl-C, call it again.

    observers: told of trials as they begin, report and end. retry_failed: trials that have failed run again, too.
    complete: gives each setting what was chosen for its side; a sweep with tuned sides cannot be run without, see
    ``fedskew/lab/sweeping/tuning.py``.

    Raises :class:`FedskewError` for what can be refused before anything starts: an invalid cell, missing data, a trial
    that fits no node.
    """
    own_modules.check_not_importing("a sweep")
    folder = _brought(named, out, how)
    named = folder.with_added(named)
    sweep = named.sweep
    pbt = isinstance(sweep.scheduler, Pbt)
    require(
        not (pbt and how.concurrent), "--concurrent", how.concurrent, "is not for PBT", "its trials take turns anyway"
    )
    rule = "has sides that are tuned first"
    require(complete is not None or not sweep.tuned, "sweep", named.name, rule, "run it by fedskew.sweep")
    store = _store(folder, how)
    planned = [] if isinstance(sweep.search, Optuna) else plan(sweep, complete or dict)
    trials = _trials(sweep, planned)
    code, codes = _code(folder, sweep, planned)
    told = Observers(observers)
    told.tell("on_prepare")
    try:
        mode, places, references = _place(sweep, planned, len(trials), how, address)
        with writing(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        with locked(folder.path / ".lock"):
            before = folder.plan()
            left = left_behind(folder, trials, before) if folder.is_sweep() else Left()
            if retry_failed:
                left = replace(left, records=tuple(_again(folder, record) for record in left.records))
            records = left.records
            trials = with_settings(trials, before, records)
            folder.create(named, how.to_mapping(), code)
            folder.write_plan(trials)
            asked = trials
            if named.most is not None:  # nothing is to be told again of seeds that were looked at
                planned, asked = _unfinished(planned, trials, records, left)
            start = SweepStart(named, folder, len(trials), left.whole, places, mode, len(asked))
            told.tell("on_start", start)
            if left.whole < len(trials):
                job = _job(folder, sweep, planned, references, mode, store, left, codes)
                job = replace(job, storage=_storage(job, folder, address, told))
                _run(start, job, planned, asked, records, how, told)
            return _result(folder, trials, places)
    finally:
        told.tell("on_end")


def _place(
    sweep: Sweep, planned: Sequence[Planned], trials: int, how: How, address: str | None
) -> tuple[Mode, int, dict[str, ray.ObjectRef]]:
    """Connect to Ray and load the data; return where trials run, how many at a time, and the data sets in its store."""
    sections = _data_sections(sweep, planned)
    execution = sweep.base.execution
    cluster.connect(execution, address, crowd=False)
    cluster.check_resources(execution)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    mode = choose_mode(trials, execution, cluster.gpu_share(execution.gpus_per_actor), nodes, how.mode)
    check_fit(mode, nodes)
    places = at_once(mode, nodes, how.concurrent)
    return mode, places, {key: _shared(experiment) for key, experiment in sections.items()}


def _run(
    start: SweepStart,
    job: Job,
    planned: Sequence[Planned],
    asked: Sequence[PlannedTrial],
    records: Sequence[TrialRecord],
    how: How,
    told: Observers,
) -> None:
    """Run the trials that have not ended, and record the end of those that died."""
    folder, sweep = start.folder, start.named.sweep
    stopper = {Asha: "ASHA", Pbt: "PBT"}.get(type(sweep.scheduler), "the stopping rule")
    events = TrialEvents(start, stopper, told)
    with _writing_in_tune(folder.path):
        remove(folder.tune, TUNE)  # of an earlier process: its trials report again
        if isinstance(folder, Kept):
            folder.storage.forget(folder.tune.name)
        tuner = make_tuner(sweep, job, start.mode, planned, asked, records, events, how, start.places)
        for result in tuner.fit():
            if result.error is not None:
                events.say(_end(folder, Path(result.path).name, result.error))
    if lost := sorted(trial for trial in events.ended if folder.record(trial) is None):
        gone = f"the folders of {len(lost)} trials have gone while it ran, the first is trials/{lost[0]}"
        raise RunError(f"{folder.path}: {gone}; {resume_command(folder.path)}")


def reopened(path: Path, sweeps: Mapping[str, tuple[str, ...]]) -> tuple[NamedSweep, How]:
    """Find the sweep in ``path`` again, and how it was to run; raises :class:`RunFolderError` if it has changed."""
    values, parent = SweepFolder(path).asked(), tuned_by(path)
    if parent is not None:
        raise RunFolderError(f"{path} is a search of the sweep in {parent}, which goes on with it; resume that folder")
    named = load(_given_again(path, str(values["reference"])), values["profile"], values["overrides"], sweeps)
    # None: of a version in which all seeds had the partition of the base. A merge and a resume of such a one say "one".
    if values.get("partitions", "one") == "one":
        named = replace(named, sweep=replace(named.sweep, partitions="one"))
    if named.digest != values["digest"]:
        raise RunFolderError(
            f"{path} was begun as another sweep: {values['reference']} has changed since ({values['digest']}, now "
            f"{named.digest}); run it as a new sweep, whose unchanged rounds come from the store"
        )
    try:
        how = How.from_mapping(values["how"])
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{path / 'sweep.yaml'} cannot be read as a sweep (how: {error})") from None
    return SweepFolder(path).with_added(named), how


def _given_again(path: Path, reference: str) -> str:
    """Return the reference of a sweep of a user's own file with the file that was named in this process.

    Raises :class:`RunFolderError` where none was: no folder decides which code is run.
    """
    file, _, function = reference.rpartition(":")
    if not file:
        return reference
    given = [one for one in own_modules.named_files() if one.name == Path(file).name]
    if not given:
        again = shlex.join(["fedskew", "resume", str(path), "--with", file])
        raise RunFolderError(f"{path} is a sweep of code of your own ({reference}); if you trust it, give it: {again}")
    return f"{given[-1]}:{function}"


# --- pieces -----------------------------------------------------------------------------------------------


def _trials(sweep: Sweep, planned: Sequence[Planned]) -> Sequence[PlannedTrial]:
    """All trials of the sweep as its folder names them; those of a searcher have no setting yet."""
    if not planned:
        return numbered(sweep.samples * len(sweep.seeds), sweep.seeds, innermost=True)
    return [PlannedTrial(trial.trial, trial.seed, trial.setting) for trial in planned]


def _shared(experiment: Experiment) -> ray.ObjectRef:
    """Load the data set of an experiment into Ray's store."""
    dataset = experiment.data.load()
    for sentence in dataset.warnings:
        log.warning("data: %s", sentence)
    _ = dataset.fingerprint  # once here, not in every trial
    return cluster.share(dataset)


def _unfinished(
    planned: Sequence[Planned], trials: Sequence[PlannedTrial], records: Sequence[TrialRecord], left: Left
) -> tuple[Sequence[Planned], Sequence[PlannedTrial]]:
    """Leave out the trials that have ended and are whole."""
    ended = {record.trial for record in records if record.ended} - left.damaged
    return [one for one in planned if one.trial not in ended], [one for one in trials if one.trial not in ended]


def _job(
    folder: SweepFolder,
    sweep: Sweep,
    planned: Sequence[Planned],
    data: Mapping[str, ray.ObjectRef],
    mode: Mode,
    store: StageStore | None,
    left: Left,
    codes: Mapping[str, str],
) -> Job:
    """Gather what all trials have in common.

    data: data section as JSON -> the data set in Ray's store. codes: see :class:`~engine.sweeps.trial.Job`.
    """
    experiments = [sweep.base, *(trial.experiment for trial in planned)]
    for experiment in experiments:  # refused here, before any begins
        placed(experiment).resolve()
    if planned:
        named = {choice for experiment in experiments for choice in all_choices(experiment)}
    else:  # a searcher's settings are not known yet, but the words in them are
        values = [one for value in sweep.space.values() for one in options(value) or ()]
        words = [one.get("name") if isinstance(one, Mapping) else one for one in values]
        named = {choice for parts in PARTS.values() for name, choice in parts.items() if name in words}
    return Job(
        folder=folder.path.resolve(),
        base=sweep.base,
        own=own_parts(named),
        data=data,
        store=store,
        actors=mode.actors,
        step=sweep.step if sweep.fixed_steps else None,
        mutable=tuple(sweep.scheduler.mutations) if isinstance(sweep.scheduler, Pbt) else (),
        personal=sweep.needs_personal,
        by_class=sweep.by_class,
        damaged=left.damaged,
        codes=codes,
        partitions=sweep.partitions,
    )


def _brought(named: NamedSweep, out: Path | None, how: How) -> SweepFolder:
    """Return the sweep's folder with all that its storage knows of it."""
    folder = SweepFolder.for_sweep(named, out)
    if how.storage is None:
        return folder
    kept = Kept(folder.path, Storage.at(how.storage, folder.path))
    with writing(kept.path):
        found = kept.digest_there()
        rule = f"holds another sweep in {kept.storage.path} ({found}, this one is {named.digest})"
        require(found in (None, named.digest), "--storage", how.storage, rule, "name another folder by it or by --out")
        kept.path.mkdir(parents=True, exist_ok=True)
        with locked(kept.path / ".lock"):
            kept.bring_all()
    return kept


def _storage(job: Job, folder: SweepFolder, address: str | None, told: Observers) -> Storage | None:
    """Return how nodes that do not see the sweep's folder reach it, and tell of those that there are.

    None where Ray was started here: then there is no other node, and there will be none.
    """
    kept = folder.storage if isinstance(folder, Kept) else None
    others = len(node_files.others())
    if kept is None and not others and not used(address)[0]:
        return None
    marks: dict[Path, str] = {}
    if kept is None:
        marks[job.mark] = "trials there write to their own disk, and it is brought here as they go"
    if job.store is not None:
        job.store.make()
        marks[job.store.mark] = "trials there share rounds with those of the same node"
    for mark, then in marks.items():
        if lost := node_files.strangers(mark):
            told.tell("on_message", f"{len(lost)} of {others} other nodes, {lost[0]}, do not see {mark.parent}: {then}")
    reached = kept or Storage(node_files.of_this_node(), str(job.folder), job.folder)
    return replace(reached, marks={mark: node_files.identity(mark) for mark in marks})


@contextmanager
def _writing_in_tune(folder: Path) -> Iterator[None]:
    """Tell of a disk that failed while Tune was at work, which tells of an error in another one's text, or reads what
    it could write in part alone. What Ray logs meanwhile is without tracebacks.
    """
    handlers = logging.getLogger("ray").handlers
    for handler in handlers:
        handler.addFilter(_without_traceback)
    try:
        yield
    except Exception as raised:
        error: BaseException | None = raised
        while error is not None:
            if isinstance(error, WriteError):
                raise WriteError(error.file, error.reason, folder) from raised
            if isinstance(error, OSError) and error.errno in DISK_FAILS:
                raise not_written(error, folder) from raised
            if isinstance(error, EOFError | UnpicklingError):
                raise WriteError(folder / "tune", "a file of Ray Tune's is cut off", folder) from raised
            error = error.__cause__ or error.__context__
        raise
    finally:
        for handler in handlers:
            handler.removeFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    return True


def _end(folder: SweepFolder, trial: str, error: Exception) -> str:
    """Record the end of a trial that died each time, and return it as a line; one whose files cannot be written is to
    be gone on with.
    """
    cause = getattr(error, "cause", error)
    if isinstance(cause, WriteError | StoreError):
        raise cause
    reason = f"tried {DEATHS + 1} times, last: {last_cause(error)}"
    folder.end(trial, "failed", reason, died=True)
    return f"trial {trial} failed: {reason}"


def _again(folder: SweepFolder, record: TrialRecord) -> TrialRecord:
    """A failed trial as one that goes on from its last checkpoint; any other as it is."""
    if record.status == "failed":
        record = replace(record, status="running", reason=None, died=False)
        folder.write(record)
    return record


def _code(folder: SweepFolder, sweep: Sweep, planned: Sequence[Planned]) -> tuple[str, Mapping[str, str]]:
    """Return a hash of the code of all trials, to be written down, and that of each, under "" of the base.

    Refuses to go on with trials of other code, or names both.
    """
    codes = {"": code_of(sweep.base), **{trial.trial: code_of(trial.experiment) for trial in planned}}
    now = combined(codes.values())
    before = str(folder.sweep().get(CODE, UNKNOWN)) if folder.has_trials() else now
    if before != now and not sweep.base.execution.mixed_hardware:
        raise RunFolderError(
            f"{folder.path} was begun with other code ({before}, now {now}), so its trials could not be compared; run "
            "it as a new sweep with --out, whose unchanged rounds come from the store, or go back to that code"
        )
    return mixed(before, now), codes


def combined(codes: Iterable[str]) -> str:
    """Return one hash of the codes of all trials and of the base."""
    return hashlib.sha256(" ".join(sorted(set(codes))).encode()).hexdigest()[:16]


def _data_sections(sweep: Sweep, planned: Sequence[Planned]) -> dict[str, Experiment]:
    """One experiment for each data set of the sweep."""
    experiments = [trial.experiment for trial in planned] or [sweep.experiment({}, seed) for seed in sweep.seeds]
    if not planned:
        searched = [name for name in sweep.space if sweep.base.key_of(name).startswith("data.")]
        require(not searched, "space", searched, "varies the data, which a searcher cannot", "use a grid")
    return {data_key(experiment): experiment for experiment in experiments}


def _store(folder: SweepFolder, how: How) -> StageStore | None:
    if not how.reuse:
        return None
    path = how.store or folder.path.parent / "store"
    return StageStore(path.resolve(), limit_bytes=int(how.limit_gb * 2**30))


def _result(folder: SweepFolder, trials: Sequence[PlannedTrial], places: int) -> SweepResult:
    records = [record for one in trials if (record := folder.record(one.trial)) is not None]
    if any(one.setting is None for one in trials):  # what a searcher has proposed, all of it
        folder.write_plan(with_settings(trials, folder.plan(), records))
    statuses = Counter[str](record.status for record in records)
    if len(records) < len(trials):
        statuses["missing"] = len(trials) - len(records)
    return SweepResult(
        folder=folder.path,
        trials=len(trials),
        statuses=dict(statuses),
        rounds_asked=sum(record.rounds_asked for record in records),
        rounds_computed=sum(record.rounds_computed for record in records),
        interrupted=not all(record.ended for record in records) or len(records) < len(trials),
        places=places,
    )
