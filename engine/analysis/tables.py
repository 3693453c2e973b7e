"""The trials of a sweep, or one run, as pandas frames.

results = load(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))
results.trials          one row per trial: its setting, seed, status and figures
results.settings()      one row per setting: the metric over seeds
results.curves()        one row per evaluation
results.local_curves()  one row per round whose local models were measured
results.personal_curves()   one row per round and point in which clients were evaluated one by one

What the figures of a trial are: see trials.py.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from engine.analysis.claims import Claim
from engine.analysis.class_figures import class_figure, class_figures, is_class_figure
from engine.analysis.layouts import Layout
from engine.analysis.settings import (
    SMALLER_IS_BETTER,
    check_metric,
    grouped,
    setting_column,
    setting_frame,
)
from engine.analysis.statistics import summarise
from engine.analysis.trials import (
    FIGURES,
    LAYER,
    METRICS,
    ON_REQUEST,
    RESERVED,
    TrialReader,
    class_counts,
    local_rows,
    personal_rows,
    read_experiment,
    read_json,
    read_yaml,
)
from engine.base.errors import RunFolderError, nearest, require
from engine.base.files import write_atomically
from engine.experiment import Experiment
from engine.record import matrices
from engine.record.personal_metrics import EVERY_CLIENT, PLACE, at_the_end, by_round
from engine.record.run_folder import RunFolder

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class Axis:
    """A hyper-parameter that a sweep varies; ``key`` is its dotted key, ``values`` those of a grid."""

    name: str
    key: str
    kind: str  # "grid" or "sampled"
    values: tuple[Any, ...] | None
    log: bool  # draw it on a logarithmic axis (it may contain 0)


@dataclass(frozen=True, eq=False)
class Results:
    """A sweep, or a single run: then there is one trial, and no axis, table or claim."""

    path: Path
    name: str
    title: str
    profile: str | None
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    metric: str
    mode: str  # "max" or "min"
    target_accuracy: float | None
    tables: tuple[Layout, ...]
    claims: tuple[Claim, ...]
    trials: pd.DataFrame  # one row per trial, in trial order
    evaluations: Mapping[str, pa.Table] = field(repr=False)  # by trial: of the lineage, as in evaluations.parquet

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns of ``trials`` that a statistic can be made of."""
        found = [name for name in self.trials if name in ON_REQUEST or name.startswith(LAYER) or is_class_figure(name)]
        return (*METRICS, *found)

    @cached_property
    def _curves(self) -> pd.DataFrame:
        parts = {trial: table.to_pandas() for trial, table in self.evaluations.items()}
        return self._of_trials(parts, ["stage", "round", "scope", "accuracy", "loss", "class_accuracy"])

    def curves(self) -> pd.DataFrame:
        """One row for each evaluation along a trial's lineage, whatever became of the trial.

        trial, seed, the axes, stage, round, scope (of the global model, or of all clients' personal models together),
        accuracy, loss, class_accuracy (array; NaN for a class without test data).
        """
        return self._curves.copy()

    @cached_property
    def _local(self) -> pd.DataFrame:
        parts = {row["trial"]: local_rows(self.path / row["folder"]) for row in self.trials.to_dict("records")}
        return self._of_trials(parts, ["stage", "round", "local_accuracy"])

    def local_curves(self) -> pd.DataFrame:
        """One row for each round of a trial's lineage that measured its local models, whatever became of the trial.

        trial, seed, the axes, stage, round, local_accuracy (mean over the cohort, before aggregation, on the test set).
        """
        return self._local.copy()

    @cached_property
    def _personal(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        curves, ends = {}, {}
        for trial, folder in zip(self.trials["trial"], self.trials["folder"], strict=True):
            rows = personal_rows(self.path / folder)
            curves[trial] = by_round(rows)
            ends[trial] = pd.concat([at_the_end(rows, point) for point in EVERY_CLIENT])
        shares = ["samples", "accuracy"]
        return (
            self._of_trials(curves, [*PLACE, *shares, "client_accuracy", "worst_decile_accuracy"]),
            self._of_trials(ends, [*PLACE, "client", *shares]),
        )

    def personal_curves(self) -> pd.DataFrame:
        """One row for each round and point at which clients' models were evaluated one by one, along a trial's lineage.

        trial, seed, the axes, stage, round, point (see personal.py), samples, accuracy (by samples), client_accuracy
        (the mean over clients), worst_decile_accuracy (the mean over the worst tenth of clients).
        """
        return self._personal[0].copy()

    def personal_clients(self) -> pd.DataFrame:
        """One row for each client at a point of all clients, in the last round in which that was evaluated.

        trial, seed, the axes, stage, round, point, client, samples (the client's test rows), accuracy.
        """
        return self._personal[1].copy()

    def _of_trials(self, parts: Mapping[str, pd.DataFrame], columns: list[str]) -> pd.DataFrame:
        """Each trial's table, behind its name, seed and setting; in the order of the trials."""
        names = ["trial", "seed", *(axis.name for axis in self.axes)]
        found = []
        for row in self.trials.filter(items=names).to_dict("records"):
            part = parts.get(row["trial"])
            if part is not None and len(part):
                # each value repeated as it is: pandas would spread a list or a mapping over the rows
                same = {name: setting_column([row[name]] * len(part)) for name in names}
                found.append(pd.DataFrame(same).join(part[columns].reset_index(drop=True)))
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*names, *columns])

    def settings(self, metric: str | None = None) -> pd.DataFrame:
        """One row per setting: the axes, the metric's mean, std, low and high over seeds, and how many.

        low, high: 95 % bootstrap interval of the mean. seeds: finished trials that have the metric; failed, stopped,
        running: those that do not count.
        """
        names = [axis.name for axis in self.axes]
        rows = []
        for group in grouped(self, names, metric or self.metric):
            summary = summarise(list(group.values.values()))
            figures = {"mean": summary.mean, "std": summary.std, "low": summary.low, "high": summary.high}
            others = {status: group.statuses[status] for status in ("failed", "stopped", "running")}
            rows.append(group.setting | figures | {"seeds": summary.n} | others)
        return setting_frame(rows, names, ["mean", "std", "low", "high", "seeds", "failed", "stopped", "running"])

    def class_counts(self, trial: str) -> np.ndarray:
        """Training samples of each client and class, int64 [K, C]; :class:`DataError` if the data are not there."""
        folder = self._folder(trial)
        return class_counts(folder / "partition.parquet", read_experiment(folder / "experiment.yaml")["data"])

    def matrices(self, trial: str) -> dict[str, np.ndarray]:
        """What the trial's server ended with for each pair of classes, by name, float64 [C, C]; often nothing."""
        return matrices.load(self._folder(trial))

    def experiment(self, trial: str) -> Experiment:
        return RunFolder(self._folder(trial)).experiment()

    def _folder(self, trial: str) -> Path:
        known = self.trials["trial"].tolist()
        require(trial in known, "trial", trial, "is not among the trials", nearest(trial, known))
        return self.path / self.trials["folder"].iloc[known.index(trial)]


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
    """What was asked, and what each trial says of itself, with its folder."""
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
        sweep["tables"] = tuple(map(Layout.from_mapping, values["tables"]))
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
    """A run in the words of a sweep."""
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
