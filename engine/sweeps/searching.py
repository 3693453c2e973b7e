"""Search for the next trial: Tune asks, one of these answers.

``InOrder`` gives planned trials, each once the rounds that it shares with another have been computed. ``Proposed``
gives what a searcher proposes, every setting with every seed, and tells it the mean over seeds.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from engine.base.errors import ConfigError
from engine.sweeps.definition import Optuna, Sweep, is_drawn
from engine.sweeps.folder import TrialRecord
from engine.sweeps.planning import Needs, Planned, order

Begin = Callable[[str, dict[str, Any], int], None]  # writes the record of a trial: its name, setting, seed


def config_of(trial: str, setting: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what Tune knows of a trial."""
    return {"trial": trial, **setting, "seed": seed}


class InOrder(Searcher):
    """Planned trials, shorter prefixes before longer ones."""

    def __init__(self, sweep: Sweep, trials: Sequence[Planned], needs: Mapping[str, Needs], begin: Begin) -> None:
        super().__init__(metric=sweep.metric, mode=sweep.mode)
        self._waiting = deque(trials)
        self._needs = dict(needs)
        self._begin = begin
        self._names: dict[str, str] = {}  # Tune's id -> ours
        self._rounds: dict[str, float] = {}  # ours -> reached; infinite once it has ended

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        for number, trial in enumerate(self._waiting):
            need = self._needs.get(trial.trial)
            if need is None or self._rounds.get(need.trial, 0) >= need.round:
                del self._waiting[number]
                self._names[trial_id] = trial.trial
                self._begin(trial.trial, trial.setting, trial.seed)
                return config_of(trial.trial, trial.setting, trial.seed)
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._rounds[self._names[trial_id]] = result["round"]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        # However it ended: those who wait compute what is missing themselves.
        self._rounds[self._names.pop(trial_id)] = math.inf

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a sweep goes on from its own records."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: see :meth:`save`."""


class Proposed(Searcher):
    """A searcher's settings, each with every seed; the searcher learns the mean over those that succeeded."""

    def __init__(
        self, sweep: Sweep, searcher: Searcher, records: Sequence[TrialRecord], begin: Begin, reuse: bool = False
    ) -> None:
        """``records``: of an earlier process of the sweep, whose trials come first.

        ``reuse``: a trial waits until the rounds that it shares with the first one have been computed.
        """
        super().__init__(metric=sweep.metric, mode=sweep.mode)
        self._sweep = sweep
        self._searcher = searcher
        self._begin = begin
        self._waiting: deque[tuple[str, dict[str, Any], int]] = deque()
        # By number, proposals that the searcher did not make in this process: a trial's number has its seed's place.
        self._known = {int(record.trial) // len(sweep.seeds): record.setting for record in records}
        self._free = deque(number for number in range(sweep.samples) if number not in self._known)
        self._untold = {record.trial for record in records if record.ended}  # results that the searcher must know first
        self._reuse = reuse
        self._leaders: dict[int, Planned] = {}  # seed -> the first trial with it, which the others share rounds with
        self._rounds: dict[str, float] = {}  # of a trial; infinite once it has ended
        self._of: dict[str, tuple[str, dict[str, Any], str]] = {}  # Tune's id -> the proposal's id, setting, trial
        self._values: dict[str, list[float]] = defaultdict(list)  # proposal -> values of its seeds
        self._left: dict[str, int] = defaultdict(lambda: len(sweep.seeds))  # proposal -> seeds still to come
        for number, setting in sorted(self._known.items()):  # each with all its seeds, whichever had begun
            self._wait(number, setting)

    def _wait(self, number: int, setting: dict[str, Any]) -> None:
        """Let the trials of a proposal wait for their turn, one for each seed."""
        for place, seed in enumerate(self._sweep.seeds):
            self._waiting.append((f"{number * len(self._sweep.seeds) + place:05d}", setting, seed))

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if not self._waiting:
            if not self._free or self._untold:
                return None
            setting = self._searcher.suggest(_proposal(self._free[0]))
            if not isinstance(setting, dict):
                return None
            self._wait(self._free.popleft(), self._sweep.complete(setting))
        trial, setting, seed = self._waiting[0]
        if self._must_wait(trial, setting, seed):
            return None
        self._waiting.popleft()
        self._of[trial_id] = (_proposal(int(trial) // len(self._sweep.seeds)), setting, trial)
        self._begin(trial, setting, seed)
        return config_of(trial, setting, seed)

    def _must_wait(self, trial: str, setting: dict[str, Any], seed: int) -> bool:
        """Return whether the first trial of the seed still computes rounds that this one will take from it."""
        if not self._reuse:
            return False
        planned = Planned(trial, setting, seed, self._sweep.experiment(setting, seed))
        leader = self._leaders.setdefault(seed, planned)
        needs = order([leader, planned])[1].get(trial) if leader is not planned else None
        return needs is not None and self._rounds.get(leader.trial, 0) < needs.round

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._rounds[self._of[trial_id][2]] = result["round"]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        proposal, setting, trial = self._of.pop(trial_id)
        self._untold.discard(trial)
        self._rounds[trial] = math.inf
        value = (result or {}).get(self._sweep.metric, math.nan)
        if not error and not (result or {}).get("failed") and math.isfinite(value):
            self._values[proposal].append(value)
        self._left[proposal] -= 1
        if self._left[proposal]:
            return
        values = self._values.pop(proposal, [])
        known = int(proposal.rpartition("-")[2]) in self._known
        if known and values:  # of an earlier process: replayed into the searcher
            drawn = {name: value for name, value in setting.items() if is_drawn(self._sweep.space[name])}
            self._searcher.add_evaluated_point(drawn, statistics.fmean(values))
        elif not known:
            mean = {self._sweep.metric: statistics.fmean(values)} if values else None
            self._searcher.on_trial_complete(proposal, mean, error=not values)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a sweep goes on from its own records."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: see :meth:`save`."""


def _proposal(number: int) -> str:
    return f"proposal-{number:05d}"


def optuna_search(sweep: Sweep, search: Optuna, known: int = 0) -> Searcher:
    """Optuna behind Tune's interface; the extra ``search``.

    ``known``: trials of an earlier process of the sweep. What that process drew at random is not drawn again.
    """
    try:
        import optuna
        from ray.tune.search.optuna import OptunaSearch
    except ImportError:
        raise ConfigError("search", "optuna", "is not installed", "pip install 'fedskew[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", "Choices for a categorical distribution")  # with fields: no study is stored
    start = max(1, search.random)  # settings of an earlier process are among them: it is told of all that succeeded
    seed = sweep.search_seed + known
    samplers = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=start),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=start),
    }
    drawn: dict[str, Any] = {name: value for name, value in sweep.space.items() if is_drawn(value)}
    return OptunaSearch(space=drawn, metric=sweep.metric, mode=sweep.mode, sampler=samplers[search.sampler]())
