"""The plan of a sweep and its trials' records, as data: which trials there are to be (``plan.json``), and how far each
has come (``trials/*/trial.json``).

The plan is written when a sweep is made, so that a trial whose folder is gone is known to be missing. A searcher
proposes settings as it goes: their trials are planned without one, which is filled in when it is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from engine.base.errors import RunFolderError
from engine.base.files import write_atomically
from engine.record import fields

PLAN = "plan.json"
RECORD = "trial.json"
SEARCHES = "tuning"  # in a sweep's folder: the folders of the searches by which its sides were tuned
BEGUN = "begun"  # in sweep.yaml: what was asked when the first trial began, as far as it is asked otherwise now
MOST = 1_000_000  # planned trials
Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class PlannedTrial:
    """A trial that a sweep is to run."""

    trial: str
    seed: int
    setting: dict[str, Any] | None = None  # None: a searcher has not proposed it, or nobody knows any more


def tuned_by(folder: Path) -> Path | None:
    """Return the folder of the sweep that the search in ``folder`` is for; None if it is no such search."""
    parent = folder.resolve().parent
    return parent.parent if parent.name == SEARCHES and (parent.parent / "sweep.yaml").exists() else None


# --- the plan ---------------------------------------------------------------------------------------------


def write_plan(folder: Path, trials: Sequence[PlannedTrial]) -> None:
    """Write the plan of the sweep in ``folder``, a line for each trial."""
    lines = ",\n".join(json.dumps(asdict(trial)) for trial in trials)
    write_atomically(folder / PLAN, f'{{"trials": [\n{lines}\n]}}\n')


def read_plan(folder: Path, sweep: Mapping[str, Any]) -> tuple[PlannedTrial, ...] | None:
    """Read the plan of the sweep in ``folder``, whose ``sweep.yaml`` is ``sweep``; None if nobody knows it.

    A sweep of an earlier version has no plan, and gets the one that follows from ``sweep``: so many trials, without
    their settings. Raises :class:`RunFolderError` for a plan that is damaged.
    """
    path = folder / PLAN
    if not path.exists():
        return followed(sweep)
    try:
        values = fields.load(path)
        fields.check({"trials": values.get("trials")}, {"trials": fields.sequence(fields.mapping(fields.anything))})
        for one in values["trials"]:
            _check_all(one, {"trial": _name, "seed": fields.whole, "setting": fields.optional(_ANY_MAPPING)})
        return tuple(PlannedTrial(one["trial"], one["seed"], one["setting"]) for one in values["trials"])
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); fedskew resume writes it anew") from None


def numbered(count: int, seeds: Sequence[int], innermost: bool) -> tuple[PlannedTrial, ...]:
    """Plan ``count`` trials of settings that are not known; ``innermost``: each setting has its seeds side by side."""
    settings = max(count // len(seeds), 1)
    places = (number % len(seeds) if innermost else number // settings for number in range(count))
    return tuple(PlannedTrial(f"{number:05d}", seeds[place]) for number, place in enumerate(places))


def followed(sweep: Mapping[str, Any]) -> tuple[PlannedTrial, ...] | None:
    """Count the trials of a sweep that says nothing of them: its grid, times its draws, times its seeds."""
    seeds, samples, axes = sweep.get("seeds"), sweep.get("samples", 1), sweep.get("axes")
    search = sweep.get("search")
    if not isinstance(seeds, list) or type(samples) is not int or not isinstance(axes, list) or not seeds:
        return None
    grids = [axis.get("values") for axis in axes if isinstance(axis, dict) and axis.get("kind") == "grid"]
    sizes = [len(values) for values in grids if isinstance(values, list)]
    if len(sizes) < len(grids) or not all(type(seed) is int for seed in seeds):
        return None
    count = math.prod(sizes) * samples * len(seeds)
    proposed = isinstance(search, dict) and search.get("name") == "optuna"
    return numbered(count, seeds, innermost=proposed) if 0 < count <= MOST else None


# --- records of trials ------------------------------------------------------------------------------------


def read_record(path: Path) -> dict[str, Any]:
    """Read a ``trial.json``; raises :class:`RunFolderError` for one that is damaged, or of another trial."""
    try:
        record = fields.load(path)
        _check_all(record, _NEEDED)
        fields.check(record, _COUNTED)
        if record["trial"] != path.parent.name:  # it says where the record is written next
            raise ValueError(f"it is of trial {record['trial']}")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); fedskew resume makes it anew") from None
    return record


def _check_all(values: Mapping[str, Any], checks: Mapping[str, fields.Check]) -> None:
    lacking = [name for name in checks if name not in values]
    if lacking:
        raise ValueError(f"it has no {lacking[0]}")
    fields.check(values, checks)


def _name(name: str, value: Any) -> None:
    fields.text(name, value)
    if value != Path(value).name:
        raise ValueError(f"its {name} is a path: {value[:60]}")


_ANY_MAPPING = fields.mapping(fields.anything)


def _changes(name: str, value: Any) -> None:
    fields.sequence(fields.mapping(fields.anything))(name, value)
    for change in value:
        _check_all(change, {"first_round": fields.whole, "set": _ANY_MAPPING})


_NEEDED: dict[str, fields.Check] = {
    "trial": fields.text,
    "setting": _ANY_MAPPING,
    "seed": fields.whole,
    "status": fields.one_of(get_args(Status)),
    "reason": fields.optional(fields.text),
}
_COUNTED: dict[str, fields.Check] = {
    **dict.fromkeys(("rounds", "rounds_asked", "rounds_computed", "replaced"), fields.whole),
    "schedule": _changes,
}
