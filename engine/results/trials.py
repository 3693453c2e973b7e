"""A trial's folder as one row of figures.

Its metrics, their sources and what they mean are those of :mod:`engine.record.metrics`: those of summary.json and
trial.json are taken over, those to the target, of the worst tenth of clients and of the cost matrix are made here from
the run's tables. Accuracies are fractions. Beside them a row has

an axis' value            of the weights that the figures are of: a population's trials change theirs as they go
scope                     what accuracies without a further word are of: "global", the global model on the test set;
                          "personal", the personal models of an algorithm that has no global one, each on its client's
                          own test rows, the rows of all clients together. Where stages differ, that of the last one.
class_accuracy            after the last round, of each class
class_accuracy[1], class_accuracy[2,4,6], class_std   on one class, on some, and how far classes are apart: see
                          class_figures.py; of a sweep that asks for them
breaks_privacy            whether a stage of the lineage is an oracle that no client would take part in
parent, schedule          of a trial of a population: whose weights it last copied, and what it had from which round on

A trial that failed has its reason and no figures (NaN); so has one that was killed or is under way: its status is
"running". One that a scheduler stopped early has the figures it had reached. A trial whose files are damaged, or have
lost rows, has neither: its status is "damaged", and its reason says what is wrong. So is, as "missing", one that was
planned and of which there is nothing: see completeness.py.

Tables are read by column and YAML without building experiments, so that 500 trials take seconds; clients.parquet and
personal.parquet, the large ones, are not read at all, but for simulated time (simulated_time.py) if devices are
supposed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.base import parquet, safe_yaml
from engine.base.errors import DataError, FedskewError, RunFolderError, one_line
from engine.base.files import refuse_links
from engine.base.opening import read_bytes
from engine.data import SOURCES, Assignment
from engine.experiment import lineage_of
from engine.record import communication, fields, metrics
from engine.record.last_rounds import comparable
from engine.record.matrices import COST, least_on_diagonal, load
from engine.record.personal_metrics import MEANS, tenth
from engine.record.run_folder import RunFolder
from engine.record.summary import read as read_summary
from engine.record.sweep_files import setting_at
from engine.record.wholeness import check_rows
from engine.results import round_folders
from engine.results.class_figures import STD, by_rows
from engine.results.completeness import STATUSES
from engine.results.facts import Facts, facts_of
from engine.results.read_before import COLUMNS, ReadBefore, ReadTrial, stamp_of
from engine.results.simulated_time import CLOCK, Devices, seconds_until

log = logging.getLogger("fedskew")
READ = ("rounds", "evaluations", "exchanges")  # the tables that a report is made of
MOST_COUNTS = 64  # partitions whose counts are kept in memory

SUMMARY = metrics.names("summary.json")  # what a trial's row has from its summary.json
METRICS = metrics.OF_RUN
_COSTS = METRICS.index("seconds")  # the first of those that close the row
FIGURES = (
    *METRICS[:_COSTS],
    "class_accuracy",
    *METRICS[_COSTS:],
    "scope",
    "breaks_privacy",
    "weights_sha256",
    "parent",
    "schedule",
    "folder",
)
GENERATED = metrics.names("fedskew images")
ON_REQUEST = metrics.ON_REQUEST  # columns of a sweep that has a trial with what they are made of
LAYER = "cka_of_"  # and a layer's name: its mean CKA between clients, of a trial that was diagnosed
RESERVED = (  # columns of the frames of this package, which no axis can be named after
    *(
        "trial",
        "status",
        "reason",
        "seed",
        *FIGURES,
        *ON_REQUEST,
        STD,
        "stage",
        "round",
        "point",
        "client",
        "samples",
        "client_accuracy",
        "setting",
        "reference",
        "p",
        "p_holm",
    ),
    *("mean", "std", "low", "high", "n", "seeds", *STATUSES),
    *("averaged", "published", "same_setting", "note", "difference", "bold"),
    *("source", "sweep", "digest", "experiment", "code", "profile"),  # of the frames of several folders
    *("data_name", "partition_name", "model_name", "algorithm_name"),
)


class TrialReader:
    """The reader that makes rows of trials; what trials share is read once."""

    def __init__(self, folder: Path, target: float | None, devices: Devices | None = None) -> None:
        self.folder = folder
        self.before: ReadBefore | None = None  # what a report goes by
        self.target = target
        self.devices = devices
        self.evaluations: dict[str, pa.Table] = {}
        self.facts: dict[str, Facts] = {}  # by trial, as far as its experiment can be read
        self.damage: dict[str, str] = {}  # trial -> what of it cannot be read
        self.without_partition: list[str] = []  # why, for each trial without the metrics made of it

    def row(self, record: Mapping[str, Any], axes: list[str]) -> dict[str, Any]:
        """Make the row of a trial; of one that is damaged, the row says so."""
        counts = {name: record.get(name) or 0 for name in ("rounds", "rounds_asked", "rounds_computed")}
        row = {"trial": record["trial"], "status": record["status"], "reason": record["reason"], "seed": record["seed"]}
        setting, schedule = setting_at(record, counts["rounds"]), record.get("schedule", ())
        row |= {axis: setting.get(axis) for axis in axes} | counts | {"folder": record["folder"]}
        if len(schedule) > 1:
            copied = [str(change["from"]) for change in schedule if change.get("from")]
            row |= {"parent": copied[-1] if copied else None, "schedule": json.dumps(schedule)}
        try:
            return row | self._figures(self.folder / record["folder"], record)
        except RunFolderError as error:
            if record["folder"] == ".":  # a run by itself: there is nothing else to report
                raise
            return row | self.lost(record["trial"], error)

    def lost(self, trial: str, error: Exception | str) -> dict[str, Any]:
        """Note a trial that cannot be read; what its row says of it."""
        self.evaluations.pop(trial, None)
        self.damage[trial] = one_line(str(error))
        return {"status": "damaged", "reason": self.damage[trial]}

    def _figures(self, folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
        """Read what a trial has come to, as far as it has ended; :class:`RunFolderError` where that is damaged."""
        ended = record["status"] in ("finished", "stopped")
        refuse_links(folder)
        before, stamp = (self.before, stamp_of(folder)) if ended and self.before is not None else (None, "")
        read = None if before is None else before.get(record["trial"], stamp)
        if read is not None and _is_experiment(read.experiment):
            return self._noted(record["trial"], read)
        summary = read_summary(folder)
        if ended and not summary:
            raise RunFolderError(f"{folder / 'summary.json'} is gone")
        figures: dict[str, Any] = {}
        if not os.path.lexists(folder / "experiment.yaml"):
            if ended:
                raise RunFolderError(f"{folder / 'experiment.yaml'} is gone")
            return figures
        experiment = read_experiment(folder / "experiment.yaml")
        table, lacking, left_out = self._evaluations(folder, experiment), len(self.without_partition), True
        self._noted(record["trial"], ReadTrial(figures, experiment, summary if ended else {}, table))
        if table is not None and len(table):
            figures["scope"] = table["scope"][-1].as_py()
        if ended and summary:
            check_rows(folder, summary, READ if self.devices is None else (*READ, "clients"))
            figures |= {name: summary.get(name) for name in (*SUMMARY, "breaks_privacy", "weights_sha256")}
            figures["rounds"] = summary.get("rounds", record.get("rounds") or 0)
            if table is not None and len(table):
                by_class = table["class_accuracy"][-1].as_py()
                figures["class_accuracy"] = by_class
                figures["own"] = dict(table["own"][-1].as_py() or ())
                if self.devices is not None:
                    figures |= {"seconds_to_target": None, CLOCK: table[CLOCK][-1].as_py()}
                if figures["scope"] == "global" and by_class is not None:
                    figures |= self._by_partition(folder, experiment, by_class)
                figures |= self._to_target(folder, experiment, table)
            found, left_out = _on_request(folder)
            figures |= found | _of_matrices(folder)
        # What could not be read may be there the next time.
        if before is not None and not left_out and lacking == len(self.without_partition):
            before.put(record["trial"], stamp, ReadTrial(figures, experiment, summary, table))
        return figures

    def _noted(self, trial: str, read: ReadTrial) -> dict[str, Any]:
        """Note a trial's facts and evaluations; return its figures."""
        self.facts[trial] = facts_of(read.experiment, read.summary, _lineage(read.experiment))
        if read.evaluations is not None:
            self.evaluations[trial] = read.evaluations
        return read.figures

    def _evaluations(self, folder: Path, experiment: Mapping[str, Any]) -> pa.Table | None:
        """Read the evaluations along the lineage, with simulated time if devices are supposed; None without any."""
        if not os.path.lexists(folder / "evaluations.parquet"):
            return None
        table = RunFolder(folder).arrow("evaluations", COLUMNS)
        table = _along(table, experiment)
        if self.devices is None:
            return table
        places = zip(table["stage"].to_pylist(), table["round"].to_pylist(), strict=True)
        seconds = seconds_until(folder, experiment, stage_order(experiment), self.devices, places)
        return table.append_column(CLOCK, pa.array(seconds, pa.float64()))

    def _to_target(self, folder: Path, experiment: Mapping[str, Any], evaluations: pa.Table) -> dict[str, Any]:
        if self.target is None:
            return {}
        order = stage_order(experiment)
        rows = comparable(evaluations.drop_columns(["loss", "class_accuracy"]).to_pylist())
        reached = [row for row in rows if row["accuracy"] is not None and row["accuracy"] >= self.target]
        if not reached:
            return {}
        first = min(reached, key=lambda row: (order[row["stage"]], row["round"]))
        tables = ("rounds", "exchanges")
        columns = ["stage", "round", *communication.BOTH_WAYS]
        sent = (RunFolder(folder).arrow(name, columns).to_pandas() for name in tables)
        until = [communication.until(rows, order, first["stage"], first["round"]) for rows in sent]
        precision = experiment["execution"]["precision"]
        return {
            "rounds_to_target": first["round"],
            "bytes_to_target": sum(communication.of_all(communication.in_bytes(rows, precision)) for rows in until),
            **({"seconds_to_target": first[CLOCK]} if CLOCK in first else {}),
        }

    def _by_partition(
        self, folder: Path, experiment: Mapping[str, Any], by_class: list[float | None]
    ) -> dict[str, float]:
        """Return the metrics of accuracies by class and of who holds which class; {} where the data are elsewhere."""
        try:
            counts = class_counts(folder / "partition.parquet", experiment["data"])
        except FedskewError as error:  # the table does without: the data may be on another machine
            self.without_partition.append(str(error))
            return {}
        if counts.shape[1] != len(by_class):
            raise RunFolderError(
                f"{folder / 'evaluations.parquet'} is of {len(by_class)} classes, not {counts.shape[1]}"
            )
        return {**over_clients(counts, by_class), **by_rows(counts.sum(axis=0), by_class)}


def _on_request(folder: Path) -> tuple[dict[str, float], bool]:
    """Return the metrics of the last round that was diagnosed, and of the last whose images were; {} without any.

    And whether something of it was left out, since it cannot be read.
    """
    figures: dict[str, float] = {}
    left_out = False
    for kind in round_folders.KINDS:
        found = round_folders.latest(folder, kind)
        if found is None:
            continue
        try:
            summary, layers = read_json(found / "summary.json"), found / "layers.parquet"
            rows = columns_of(layers, ["layer", "cka"]).to_pylist() if layers.exists() else []
        except RunFolderError as error:  # another command's: the trial's own figures stand
            log.warning("left out: %s", error)
            left_out = True
            continue
        figures |= {name: summary[name] for name in ON_REQUEST if type(summary.get(name)) in (int, float)}
        figures |= {f"{LAYER}{row['layer']}": row["cka"] for row in rows if isinstance(row["cka"], float)}
    return figures, left_out


def _of_matrices(folder: Path) -> dict[str, float]:
    """Return the metrics of the matrices that the server ended with."""
    found = load(folder, COST)
    return {"cost_row_minimum": float(least_on_diagonal(found[COST]).mean())} if found else {}


def over_clients(class_counts: np.ndarray, class_accuracy: list[float | None]) -> dict[str, float]:
    """Compute worst_decile_accuracy and client_std; {} if no client holds data of a tested class.

    Classes without test data have no accuracy, and do not count in the shares. class_counts: int64 [K, C].
    class_accuracy: [C].
    """
    accuracy = np.array(class_accuracy, dtype=float)
    tested = np.isfinite(accuracy)
    counts = class_counts[:, tested]
    counts = counts[counts.sum(axis=1) > 0]
    if not len(counts):
        return {}
    by_client = np.sort(counts @ accuracy[tested] / counts.sum(axis=1))
    worst = by_client[: tenth(len(by_client))]
    return {"worst_decile_accuracy": float(worst.mean()), "client_std": float(by_client.std())}


def personal_rows(folder: Path) -> pa.Table:
    """Read personal.parquet along the lineage of the run in ``folder``, in the file's order; empty if it has none."""
    columns = ["stage", "round", "point", "client", "samples", "accuracy", *MEANS]
    rows = RunFolder(folder).arrow("personal", columns)
    return _along(rows, read_experiment(folder / "experiment.yaml")) if len(rows) else rows


def local_rows(folder: Path) -> pa.Table:
    """Read stage, round and local_accuracy of the rounds that measured it, along the lineage of the run in ``folder``.

    Empty if none did: then the experiment, which takes longer to read, is left alone.
    """
    rows = RunFolder(folder).arrow("rounds", ["stage", "round", "local_accuracy"])
    measured = rows.filter(~pc.field("local_accuracy").is_nan())  # nor null
    return _along(measured, read_experiment(folder / "experiment.yaml")) if len(measured) else measured


def _along(table: pa.Table, experiment: Mapping[str, Any]) -> pa.Table:
    """Keep the rows of the stages of the lineage."""
    return table.filter(pc.field("stage").isin(sorted(_lineage(experiment))))


# --- the data behind them -----------------------------------------------------------------------------


def class_counts(partition: Path, data: Mapping[str, Any]) -> np.ndarray:
    """Count the samples of each client and class, int64 [K, C]; :class:`DataError` if partition or data are not there.

    A partition's file names rows of the data set, so the labels are read from that: once, and the counts of trials
    that share a partition are made once.
    """
    if not partition.exists():
        raise DataError(f"{partition}: there is no such partition")
    section = json.dumps(data, sort_keys=True)
    try:
        key = hashlib.sha256(read_bytes(partition)).hexdigest(), section
    except OSError as error:
        raise DataError(f"{partition}: cannot be read ({error})") from None
    if key not in _counts:
        found = _labels(section)
        if isinstance(found, Exception):
            raise DataError(f"data.name={data['name']}: cannot be read ({found})")
        labels, classes, fingerprint = found
        assignment = Assignment.load(partition)
        if assignment.data != fingerprint:
            raise DataError(f"{partition}: was drawn from other data than data.name={data['name']} gives now")
        if len(_counts) >= MOST_COUNTS:
            _counts.clear()
        _counts[key] = assignment.class_counts(labels, classes)
    return _counts[key]


_counts: dict[tuple[str, str], np.ndarray] = {}  # by the partition's bytes and the data section


@lru_cache(maxsize=8)
def _labels(section: str) -> tuple[np.ndarray, int, str] | Exception:
    """Read the labels of the training split, the number of classes and the data's fingerprint; or return the error.

    An error is kept too, so that a sweep whose data are elsewhere does not look for them once a trial.
    """
    try:
        dataset = SOURCES.build(json.loads(section)).load()
    except (FedskewError, OSError) as error:
        return error
    return dataset.train.labels.copy(), len(dataset.classes), dataset.fingerprint


def _lineage(experiment: Mapping[str, Any]) -> set[str]:
    """Find the lineage of an experiment as data: to build one takes longer than all else for 500 trials."""
    return lineage_of({stage["name"]: stage["needs"] for stage in experiment["stages"]} or {"train": ()})


def stage_order(experiment: Mapping[str, Any]) -> dict[str, int]:
    """Return the place of each stage of the lineage; a stage comes after what it needs."""
    names, lineage = [stage["name"] for stage in experiment["stages"]] or ["train"], _lineage(experiment)
    return {name: number for number, name in enumerate(names) if name in lineage}


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = safe_yaml.read(path)
    except (OSError, safe_yaml.NotYaml) as error:
        raise RunFolderError(f"{path} cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise RunFolderError(f"{path} cannot be read (it holds no mapping)")
    return values


def read_experiment(path: Path) -> dict[str, Any]:
    """Read an experiment as data; :class:`RunFolderError` if it lacks the sections that are read of it."""
    values = read_yaml(path)
    if not _is_experiment(values):
        raise RunFolderError(f"{path} cannot be read (it is not an experiment of this version)")
    return values


def _is_experiment(values: Mapping[str, Any]) -> bool:
    data, stages, execution = values.get("data"), values.get("stages"), values.get("execution")
    sections = isinstance(data, dict) and "name" in data and isinstance(execution, dict) and "precision" in execution
    return sections and isinstance(stages, list) and _are_stages(stages)


def _are_stages(stages: list[Any]) -> bool:
    """Return whether each stage has a name and needs none but those before it."""
    known: set[str] = set()
    for stage in stages:
        if not isinstance(stage, dict) or not isinstance(stage.get("name"), str):
            return False
        needs = stage.get("needs")
        if not isinstance(needs, list) or not all(isinstance(name, str) and name in known for name in needs):
            return False
        known.add(stage["name"])
    return True


def read_json(path: Path) -> dict[str, Any]:
    """Read the mapping in a JSON file; :class:`RunFolderError` if it cannot be read, or holds none."""
    try:
        return fields.load(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error})") from None


def columns_of(path: Path, names: list[str] | None = None) -> pa.Table:
    try:
        return parquet.read(path, names)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path} cannot be read ({error})") from None
