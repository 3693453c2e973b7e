"""A sweep from its definition to its last trial, and again after a crash."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ray
from rich.console import Console

from engine.base.errors import RunFolderError, require
from engine.base.files import locked
from engine.experiment import Experiment
from engine.record.store import StageStore
from engine.sweeps.definition import Asha, Optuna, Pbt, Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.live import LiveTable
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.options import How
from engine.sweeps.planning import Mode, Planned, check_fit, choose_mode, plan
from engine.sweeps.trial import Job, data_key
from engine.sweeps.tuner import DEATHS, make_tuner
from engine.worker.ray import cluster
from engine.worker.ray.errors import first_line


@dataclass(frozen=True)
class SweepResult:
    """The end of a sweep: what became of its trials."""

    folder: Path
    trials: int  # that were to run
    statuses: dict[str, int]
    rounds_asked: int
    rounds_computed: int
    interrupted: bool

    @property
    def all_failed(self) -> bool:
        return 0 < self.trials == self.statuses.get("failed", 0)


def run_sweep(
    named: NamedSweep,
    out: Path | None,
    how: How,
    address: str | None = None,
    console: Console | None = None,
    retry_failed: bool = False,
) -> SweepResult:
    """Run every trial that has not ended yet. After a crash or Ctrl-C, call it again.

    ``retry_failed``: those that have failed, too.

    Raises :class:`FedskewError` for what can be refused before anything starts: an invalid cell, missing data, a trial
    that fits no node.
    """
    console = console or Console(stderr=True, quiet=True)
    sweep, folder = named.sweep, SweepFolder.for_sweep(named, out)
    pbt = isinstance(sweep.scheduler, Pbt)
    require(
        not (pbt and how.concurrent), "--concurrent", how.concurrent, "is not for PBT", "its trials take turns anyway"
    )
    records = folder.records() if folder.is_sweep() else []
    if retry_failed:
        records = [_again(folder, record) for record in records]
    adaptive = isinstance(sweep.search, Optuna)
    planned = [] if adaptive else plan(sweep)
    total = sweep.samples * len(sweep.seeds) if adaptive else len(planned)
    sections = _data_sections(sweep, planned)
    with console.status("data and Ray"):
        cluster.connect(sweep.base.execution, address, crowd=False)
        cluster.check_resources(sweep.base.execution)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        share = cluster.gpu_share(sweep.base.execution.gpus_per_actor)
        mode = choose_mode(total, sweep.base.execution, share, nodes, how.mode)
        check_fit(mode, nodes)
        datasets = {key: experiment.data.load() for key, experiment in sections.items()}
        for dataset in datasets.values():
            _ = dataset.fingerprint  # once here, not in every trial
        references = {key: cluster.share(dataset) for key, dataset in datasets.items()}
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.path / ".lock"):
        folder.create(named, how.to_mapping())
        _announce(console, named, folder, mode, total, records, how)
        if sum(record.ended for record in records) == total:
            return _result(folder, total)
        job = Job(
            folder=folder.path.resolve(),
            experiments={trial.trial: _placed(trial.experiment) for trial in planned},
            base=_placed(sweep.base),
            data=references,
            store=_store(folder, how),
            actors=mode.actors,
            step=sweep.step if sweep.fixed_steps else None,
            mutable=tuple(sweep.scheduler.mutations) if isinstance(sweep.scheduler, Pbt) else (),
            personal=sweep.needs_personal,
            by_class=sweep.by_class,
        )
        stopper = {Asha: "ASHA", Pbt: "PBT"}.get(type(sweep.scheduler), "the stopping rule")
        live = LiveTable(console, folder, total, sweep, stopper)
        if folder.tune.exists():  # of an earlier process: its trials report again
            shutil.rmtree(folder.tune)
        with live:
            grid = make_tuner(sweep, job, mode, planned, records, live, how, total).fit()
        for result in grid:
            if result.error is not None:
                reason = first_line(result.error)
                folder.end(Path(result.path).name, "failed", f"tried {DEATHS + 1} times, last: {reason}")
        return _result(folder, total)


def resume_sweep(
    path: Path,
    sweeps: Mapping[str, tuple[str, ...]],
    address: str | None = None,
    console: Console | None = None,
    retry_failed: bool = False,
) -> tuple[NamedSweep, SweepResult]:
    """Go on with the sweep in ``path``; ended trials are kept, and told to the searcher and the scheduler again."""
    values = SweepFolder(path).asked()
    _check_code(path, str(values["reference"]))
    named = load(values["reference"], values["profile"], values["overrides"], sweeps)
    if named.digest != values["digest"]:
        raise RunFolderError(
            f"{path} was begun as another sweep: {values['reference']} has changed since ({values['digest']}, now "
            f"{named.digest}); run it as a new sweep, whose unchanged rounds come from the store"
        )
    try:
        how = How.from_mapping(values["how"])
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{path / 'sweep.yaml'} cannot be read as a sweep (how: {error})") from None
    return named, run_sweep(named, path, how, address, console, retry_failed)


def _check_code(folder: Path, reference: str) -> None:
    """Refuse a sweep that brings its own code along: whoever it comes from, it is about to be run."""
    file, _, _ = reference.rpartition(":")
    inside = Path(file).resolve().is_relative_to(folder.resolve())
    if file and (inside or not Path(file).is_absolute()):
        raise RunFolderError(
            f"{folder / 'sweep.yaml'} names code that came with it ({reference}); if you trust it, run it as a sweep: "
            "fedskew sweep FILE.py:function"
        )


# --- pieces -----------------------------------------------------------------------------------------------


def _again(folder: SweepFolder, record: TrialRecord) -> TrialRecord:
    """A failed trial as one that goes on from its last checkpoint; any other as it is."""
    if record.status == "failed":
        record = replace(record, status="running", reason=None)
        folder.write(record)
    return record


def _data_sections(sweep: Sweep, planned: Sequence[Planned]) -> dict[str, Experiment]:
    """One experiment for each data set of the sweep."""
    experiments = [trial.experiment for trial in planned] or [sweep.base]
    if not planned:
        searched = [name for name in sweep.space if sweep.base.key_of(name).startswith("data.")]
        require(not searched, "space", searched, "varies the data, which a searcher cannot", "use a grid")
    return {data_key(experiment): experiment for experiment in experiments}


def _placed(experiment: Experiment) -> Experiment:
    """Return the experiment with its executor and the device of its trials: a GPU where they have a share of one."""
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
    return experiment.resolve()


def _store(folder: SweepFolder, how: How) -> StageStore | None:
    if not how.reuse:
        return None
    path = how.store or folder.path.parent / "store"
    return StageStore(path.resolve(), limit_bytes=int(how.limit_gb * 2**30))


def _announce(
    console: Console,
    named: NamedSweep,
    folder: SweepFolder,
    mode: Mode,
    total: int,
    records: Sequence[TrialRecord],
    how: How,
) -> None:
    sweep = named.sweep
    ended = sum(record.ended for record in records)
    where = "each in a process of its own" if mode.kind == "inside" else f"each on {mode.actors} client actors"
    at_once = min(mode.slots, how.concurrent or mode.slots, total)
    lines = [
        f"[bold]{named.name}[/bold] ({named.profile})  {folder.path}",
        named.title,
        f"trials     {total}: {total // len(sweep.seeds)} settings x {len(sweep.seeds)} seeds"
        + (f"; {ended} have ended already" if ended else ""),
        f"where      {at_once} at a time, {where} ({mode.reason}; --mode changes it)",
    ]
    console.print("\n".join(lines), highlight=False)


def _result(folder: SweepFolder, total: int) -> SweepResult:
    records = folder.records()
    statuses = Counter(record.status for record in records)
    done = sum(count for status, count in statuses.items() if status != "running")
    return SweepResult(
        folder=folder.path,
        trials=total,
        statuses=dict(statuses),
        rounds_asked=sum(record.rounds_asked for record in records),
        rounds_computed=sum(record.rounds_computed for record in records),
        interrupted=done < total,
    )
