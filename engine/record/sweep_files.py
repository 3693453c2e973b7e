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
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, TypeAdapter
from typing_extensions import TypedDict

from engine.base.errors import RunFolderError, one_line
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
        fields.check(values, PLAN_KIND)
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
        fields.check(record, RECORD_KIND)
        # It says where the record is written next. A name that is no text is none of the engine's.
        if record["trial"] != one_line(path.parent.name):
            raise ValueError(f"it is of trial {record['trial']}")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); fedskew resume makes it anew") from None
    return record


def setting_at(record: Mapping[str, Any], round: int) -> dict[str, Any]:
    """Return the setting of the weights that a trial has after ``round``: a population's trials change as they go."""
    changes = [change["set"] for change in record.get("schedule", ()) if change["first_round"] <= round]
    return {name: changes[-1].get(name, value) if changes else value for name, value in record["setting"].items()}


def _a_name(value: str) -> str:
    if value != Path(value).name or not value.isprintable():
        raise ValueError("is no name")
    return value


class _Planned(TypedDict):
    trial: Annotated[str, AfterValidator(_a_name)]
    seed: fields.Whole
    setting: dict[str, Any] | None


class _Plan(TypedDict):
    trials: list[_Planned]


class _Change(TypedDict):
    first_round: fields.Whole
    set: dict[str, Any]


class _Record(TypedDict):
    trial: str
    setting: dict[str, Any]
    seed: fields.Whole
    status: Status
    reason: str | None
    died: NotRequired[bool]
    rounds: NotRequired[fields.Whole]
    rounds_asked: NotRequired[fields.Whole]
    rounds_computed: NotRequired[fields.Whole]
    replaced: NotRequired[fields.Whole]
    schedule: NotRequired[list[_Change]]


PLAN_KIND, RECORD_KIND = TypeAdapter(_Plan), TypeAdapter(_Record)
