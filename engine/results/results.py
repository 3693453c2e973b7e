"""The trials of a sweep, or one run, as pandas frames; and their trials in groups, paired by seed.

results = load(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))      # see loading.py
results.trials          one row per trial: its setting, seed, status and figures
results.settings()      one row per setting: the metric over seeds
results.curves()        one row per evaluation
results.local_curves()  one row per round whose local models were measured
results.personal_curves()   one row per round and point in which clients were evaluated one by one

The figures of a trial are explained in trials.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from engine.base.errors import RunFolderError, nearest, one_line, require
from engine.experiment import Experiment
from engine.record import matrices
from engine.record.metrics import EVALUATED
from engine.record.personal_metrics import EVERY_CLIENT, MEANS, PLACE, at_the_end, by_round
from engine.record.run_folder import RunFolder
from engine.results.claims import Claim, PaperTable
from engine.results.class_figures import is_class_figure
from engine.results.completeness import OTHERS, Completeness
from engine.results.facts import Facts
from engine.results.settings import better_way, key, label, matches, setting_column, setting_frame
from engine.results.simulated_time import CLOCK, Devices
from engine.results.statistics import summarise
from engine.results.trials import (
    LAYER,
    METRICS,
    ON_REQUEST,
    class_counts,
    local_rows,
    personal_rows,
    read_experiment,
)


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
    tables: tuple[PaperTable, ...]
    claims: tuple[Claim, ...]
    trials: pd.DataFrame  # one row per trial, in trial order
    evaluations: Mapping[str, pa.Table] = field(repr=False)  # by trial: of the lineage, as in evaluations.parquet
    devices: Devices | None = None  # that simulated time supposes; None: there is none
    looks: str = "once"  # at its seeds: "repeatedly" if seeds were added until claims were decided
    completeness: Completeness = field(default_factory=Completeness, repr=False)  # what of the plan is there
    own: tuple[str, ...] = ()  # columns of ``trials`` that are metrics of the user's own
    facts: Mapping[str, Facts] = field(default_factory=dict, repr=False)  # by trial, of those with an experiment
    # Trial -> what else of it cannot be read; grows as tables are asked for, since large ones are not read before.
    unread: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns of ``trials`` that a statistic can be made of."""
        found = [name for name in self.trials if name in ON_REQUEST or name.startswith(LAYER) or is_class_figure(name)]
        return (*METRICS, *found, *self.own)

    @cached_property
    def _curves(self) -> pd.DataFrame:
        clock = [CLOCK] if self.devices is not None else []
        return self._of_trials(self.evaluations, ["stage", "round", "scope", *EVALUATED, "class_accuracy", *clock])

    def curves(self) -> pd.DataFrame:
        """One row for each evaluation along a trial's lineage, whatever became of the trial.

        trial, seed, the axes, stage, round, scope (of the global model, or of all clients' personal models together),
        accuracy, loss and the other columns of :data:`~engine.record.metrics.EVALUATED`, class_accuracy (array; NaN for
        a class without test data); simulated_seconds until then, if devices are supposed.
        """
        return self._curves.copy()

    @cached_property
    def _local(self) -> pd.DataFrame:
        asked = {name: one.values.get("evaluation") for name, one in self.facts.items()}
        without = {name for name, one in asked.items() if isinstance(one, dict) and one.get("local_every") == 0}
        return self._of_trials(self._read(local_rows, without), ["stage", "round", "local_accuracy"])

    def local_curves(self) -> pd.DataFrame:
        """One row for each round of a trial's lineage that measured its local models, whatever became of the trial.

        trial, seed, the axes, stage, round, local_accuracy (mean over the cohort, before aggregation, on the test set).
        """
        return self._local.copy()

    @cached_property
    def _personal(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        curves, ends = {}, {}
        for trial, table in self._read(personal_rows).items():
            if not len(table):
                continue
            rows = table.to_pandas()
            ends_of_points = pd.concat([at_the_end(rows, point) for point in EVERY_CLIENT])
            curves[trial] = pa.Table.from_pandas(by_round(rows), preserve_index=False)
            ends[trial] = pa.Table.from_pandas(ends_of_points, preserve_index=False)
        shares = ["samples", "accuracy"]
        over_clients = ["client_accuracy", "worst_decile_accuracy", "client_std", *MEANS]
        return (
            self._of_trials(curves, [*PLACE, *shares, *over_clients]),
            self._of_trials(ends, [*PLACE, "client", *shares]),
        )

    def _read(self, read: Callable[[Path], pa.Table], without: Collection[str] = ()) -> dict[str, pa.Table]:
        """Read a table of each other trial; one that is damaged costs its own trial alone, and a run all."""
        found: dict[str, pa.Table] = {}
        for trial, status, folder in self.trials[["trial", "status", "folder"]].itertuples(index=False):
            try:
                if trial not in without and status not in ("damaged", "missing"):
                    found[trial] = read(self.path / folder)
            except RunFolderError as error:
                if folder == ".":
                    raise
                self.unread[trial] = one_line(str(error))
        return found

    def personal_curves(self) -> pd.DataFrame:
        """One row for each round and point at which clients' models were evaluated one by one, along a trial's lineage.

        trial, seed, the axes, stage, round, point (see personal_metrics.py), samples, accuracy (by samples),
        client_accuracy (the mean over clients), worst_decile_accuracy (the mean over the worst tenth of clients),
        client_std (the standard deviation over clients), balanced_accuracy, macro_f1 (means over clients).
        """
        return self._personal[0].copy()

    def personal_clients(self) -> pd.DataFrame:
        """One row for each client at a point of all clients, in the last round in which that was evaluated.

        trial, seed, the axes, stage, round, point, client, samples (the client's test rows), accuracy.
        """
        return self._personal[1].copy()

    def _of_trials(self, parts: Mapping[str, pa.Table], columns: list[str]) -> pd.DataFrame:
        """Each trial's table, behind its name, seed and setting; in the order of the trials."""
        names = ["trial", "seed", *(axis.name for axis in self.axes)]
        rows = [row for row in self.trials.filter(items=names).to_dict("records") if len(parts.get(row["trial"], ()))]
        if not rows:
            return pd.DataFrame(columns=[*names, *columns])
        tables = [parts[row["trial"]].select(columns) for row in rows]
        # each value repeated as it is: pandas would spread a list or a mapping over the rows
        repeated = [row for row, table in zip(rows, tables, strict=True) for _ in range(len(table))]
        same = {name: setting_column([row[name] for row in repeated]) for name in names}
        return pd.DataFrame(same).join(pa.concat_tables(tables).to_pandas())

    def settings(self, metric: str | None = None) -> pd.DataFrame:
        """One row per setting: the axes, the metric's mean, std, low and high over seeds, and how many.

        low, high: 95 % bootstrap interval of the mean. seeds: finished trials that have the metric; stopped, failed,
        running, damaged, missing: those that do not count.
        """
        names = [axis.name for axis in self.axes]
        rows = []
        for group in grouped(self, names, metric or self.metric):
            summary = summarise(list(group.values.values()))
            figures = {"mean": summary.mean, "std": summary.std, "low": summary.low, "high": summary.high}
            others = {status: group.statuses[status] for status in OTHERS}
            rows.append(group.setting | figures | {"seeds": summary.n} | others)
        return setting_frame(rows, names, ["mean", "std", "low", "high", "seeds", *OTHERS])

    def class_counts(self, trial: str) -> np.ndarray:
        """Training samples of each client and class, int64 [K, C]; :class:`DataError` if the data are not there."""
        folder = self._folder(trial)
        return class_counts(folder / "partition.parquet", read_experiment(folder / "experiment.yaml")["data"])

    def matrices(self, trial: str) -> dict[str, np.ndarray]:
        """Return the matrices [C, C], float64, that the trial's server ended with, by name; often there are none."""
        return matrices.load(self._folder(trial))

    def experiment(self, trial: str) -> Experiment:
        return RunFolder(self._folder(trial)).experiment()

    def _folder(self, trial: str) -> Path:
        known = self._folders
        require(trial in known, "trial", trial, "is not among the trials", nearest(trial, known))
        return self.path / known[trial]

    @cached_property
    def _folders(self) -> dict[str, str]:
        return dict(zip(self.trials["trial"], self.trials["folder"], strict=True))


# --- groups of trials


@dataclass
class Group:
    """The trials of one setting, or of all settings that agree on some axes.

    Axes that the group is not told apart by are averaged over, seed by seed: a seed counts once it has finished every
    point of theirs that the group has trials for, so that no mean is taken over another mixture than its neighbour's.
    """

    setting: dict[str, Any]
    points: set[Hashable] = field(default_factory=set)  # of the averaged axes, whatever became of the trials
    values: dict[tuple[Hashable, int], float] = field(default_factory=dict)  # by point and seed: finished trials
    statuses: Counter[str] = field(default_factory=Counter)
    failed: set[int] = field(default_factory=set)  # seeds of which a trial failed

    def by_seed(self) -> dict[int, float]:
        """The metric of each seed that is complete; NaN where a finished trial lacks it."""
        return _averaged(self.points, self.values)

    def minus(self, other: Group) -> dict[int, float]:
        """The difference for each seed that both have finished, at all points that both have trials for."""
        both = {place: value - other.values[place] for place, value in self.values.items() if place in other.values}
        return _averaged(self.points & other.points, both)


def _averaged(points: set[Hashable], values: Mapping[tuple[Hashable, int], float]) -> dict[int, float]:
    """The mean over ``points`` for each seed that has them all."""
    seeds = sorted({seed for _, seed in values})
    complete = [seed for seed in seeds if points and all((point, seed) in values for point in points)]
    # Exact sums: a set has no order, and the same folder must give the same bytes.
    return {seed: math.fsum(values[point, seed] for point in points) / len(points) for seed in complete}


def grouped(results: Results, names: Iterable[str], metric: str, where: Mapping[str, Any] | None = None) -> list[Group]:
    """The trials that match ``where``, in groups of equal values of the axes ``names``; sorted as the axes' values are.

    Only finished trials have a value: one that was stopped early has trained for less than those it is compared with.
    """
    check_metric(results, metric)
    names, where = list(names), where or {}
    check_axes(results, [*names, *where])
    axes = [axis.name for axis in results.axes]
    groups: dict[Hashable, Group] = {}
    alike: dict[Hashable, list[float]] = {}
    for row in results.trials.filter(items=[*axes, "seed", "status", metric]).to_dict("records"):
        if not all(matches(row[name], wanted) for name, wanted in where.items()):
            continue
        setting = {name: row[name] for name in names}
        group = groups.setdefault(key(setting), Group(setting))
        point = key([row[name] for name in axes if name not in names])
        group.points.add(point)
        group.statuses[row["status"]] += 1
        if row["status"] == "finished":  # a population has several of one seed that ended with equal values
            same = alike.setdefault((key(setting), point, row["seed"]), [])
            same.append(float(row[metric]))
            group.values[point, row["seed"]] = math.fsum(same) / len(same)
        elif row["status"] == "failed":
            group.failed.add(row["seed"])
    orders = {axis.name: [key(value) for value in axis.values or ()] for axis in results.axes}
    return sorted(groups.values(), key=lambda group: [_rank(group.setting[name], orders[name]) for name in names])


def averaged_axes(results: Results, names: Iterable[str], where: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The axes that a group by ``names`` averages over: those that vary among the trials that match ``where``."""
    names, where = set(names), where or {}
    found = []
    for axis in results.axes:
        values = [value for value in results.trials[axis.name] if matches(value, where.get(axis.name, value))]
        if axis.name not in names and len({key(value) for value in values}) > 1:
            found.append(axis.name)
    return tuple(found)


def check_axes(results: Results, names: Iterable[str]) -> None:
    known = [axis.name for axis in results.axes]
    for name in names:
        repair = nearest(name, known) if known else "a single run has none"
        require(name in known, "axis", name, "is not an axis of this sweep", repair)


def check_metric(results: Results, metric: str) -> None:
    require(metric in results.metrics, "metric", metric, "is no figure of a trial", nearest(metric, results.metrics))


def larger_is_better(results: Results, metric: str) -> bool:
    return results.mode == "max" if metric == results.metric else better_way(metric) != "min"


def _rank(value: Any, order: list[Hashable]) -> tuple[int, float, str]:
    """The place among an axis' values; those that were drawn come by size, or by name."""
    if key(value) in order:
        return order.index(key(value)), 0.0, ""
    number = isinstance(value, int | float) and math.isfinite(value)
    return len(order), float(value) if number else 0.0, label(value)
