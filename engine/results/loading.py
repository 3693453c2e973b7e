"""Load the folder of a sweep or of a run as :class:`~engine.results.results.Results`, and write ``trials.parquet``."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from engine.base import parquet
from engine.base.errors import ConfigError, RunFolderError, one_line, require
from engine.base.files import refuse_links
from engine.record import parts
from engine.record.summary import read as read_summary
from engine.record.sweep_files import RECORD, PlannedTrial, followed, read_plan, read_record
from engine.results.claims import Claim, PaperTable
from engine.results.class_figures import class_figure, class_figures
from engine.results.completeness import Completeness, by_status, named
from engine.results.read_before import ReadBefore
from engine.results.results import Axis, Results, check_metric
from engine.results.settings import better_way, setting_column
from engine.results.simulated_time import Devices
from engine.results.trials import (
    FIGURES,
    LAYER,
    METRICS,
    ON_REQUEST,
    RESERVED,
    TrialReader,
    read_experiment,
    read_yaml,
)

log = logging.getLogger("fedskew")
LOOKS = ("once", "repeatedly")  # at the claims: with seeds chosen before, or added until each is decided
Plan = tuple[PlannedTrial, ...] | None  # None: nobody knows


def load(folder: Path, metric: str | None = None, devices: Devices | None = None, keep: bool = False) -> Results:
    """Read a sweep's folder or a run's; ``metric`` is compared in place of the sweep's own.

    devices: what simulated time supposes, in place of the sweep's own; without either there is none. keep: what is
    read of a sweep without devices is kept in its folder, see read_before.py.
    """
    folder = Path(folder)
    for place in (folder, folder / "trials"):  # below it, one costs its trial alone
        refuse_links(place, deep=False)
    plan: Plan = None
    values: dict[str, Any] = {}
    problem, damage = "", dict[str, str]()
    if os.path.exists(folder / "sweep.yaml"):
        sweep, values = _sweep(folder)
        plan, problem = _plan(folder, values)
        records, damage = trial_records(folder, plan or ())
    elif os.path.exists(folder / "experiment.yaml"):
        sweep, records = _single_run(folder)
    else:
        lacks = "it has no experiment.yaml and no sweep.yaml"
        raise RunFolderError(f"{folder} is neither a run nor a sweep: {lacks}{_inside(folder)}")
    sweep["devices"] = devices or sweep.get("devices")
    reader = TrialReader(folder, sweep["target_accuracy"], sweep["devices"])
    if keep and plan is not None and sweep["devices"] is None:
        reader.before = ReadBefore(folder, sweep["target_accuracy"])
    names = [axis.name for axis in sweep["axes"]]
    for name in names:
        require(name not in RESERVED, "axis", name, "is also a figure of a trial", "give the axis another name")
    rows = [reader.row(record, names) for record in records]
    for row in rows:
        if row["trial"] in damage:
            row |= reader.lost(row["trial"], damage[row["trial"]])
    completeness = Completeness(planned=1)
    if os.path.exists(folder / "sweep.yaml"):
        rows, completeness = _covered(rows, names, plan, problem, {**damage, **reader.damage})
        completeness = (
            completeness if completeness.complete else replace(completeness, files=_files(folder, values, rows))
        )
    if missing := reader.without_partition:
        left_out = "worst_decile_accuracy, many_accuracy, medium_accuracy and few_accuracy are left out"
        log.warning("%s for %d of %d trials: %s", left_out, len(missing), len(rows), missing[0])
    asked = class_figures([sweep["metric"], metric or "", *(one.metric for one in sweep["tables"] + sweep["claims"])])
    own = tuple(dict.fromkeys(name for row in rows for name in row.get("own", ()) if name not in (*RESERVED, *names)))
    trials = _trials_frame(rows, names, asked, own)
    read = {"evaluations": reader.evaluations, "facts": reader.facts, "own": own}
    results = Results(path=folder, trials=trials, completeness=completeness, **read, **sweep)
    if metric not in (None, results.metric):
        check_metric(results, metric)
        results = replace(results, metric=metric, mode=better_way(metric) or "max")
    check_metric(results, results.metric)
    if reader.before is not None:
        reader.before.save()
    return results


def _inside(folder: Path) -> str:
    """Say which runs and sweeps a folder holds that is none itself; "" without any."""
    found = sorted(path.parent.name for name in ("sweep.yaml", "experiment.yaml") for path in folder.glob(f"*/{name}"))
    return f"; it holds {named(found)}: name these, as {folder}/{found[0]}" if found else ""


def write_trials(results: Results) -> Path:
    """Write ``trials.parquet`` beside what was read: one row per trial.

    An axis whose values are no scalars, or not of one kind, becomes JSON text.
    """
    frame = results.trials.copy()
    for axis in results.axes:
        values = frame[axis.name].tolist()
        kinds = {
            float if isinstance(value, int | float) and not isinstance(value, bool) else type(value) for value in values
        }
        if kinds & {dict, list} or len(kinds - {type(None)}) > 1:
            frame[axis.name] = [json.dumps(value, sort_keys=True) for value in values]
    path = results.path / "trials.parquet"
    parquet.write(path, pa.Table.from_pandas(frame, preserve_index=False))
    return path


# --- the folders --------------------------------------------------------------------------------------


def _sweep(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what was asked: the fields of :class:`Results`, and all of ``sweep.yaml``."""
    path = folder / "sweep.yaml"
    values = read_yaml(path)
    try:
        sweep = {name: values[name] for name in ("name", "title", "profile", "metric", "mode", "target_accuracy")}
        if not isinstance(sweep["target_accuracy"], int | float | None):
            raise TypeError("its target_accuracy is no number")
        sweep["axes"] = tuple(
            Axis(
                axis["name"],
                axis["key"],
                axis["kind"],
                None if axis["values"] is None else tuple(axis["values"]),
                axis["log"],
            )
            for axis in values["axes"]
        )
        sweep["seeds"] = tuple(values["seeds"])
        sweep["tables"] = tuple(map(PaperTable.from_mapping, values["tables"]))
        sweep["claims"] = tuple(map(Claim.from_mapping, values["claims"]))
        sweep["looks"] = values.get("looks", "once")
        sweep["devices"] = Devices(**values["devices"]) if "devices" in values else None
        require(sweep["looks"] in LOOKS, "looks", sweep["looks"], f"is none of {', '.join(LOOKS)}")
    except (KeyError, TypeError, ConfigError) as error:
        raise RunFolderError(f"{path} is not a sweep of this version ({error!r})") from None
    return sweep, values


def _plan(folder: Path, sweep: Mapping[str, Any]) -> tuple[Plan, str]:
    """Read the plan of a sweep, and what is wrong with it: then it is what follows from ``sweep``."""
    try:
        return read_plan(folder, sweep), ""
    except RunFolderError as error:
        return followed(sweep), one_line(str(error))


def trial_records(folder: Path, plan: Sequence[PlannedTrial]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Read what each trial of a sweep says of itself, with its folder; and what is wrong with those that cannot.

    Of a trial whose record is damaged the ``plan`` knows the setting; without it, it is left out.
    """
    planned = {one.trial: one for one in plan}
    records, damage = [], {}
    for path in sorted((folder / "trials").glob(f"*/{RECORD}")):
        name, place = one_line(path.parent.name), path.parent.relative_to(folder).as_posix()
        try:
            records.append(read_record(path) | {"folder": place})
        except RunFolderError as error:
            damage[name] = one_line(str(error))
            one = planned.get(name)
            if one is not None and one.setting is not None:
                known = {"trial": name, "setting": one.setting, "seed": one.seed, "folder": place}
                records.append({"status": "running", "reason": None, **known})
    return records, damage


def _covered(
    rows: list[dict[str, Any]], axes: Sequence[str], plan: Plan, problem: str, damage: Mapping[str, str]
) -> tuple[list[dict[str, Any]], Completeness]:
    """Add rows for the trials that are planned and not there; all rows in the order of their names."""
    names = {row["trial"] for row in rows} | damage.keys()
    missing = [one for one in plan or () if one.trial not in names]
    counts = dict.fromkeys(("rounds", "rounds_asked", "rounds_computed"), 0)
    rows = rows + [
        {"trial": one.trial, "status": "missing", "reason": "planned, and has no record", "seed": one.seed}
        | {axis: one.setting.get(axis) for axis in axes}
        | {**counts, "folder": f"trials/{one.trial}"}
        for one in missing
        if one.setting is not None
    ]
    nameless = [one.trial for one in missing if one.setting is None]
    lost = sorted(damage.keys() - {row["trial"] for row in rows})  # damaged, and without a row
    statuses = [row["status"] for row in rows] + ["damaged"] * len(lost) + ["missing"] * len(nameless)
    unplanned = sorted(names - {one.trial for one in plan or ()})
    if plan is not None and unplanned and not problem:
        problem = f"trials/ has what the plan has not: {named(unplanned)}"
    completeness = Completeness(
        planned=None if plan is None else len(plan),
        statuses=by_status(statuses),
        missing=tuple(one.trial for one in missing),
        nameless=(*nameless, *lost),
        damage=dict(sorted(damage.items())),
        problem=problem,
    )
    return sorted(rows, key=lambda row: row["trial"]), completeness


def _files(folder: Path, sweep: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Name the user's own files that a sweep needs: that which states it, and those of its trials' parts."""
    stated = str(sweep.get("reference", "")).rpartition(":")[0]
    of_parts = parts.needs(folder / row["folder"] for row in rows).files
    return tuple(dict.fromkeys([stated, *of_parts] if stated else of_parts))


def _single_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a run in the words of a sweep."""
    experiment = read_experiment(folder / "experiment.yaml")
    summary = read_summary(folder)
    try:
        name, seed = str(experiment["name"]), int(experiment["seed"])
        asked = sum(int(stage["rounds"]) for stage in experiment["stages"] or [experiment])
    except (KeyError, TypeError, ValueError) as error:
        path = folder / "experiment.yaml"
        raise RunFolderError(f"{path} is not an experiment of this version ({error!r})") from None
    status = summary.get("status", "running")
    done = summary.get("rounds_asked", summary.get("rounds", 0))
    record = {
        "trial": one_line(folder.resolve().name),
        "setting": {},
        "seed": seed,
        "status": status,
        "reason": f"stopped after {done} of {asked} rounds" if status == "stopped" else None,
        "rounds_asked": asked,
        "rounds_computed": summary.get("rounds_computed", done),
        "folder": ".",
    }
    sweep = {
        "name": name,
        "title": name,
        "profile": None,
        "axes": (),
        "seeds": (seed,),
        "metric": "last10_accuracy",
        "mode": "max",
        "target_accuracy": None,
        "tables": (),
        "claims": (),
    }
    return sweep, [record]


def _trials_frame(
    rows: list[dict[str, Any]], axes: list[str], by_class: tuple[str, ...], own: tuple[str, ...]
) -> pd.DataFrame:
    rows = [row | {name: class_figure(name, row.get("class_accuracy")) for name in by_class} for row in rows]
    rows = [{**row.get("own", {}), **row} for row in rows]
    layers = dict.fromkeys(name for row in rows for name in row if name.startswith(LAYER) and name not in axes)
    on_request = [*(name for name in ON_REQUEST if any(name in row for row in rows)), *layers]
    on_request += (*by_class, *own)
    columns = ["trial", "status", "reason", *axes, "seed", *FIGURES, *on_request]
    series = {}
    for name in columns:
        values = [row.get(name) for row in rows]
        if name in axes:
            series[name] = setting_column(values)
        elif name in ("seed", "rounds", "rounds_asked", "rounds_computed"):
            series[name] = pd.Series(values, dtype="int64")
        elif name in (*METRICS, *on_request):
            series[name] = pd.Series([math.nan if value is None else value for value in values], dtype="float64")
        else:
            series[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(series, columns=columns)
