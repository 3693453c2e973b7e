"""A sweep from its definition to its last trial, and again after a crash."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.sample import Categorical, Float, Integer
from rich.console import Console

from engine.base.errors import RunFolderError, require
from engine.base.files import locked
from engine.base.writable import check_writable
from engine.experiment import Experiment
from engine.record.store import StageStore
from engine.sweeps.definition import Asha, NamedSweep, Optuna, Pbt, Sweep, load
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.live import LiveTable
from engine.sweeps.planning import Mode, Planned, check_fit, choose_mode, order, plan
from engine.sweeps.searching import InOrder, Proposed, optuna_search
from engine.sweeps.trial import Job, Trial, data_key
from engine.worker.ray import cluster
from engine.worker.ray.errors import first_line

DEATHS = 3  # times that a trial's process may die, or its node, before the trial counts as failed
MODES = ("auto", "inside", "nested")


@dataclass(frozen=True)
class How:
    """How a sweep runs; nothing here changes a result."""

    store: Path | None = None  # of stages; none: "store" beside the sweep's folder
    reuse: bool = True
    mode: str = "auto"
    concurrent: int | None = None  # trials at a time, at most
    limit_gb: float = 20.0  # of the store

    def __post_init__(self) -> None:
        require(self.mode in MODES, "--mode", self.mode, "is not a mode", "use auto, inside or nested")
        require(self.concurrent is None or self.concurrent >= 1, "--concurrent", self.concurrent, "must be at least 1")
        require(0 < self.limit_gb < math.inf, "--store-limit", self.limit_gb, "must be above 0 GB", "for example 20")
        if self.store is not None and self.reuse:
            check_writable(self.store, "--store")

    def to_mapping(self) -> dict[str, Any]:
        store = str(self.store.resolve()) if self.store else None
        return {"store": store, "reuse": self.reuse, "mode": self.mode, "concurrent": self.concurrent,
                "limit_gb": self.limit_gb}  # fmt: skip

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> How:
        store = values["store"]
        return cls(**{**values, "store": Path(store) if store else None})


@dataclass(frozen=True)
class Outcome:
    """What became of a sweep."""

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
) -> Outcome:
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
            return _outcome(folder, total)
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
        begin = _Begin(folder)
        stopper = {Asha: "ASHA", Pbt: "PBT"}.get(type(sweep.scheduler), "the stopping rule")
        live = LiveTable(console, folder, total, sweep, stopper)
        if folder.tune.exists():  # of an earlier process: its trials report again
            shutil.rmtree(folder.tune)
        with live:
            grid = _tuner(sweep, job, mode, planned, records, begin, live, how, total).fit()
        for result in grid:
            if result.error is not None:
                reason = first_line(result.error)
                folder.end(Path(result.path).name, "failed", f"tried {DEATHS + 1} times, last: {reason}")
        return _outcome(folder, total)


def resume_sweep(
    path: Path,
    sweeps: Mapping[str, tuple[str, ...]],
    address: str | None = None,
    console: Console | None = None,
    retry_failed: bool = False,
) -> tuple[NamedSweep, Outcome]:
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
    """With the device that trials compute on, a GPU where they have a share of one; and with its executor."""
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


class _Begin:
    """Writes the record of a trial that is about to start, unless an earlier process did."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder

    def __call__(self, trial: str, setting: dict[str, Any], seed: int) -> None:
        if self._folder.record(trial) is None:
            self._folder.write(TrialRecord(trial, setting, seed))


def _tuner(
    sweep: Sweep,
    job: Job,
    mode: Mode,
    planned: Sequence[Planned],
    records: Sequence[TrialRecord],
    begin: _Begin,
    live: LiveTable,
    how: How,
    total: int,
) -> tune.Tuner:
    search: Any
    space: dict[str, Any] = {}
    concurrent: int | None = min(mode.slots, how.concurrent or mode.slots)
    if isinstance(sweep.scheduler, Pbt):
        # PBT takes no searcher; so each trial looks up what it has now. Those that have ended stay as they are.
        known = {record.trial: record for record in records}
        left = [trial for trial in planned if trial.trial not in known or not known[trial.trial].ended]
        for trial in left:
            begin(trial.trial, trial.setting, trial.seed)
        search = BasicVariantGenerator(max_concurrent=0)  # the whole population: trials take turns
        space = {"trial": tune.grid_search([trial.trial for trial in left]), "seed": sweep.seeds[0]}
        settings = {trial.trial: _latest(trial, known.get(trial.trial)) for trial in left}
        for name in planned[0].setting:
            space[name] = tune.sample_from(_Lookup({key: setting[name] for key, setting in settings.items()}))
        concurrent, total = None, 1
    elif isinstance(sweep.search, Optuna):
        search = Proposed(sweep, optuna_search(sweep, sweep.search, len(records)), records, begin, how.reuse)
    else:
        ordered, needs = order(planned)
        search = InOrder(sweep, ordered, needs if how.reuse else {}, begin)
    trainable: Any = tune.with_parameters(Trial, job=job)
    trainable = tune.with_resources(trainable, tune.PlacementGroupFactory([dict(b) for b in mode.bundles]))
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric=sweep.metric,
            mode=sweep.mode,
            search_alg=search,
            scheduler=_scheduler(sweep, planned),
            num_samples=total,
            max_concurrent_trials=concurrent,
            # A process starts in five seconds; with actors of its own it must end with its trial.
            reuse_actors=mode.kind == "inside",
            trial_name_creator=_name_of,
            trial_dirname_creator=_name_of,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(job.folder),
            stop=dict(sweep.stop) or None,
            failure_config=tune.FailureConfig(max_failures=DEATHS),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the run's folder holds its end
            callbacks=[live],
            verbose=0,
        ),
    )


def _latest(trial: Planned, record: TrialRecord | None) -> dict[str, Any]:
    """The hyper-parameters that a trial went on with when it was last changed."""
    changes = record.schedule[-1]["set"] if record is not None and record.schedule else {}
    return {**trial.setting, **changes}


class _Lookup:
    """A value of the trial that Tune is making."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __call__(self, spec: Any) -> Any:
        return self._values[spec.config.trial]


def _name_of(trial: Any) -> str:
    return trial.config["trial"]


def _scheduler(sweep: Sweep, planned: Iterable[Planned]) -> TrialScheduler:
    if isinstance(sweep.scheduler, Asha):
        longest = max([trial.experiment for trial in planned] or [sweep.base], key=_last_round)
        return ASHAScheduler(
            time_attr="round",
            max_t=max(_last_round(longest), sweep.scheduler.grace),
            grace_period=sweep.scheduler.grace,
            reduction_factor=sweep.scheduler.factor,
        )
    if isinstance(sweep.scheduler, Pbt):
        mutations = {  # a category's neighbours are others of its list, which Tune takes from a list alone
            name: list(domain.categories) if isinstance(domain, Categorical) else domain
            for name, domain in sweep.scheduler.mutations.items()
        }
        return PopulationBasedTraining(
            time_attr="round",
            perturbation_interval=sweep.scheduler.every,
            hyperparam_mutations=mutations,
            quantile_fraction=sweep.scheduler.quantile,
            resample_probability=sweep.scheduler.resample,
            custom_explore_fn=_Within(sweep.scheduler.mutations),
            log_config=False,
        )
    return FIFOScheduler()


class _Within:
    """Keeps perturbed values inside the domain that they are drawn from."""

    def __init__(self, domains: Mapping[str, Any]) -> None:
        self._domains = {name: domain for name, domain in domains.items() if isinstance(domain, Float | Integer)}

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        for name, domain in self._domains.items():
            top = domain.upper - 1 if isinstance(domain, Integer) else domain.upper  # an integer's end is exclusive
            config[name] = min(max(config[name], domain.lower), top)
        return config


def _last_round(experiment: Experiment) -> int:
    return experiment.spans[-1].stop - 1


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


def _outcome(folder: SweepFolder, total: int) -> Outcome:
    records = folder.records()
    statuses = Counter(record.status for record in records)
    done = sum(count for status, count in statuses.items() if status != "running")
    return Outcome(
        folder=folder.path,
        trials=total,
        statuses=dict(statuses),
        rounds_asked=sum(record.rounds_asked for record in records),
        rounds_computed=sum(record.rounds_computed for record in records),
        interrupted=done < total,
    )
