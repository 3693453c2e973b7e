"""A later command's look at each finished trial of a sweep."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.base.errors import FedskewError, RunFolderError
from engine.record.sweep_files import setting_at
from engine.results.loading import trial_records
from engine.results.settings import setting_label
from engine.results.trials import read_json, read_yaml

log = logging.getLogger("fedskew")

Found = tuple[dict[str, Any], Path, dict[str, Any]]  # columns that name the trial, where it lies, its summary


def trial_by_trial(
    folder: Path, verb: str, look: Callable[[Path], Path], told: Callable[[str], None] = lambda text: None
) -> list[Found]:
    """Collect what ``look`` found of each finished trial.

    ``look`` takes the folder of a trial and returns the folder of what it found.

    The columns are trial, setting, seed, the sweep's axes, stage and round. A trial that is refused is left out, and
    the log says why; if all are, that is an error. ``told`` hears of each trial.
    """
    axes = [axis["name"] for axis in read_yaml(folder / "sweep.yaml")["axes"]]
    records, damage = trial_records(folder, ())
    for trial, wrong in damage.items():
        log.warning("trial %s is left out: %s", trial, wrong)
    finished = [(folder / record["folder"], record) for record in records if record["status"] == "finished"]
    found, reasons = list[Found](), list[str]()
    for place, (trial, record) in enumerate(finished, start=1):
        told(f"{place} of {len(finished)}: trial {record['trial']}")
        try:
            target = look(trial)
        except FedskewError as error:
            log.warning("trial %s is left out: %s", record["trial"], error)
            reasons.append(str(error))
            continue
        about = read_json(target / "summary.json")
        setting = setting_at(record, about["round"])
        values = {name: _plain(setting.get(name)) for name in axes}
        label = setting_label({name: setting.get(name) for name in axes})
        start = {"trial": record["trial"], "setting": label, "seed": record["seed"]} | values
        found.append((start | {"stage": about["stage"], "round": about["round"]}, target, about))
    if not found:
        raise RunFolderError(f"{folder} has no trial to {verb}" + (f": {reasons[0]}" if reasons else ""))
    return found


def _plain(value: Any) -> Any:
    """A cell of a table: an algorithm with its fields is text."""
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value, sort_keys=True)
