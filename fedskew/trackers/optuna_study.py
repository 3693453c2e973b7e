"""A sweep as a study in Optuna's storage, for Optuna's dashboard: one trial of Optuna's for each setting.

Its value is the mean of the sweep's metric over the setting's seeds, which is what a searcher is told; the value of
each seed is among its attributes.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from engine.base.errors import ConfigError, RunFolderError, require
from fedskew.trackers.targets import check_installed

SETTING, RESULTS = "fedskew.setting", "fedskew.results"  # the attributes by which a setting is known again, and how far


def write(folder: Path, place: str) -> tuple[str, int]:
    """Add the settings of the sweep in ``folder`` whose trials have all ended to a study; its name, and how many.

    place: a database as ``sqlite:///FILE``, or a file of Optuna's journal. Settings that are there are left alone,
    unless they have other seeds or weights now: Optuna's trials stay as they ended, so such a setting is added again.
    Raises :class:`ConfigError` for a run, which has no settings, or where Optuna is not installed.
    """
    check_installed_optuna()
    import optuna
    from optuna.trial import TrialState, create_trial

    from engine.results.loading import load

    results = load(folder)
    require((folder / "sweep.yaml").exists(), "FOLDER", folder, "is a run, which has no settings to compare", "a sweep")
    require(len(results.axes) > 0, "FOLDER", folder, "is a sweep that varies nothing", "export it to another tracker")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = f"{results.name}-{_key(folder)}"
    direction = "maximize" if results.mode == "max" else "minimize"
    study = optuna.create_study(storage=_storage(place), study_name=name, direction=direction, load_if_exists=True)
    study.set_user_attr("metric", results.metric)
    old = [one.user_attrs for one in study.get_trials(deepcopy=False)]
    there = {(one.get(SETTING), json.dumps(one.get(RESULTS))) for one in old}
    axes = {axis.name: [_plain(value) for value in results.trials[axis.name]] for axis in results.axes}
    distributions = {axis.name: _distribution(folder, axis.name, axes[axis.name]) for axis in results.axes}
    added = 0
    settings: dict[str, list[int]] = {}
    for row in range(len(results.trials)):
        settings.setdefault(json.dumps({name: axes[name][row] for name in axes}), []).append(row)
    for text, rows in settings.items():
        trials = results.trials.iloc[rows]
        pairs = zip(trials["seed"], trials["weights_sha256"], strict=True)
        told = sorted([int(seed), weights if isinstance(weights, str) else ""] for seed, weights in pairs)
        if (text, json.dumps(told)) in there or not trials["status"].isin(["finished", "stopped", "failed"]).all():
            continue
        values = dict(zip(trials["trial"], (float(value) for value in trials[results.metric]), strict=True))
        good = [value for value in values.values() if math.isfinite(value)]
        attributes = {
            SETTING: text,
            RESULTS: told,
            "trials": list(values),
            "seeds": [int(seed) for seed in trials["seed"]],
        }
        attributes[results.metric] = {trial: one if math.isfinite(one) else None for trial, one in values.items()}
        state = TrialState.COMPLETE if good else TrialState.FAIL
        params = {name: value for name, value in json.loads(text).items() if value is not None}
        known = {name: distributions[name] for name in params}
        value = statistics.fmean(good) if good else None
        study.add_trial(
            create_trial(state=state, value=value, params=params, distributions=known, user_attrs=attributes)
        )
        added += 1
    return name, added


def check_installed_optuna() -> None:
    """Raise :class:`ConfigError` where the extra ``search`` is not installed."""
    try:
        check_installed("optuna", "--to")
    except ConfigError:
        raise ConfigError("--to", "optuna", "is not installed", "pip install 'fedskew[search]'") from None


def _storage(place: str) -> Any:
    if "://" in place:
        return place
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    Path(place).parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(place))


def _key(folder: Path) -> str:
    """Return the sweep's digest, and the rank of its tuned candidates where that is not the best."""
    from engine.base import safe_yaml

    try:
        values = safe_yaml.read(folder / "sweep.yaml")
        rank = values.get("tuned_rank")
        return f"{values['digest']}-rank{rank}" if rank else str(values["digest"])
    except (OSError, ValueError, KeyError) as error:
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep ({error})") from None


def _plain(value: Any) -> Any:
    """Return a value that Optuna takes: anything but a number, a text, a truth or nothing as JSON."""
    value = value.item() if hasattr(value, "item") else value
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)


def _distribution(folder: Path, axis: str, values: list[Any]) -> Any:
    """Return what an axis was drawn from, as far as its values need it; a grid is a choice."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    from engine.base import safe_yaml

    axes = {one["name"]: one for one in safe_yaml.read(folder / "sweep.yaml")["axes"]}
    drawn, log = axes[axis].get("range"), bool(axes[axis].get("log"))
    there = [value for value in values if value is not None]
    if not isinstance(drawn, dict) or not all(isinstance(value, int | float) for value in there):
        return CategoricalDistribution(list(dict.fromkeys([*(map(_plain, axes[axis].get("values") or [])), *there])))
    ends = [drawn.get("lower"), drawn.get("upper")]
    ends = [end for end in ends if isinstance(end, int | float) and math.isfinite(end)]
    whole = drawn.get("type") == "integer"
    if whole and len(ends) == 2:
        ends[1] -= 1  # Tune's end is exclusive
    low, high = min([*ends, *there]), max([*ends, *there])
    return IntDistribution(int(low), int(high), log=log) if whole else FloatDistribution(low, high, log=log)
