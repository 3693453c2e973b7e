"""A sweep in Ray Tune's terms: its trainable, searcher, scheduler and limits."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.sample import Categorical, Float, Integer

from engine.experiment import Experiment
from engine.record.sweep_files import PlannedTrial
from engine.sweeps.callbacks import guarded, tunes_own
from engine.sweeps.definition import Asha, Optuna, Pbt, Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.observers import TrialEvents
from engine.sweeps.options import How
from engine.sweeps.planning import Mode, Planned, order
from engine.sweeps.portions import Portions, portion_for
from engine.sweeps.searching import InOrder, Proposed, optuna_search
from engine.sweeps.trial import Job, Trial

DEATHS = 3  # times that a trial's process may die, or its node, before the trial counts as failed


class _Silent(tune.ProgressReporter):
    """Says nothing, in place of Tune's own reporter for notebooks, which clears the cell."""

    def should_report(self, trials: Any, done: bool = False) -> bool:
        return False

    def report(self, trials: Any, done: bool, *sys_info: str) -> None:
        """Never called."""


class _Begin:
    """Writes the record of a trial that is about to start, unless an earlier process did.

    What a searcher has proposed is put into the plan first, so that it is not lost with the trial's folder.
    """

    def __init__(self, folder: SweepFolder, planned: Sequence[PlannedTrial]) -> None:
        self._folder = folder
        self._planned = {one.trial: one for one in planned}
        self._proposed = self._unwritten = 0

    def __call__(self, trial: str, setting: dict[str, Any], seed: int) -> None:
        if trial in self._planned and self._planned[trial].setting is None:
            self._planned[trial] = replace(self._planned[trial], setting=setting)
            self._proposed, self._unwritten = self._proposed + 1, self._unwritten + 1
            if self._unwritten > self._proposed // 50:  # the whole plan each time: by then it has grown by as much
                self._folder.write_plan(list(self._planned.values()))
                self._unwritten = 0
        if self._folder.record(trial) is None:
            self._folder.write(TrialRecord(trial, setting, seed))


def make_tuner(
    sweep: Sweep,
    job: Job,
    mode: Mode,
    planned: Sequence[Planned],
    trials: Sequence[PlannedTrial],
    records: Sequence[TrialRecord],
    events: TrialEvents,
    how: How,
    most: int,
) -> Portions:
    """Return what runs the trials of ``sweep`` that have not ended.

    planned: all trials; empty with a searcher. trials: all of them, as the sweep's folder names them. records: of an
    earlier process of the sweep. most: trials that have places.
    """
    folder = events.folder
    begin, total = _Begin(folder, trials), len(trials)
    search: Any
    space: dict[str, Any] = {}
    concurrent: int | None = most if isinstance(sweep.search, Optuna) else max(most, how.concurrent or 0)
    if isinstance(sweep.scheduler, Pbt):
        # PBT takes no searcher; so each trial looks up what it has now. Those that have ended stay as they are.
        known = {record.trial: record for record in records}
        ended = {trial for trial, record in known.items() if record.ended and trial not in job.damaged}
        left = [trial for trial in planned if trial.trial not in ended]
        for trial in left:
            begin(trial.trial, trial.setting, trial.seed)
        search = BasicVariantGenerator(max_concurrent=0)  # the whole population: trials take turns
        space = {"trial": tune.grid_search([trial.trial for trial in left]), "seed": sweep.seeds[0]}
        settings = {trial.trial: _latest(trial, known.get(trial.trial)) for trial in left}
        for name in planned[0].setting:
            space[name] = tune.sample_from(_Lookup({key: setting[name] for key, setting in settings.items()}))
        concurrent, total = None, 1  # Tune's number of samples of a grid
    elif isinstance(sweep.search, Optuna):
        search = Proposed(sweep, optuna_search(sweep, sweep.search, len(records)), records, begin, how.reuse)
    else:
        ordered, needs = order(planned)
        search = InOrder(sweep, ordered, needs if how.reuse else {}, begin)
    trainable: Any = tune.with_parameters(Trial, job=job)
    trainable = tune.with_resources(trainable, tune.PlacementGroupFactory([dict(b) for b in mode.bundles]))
    scheduler = _scheduler(sweep, planned)
    of_author = guarded(sweep.callbacks, events.say)

    def make(samples: int) -> tune.Tuner:
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(  # searcher and scheduler have the metric, which they may be given once
                search_alg=search,
                scheduler=scheduler,
                num_samples=samples,
                max_concurrent_trials=concurrent,  # beyond the places there are: a cluster may grow
                reuse_actors=mode.kind == "inside",  # a start takes 5 s; one with actors of its own ends with its trial
                trial_name_creator=_name_of,
                trial_dirname_creator=_name_of,
            ),
            run_config=tune.RunConfig(
                name=folder.tune.name,
                **job.tunes_place,
                stop=dict(sweep.stop) or None,
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the run's folder holds its end
                callbacks=[events, *of_author, *tunes_own(sweep.callbacks)],
                verbose=0,
                progress_reporter=_Silent() if "ipykernel" in sys.modules else None,  # elsewhere verbose=0 will do
            ),
        )

    return Portions(make, total, portion_for(max(mode.slots, concurrent or 0)), of_author)


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
            metric=sweep.metric,
            mode=sweep.mode,
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
            metric=sweep.metric,
            mode=sweep.mode,
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
            value, step = min(max(config[name], domain.lower), top), getattr(domain.get_sampler(), "q", None)
            if step is not None:  # multiples alone are drawn
                least, most = math.ceil(domain.lower / step), math.floor(domain.upper / step)
                value = type(value)(min(max(round(value / step), least), most) * step)
            config[name] = value
        return config


def _last_round(experiment: Experiment) -> int:
    return experiment.spans[-1].stop - 1
