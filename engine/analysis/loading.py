"""Load the folder of a sweep or of a run as :class:`~engine.analysis.results.Results`, and write ``trials.parquet``."""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from engine.analysis.claims import Claim, PaperTable
from engine.analysis.class_figures import class_figure, class_figures
from engine.analysis.results import Axis, Results, check_metric
from engine.analysis.settings import SMALLER_IS_BETTER, setting_column
from engine.analysis.trials import (
    FIGURES,
    LAYER,
    METRICS,
    ON_REQUEST,
    RESERVED,
    TrialReader,
    read_experiment,
    read_json,
    read_yaml,
)
from engine.base.errors import RunFolderError, require
from engine.base.files import write_atomically

log = logging.getLogger("fedskew")


def load(folder: Path, metric: str | None = None) -> Results:
    """Read a sweep's folder or a run's; ``metric`` is compared in place of the sweep's own."""
    folder = Path(folder)
    if os.path.exists(folder / "sweep.yaml"):
        sweep, records = _sweep(folder)
    elif os.path.exists(folder / "experiment.yaml"):
        sweep, records = _single_run(folder)
    else:
        raise RunFolderError(f"{folder} is neither a run nor a sweep: it has no experiment.yaml and no sweep.yaml")
    reader = TrialReader(folder, sweep["target_accuracy"])
    names = [axis.name for axis in sweep["axes"]]
    for name in names:
        require(name not in RESERVED, "axis", name, "is also a figure of a trial", "give the axis another name")
    rows = [reader.row(record, names) for record in records]
    if missing := reader.without_partition:
        log.warning("worst_decile_accuracy is left out for %d of %d trials: %s", len(missing), len(rows), missing[0])
    asked = class_figures([sweep["metric"], metric or "", *(one.metric for one in sweep["tables"] + sweep["claims"])])
    trials = _trials_frame(rows, names, asked)
    results = Results(path=folder, trials=trials, evaluations=reader.evaluations, **sweep)
    if metric not in (None, results.metric):
        check_metric(results, metric)
        results = replace(results, metric=metric, mode="min" if metric in SMALLER_IS_BETTER else "max")
    check_metric(results, results.metric)
    return results


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
    content = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), content, compression="zstd")
    path = results.path / "trials.parquet"
    write_atomically(path, content.getvalue().to_pybytes())
    return path


# --- the folders --------------------------------------------------------------------------------------


def _sweep(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read what was asked, and what each trial says of itself, with its folder."""
    path = folder / "sweep.yaml"
    values = read_yaml(path)
    try:
        sweep = {name: values[name] for name in ("name", "title", "profile", "metric", "mode", "target_accuracy")}
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
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{path} is not a sweep of this version ({error!r})") from None
    records = []
    for path in sorted((folder / "trials").glob("*/trial.json")):
        record = read_json(path)
        if not {"trial", "setting", "seed", "status", "reason"} <= set(record):
            raise RunFolderError(f"{path} is not a trial of this version")
        records.append(record | {"folder": path.parent.relative_to(folder).as_posix()})
    return sweep, records


def _single_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a run in the words of a sweep."""
    experiment = read_experiment(folder / "experiment.yaml")
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    asked = sum(stage["rounds"] for stage in experiment["stages"] or [experiment])
    status = summary.get("status", "running")
    done = summary.get("rounds_asked", summary.get("rounds", 0))
    record = {
        "trial": folder.resolve().name,
        "setting": {},
        "seed": experiment["seed"],
        "status": status,
        "reason": f"stopped after {done} of {asked} rounds" if status == "stopped" else None,
        "rounds_asked": asked,
        "rounds_computed": summary.get("rounds_computed", done),
        "folder": ".",
    }
    sweep = {
        "name": experiment["name"],
        "title": experiment["name"],
        "profile": None,
        "axes": (),
        "seeds": (experiment["seed"],),
        "metric": "last10_accuracy",
        "mode": "max",
        "target_accuracy": None,
        "tables": (),
        "claims": (),
    }
    return sweep, [record]


def _trials_frame(rows: list[dict[str, Any]], axes: list[str], by_class: tuple[str, ...]) -> pd.DataFrame:
    rows = [row | {name: class_figure(name, row.get("class_accuracy")) for name in by_class} for row in rows]
    layers = dict.fromkeys(name for row in rows for name in row if name.startswith(LAYER) and name not in axes)
    on_request = [*(name for name in ON_REQUEST if any(name in row for row in rows)), *layers]
    on_request += by_class
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
