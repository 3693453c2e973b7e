"""The rows of each frame, as Arrow tables, made from folders."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from engine.base.errors import FedskewError, RunFolderError, one_line, require
from engine.record.metrics import EVALUATED
from engine.record.numerics import UNKNOWN
from engine.record.run_folder import RunFolder
from engine.results.class_figures import is_class_figure
from engine.results.facts import Facts
from engine.results.frames.frame_columns import FIXED, TABLES, schema
from engine.results.results import Results
from engine.results.settings import setting_label
from engine.results.simulated_time import CLOCK, Devices, seconds_until
from engine.results.trials import LAYER, stage_order

log = logging.getLogger("fedskew")
Row = dict[str, Any]


def trials(folders: Mapping[str, Results]) -> pa.Table:
    """Make the table of trials: fixed columns around one for each axis and each figure that is asked for."""
    made = [row for source, results in folders.items() for row in _trials(source, results)]
    axes: dict[str, str] = {}
    for name, key in ((axis.name, axis.key) for results in folders.values() for axis in results.axes):
        if axes.setdefault(name, key) != key:
            log.warning("column %s is %s of one sweep and %s of another", name, axes[name], key)
        require(name not in FIXED, "axis", name, "is also a column of every trial", "give the axis another name")
    figures = dict.fromkeys(
        name
        for results in folders.values()
        for name in results.trials
        if _is_figure(results, name) and name not in axes
    )
    arrays: dict[str, pa.Array] = {}
    for one in TABLES["trials"]:
        if one.name in FIXED:
            arrays[one.name] = pa.array([row.get(one.name) for row in made], one.type)
        else:
            for name in figures if pa.types.is_floating(one.type) else axes:
                values = [row["of_sweep"].get(name, _NOTHING) for row in made]
                arrays[name] = _of_figure(values) if name in figures else _of_axis(values)
    return pa.table(arrays)


def of_runs(folders: Mapping[str, Results], name: str) -> pa.Table:
    """Make a table of the runs behind all trials; one whose files are damaged is noted in its ``unread``."""
    parts = [schema(name).empty_table()]
    for source, results in folders.items():
        columns = results.trials[["trial", "seed", "status", "folder"]]
        for trial, seed, status, folder in columns.itertuples(index=False):
            facts = results.facts.get(trial)
            if status in ("damaged", "missing") or facts is None:
                continue
            place = results.path / folder
            try:
                table = _READERS[name](place)
                table = _clocked(table, place, facts, results.devices) if name == "rounds" else table
            except RunFolderError as error:
                results.unread[trial] = one_line(str(error))
                continue
            if len(table):
                row = {"source": source, "sweep": _sweep(results), "trial": trial, "seed": seed}
                row["digest"] = _digest(*_hashes(place, facts))
                parts.append(_whole(name, table, row, facts.lineage))
    return pa.concat_tables(parts).combine_chunks()


# --- trials ---------------------------------------------------------------------------------------------


class _Nothing:
    """Stands where a row has no value of an axis or of a figure."""


_NOTHING = _Nothing()


def _trials(source: str, results: Results) -> Iterable[Row]:
    axes = [axis.name for axis in results.axes]
    for row in results.trials.to_dict("records"):
        facts = results.facts.get(row["trial"])
        setting = {name: row[name] for name in axes}
        own = {name: row[name] for name in row if name in axes or _is_figure(results, name)}
        fixed = {name: _plain(value) for name, value in row.items() if name in FIXED}
        known = {**facts.names, "code": facts.code} if facts else {}
        experiment, code = _hashes(results.path / row["folder"], facts) if facts else (None, None)
        yield {
            **fixed,
            **known,
            "source": source,
            "sweep": _sweep(results),
            "digest": _digest(experiment, code),
            "setting": setting_label(setting),
            "profile": results.profile,
            "experiment": experiment,
            "of_sweep": own,
        }


def _is_figure(results: Results, name: str) -> bool:
    """Return whether a column of the trials is one that not every sweep has."""
    return name.startswith(LAYER) or is_class_figure(name) or name in results.own


def _sweep(results: Results) -> str | None:
    return results.name if results.profile is not None else None


def _hashes(folder: Path, facts: Facts) -> tuple[str | None, str | None]:
    """Return the hashes of a trial's experiment and code; of one that has not ended the first is computed here."""
    if facts.experiment is not None:
        return facts.experiment, facts.code
    try:
        return RunFolder(folder).experiment().digest, facts.code
    except FedskewError:  # of parts that are not known here, or of another version
        return None, facts.code


def _digest(experiment: str | None, code: str | None) -> str | None:
    if experiment is None:
        return None
    return hashlib.sha256(f"{experiment} {code or UNKNOWN}".encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return null for what pandas has for a number that is not there."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _of_figure(values: list[Any]) -> pa.Array:
    return pa.array([None if value is _NOTHING else _plain(value) for value in values], pa.float64())


def _of_axis(values: list[Any]) -> pa.Array:
    """Return an axis' values in the type that all of them have, or as JSON."""
    there = [value for value in values if value is not _NOTHING]
    kinds = {type(value) for value in there}
    for types, kind in (({bool}, pa.bool_()), ({int}, pa.int64()), ({int, float}, pa.float64()), ({str}, pa.string())):
        if kinds <= types:
            return pa.array([None if value is _NOTHING else value for value in values], kind)
    texts = [None if value is _NOTHING else json.dumps(value, sort_keys=True) for value in values]
    return pa.array(texts, pa.string())


# --- the tables of runs ---------------------------------------------------------------------------------


def _whole(name: str, table: pa.Table, row: Row, lineage: frozenset[str]) -> pa.Table:
    """Put the trial's own columns before its rows, in the order and the types of the documented ones."""
    wanted = schema(name)
    arrays = []
    for column in wanted:
        if column.name in row:
            arrays.append(pa.repeat(pa.scalar(row[column.name], column.type), len(table)))
        elif column.name == "in_lineage":
            arrays.append(pa.array([stage in lineage for stage in table["stage"].to_pylist()], pa.bool_()))
        elif column.name == "reused":
            arrays.append(table["reused"].fill_null(False))
        else:
            arrays.append(table[column.name])
    return pa.table(arrays, schema=wanted)


def _rounds(folder: Path) -> pa.Table:
    """Read the rounds, each with its evaluation; an evaluation of no round of its own is a row of its own."""
    run = RunFolder(folder)
    rounds, evaluations = run.rounds.arrow(), run.evaluations.arrow()
    places = list(zip(evaluations["stage"].to_pylist(), evaluations["round"].to_pylist(), strict=True))
    number_of = {place: number for number, place in enumerate(places)}
    here = list(zip(rounds["stage"].to_pylist(), rounds["round"].to_pylist(), strict=True))
    taken = [number_of.get(place) for place in here]
    rest = sorted(set(range(len(places))) - set(taken) - {None})
    both = pa.concat_tables(
        [rounds, evaluations.select(["stage", "round", "reused"]).take(pa.array(rest, pa.int64()))],
        promote_options="default",
    )
    index = pa.array([*taken, *rest], pa.int64())
    for mine, recorded in (("scope", "scope"), *((one, one) for one in EVALUATED), ("test_samples", "samples")):
        both = both.append_column(mine, evaluations[recorded].combine_chunks().take(index))
    return both


def _clocked(rounds: pa.Table, folder: Path, facts: Facts, devices: Devices | None) -> pa.Table:
    """Add the simulated seconds until the end of each round."""
    seconds: list[float | None] = [None] * len(rounds)
    if devices is not None:
        places = zip(rounds["stage"].to_pylist(), rounds["round"].to_pylist(), strict=True)
        seconds = seconds_until(folder, facts.values, stage_order(facts.values), devices, places)
    return rounds.append_column(CLOCK, pa.array(seconds, pa.float64()))


def _classes(folder: Path) -> pa.Table:
    """Read the evaluations with a row for each class."""
    path = folder / "evaluations.parquet"
    table = RunFolder(folder).evaluations.arrow().combine_chunks()
    accuracy: Any = pa.concat_arrays(table["class_accuracy"].chunks)
    samples: Any = pa.concat_arrays(table["class_samples"].chunks)
    row = accuracy.value_parent_indices()
    if not row.equals(samples.value_parent_indices()):
        raise RunFolderError(f"{path} cannot be read (its classes have accuracies and samples of other numbers)")
    number = pd.Series(row.to_pandas()).groupby(row.to_pandas()).cumcount()
    made = table.select(["stage", "round", "scope", "reused"]).take(row)
    made = made.append_column("class", pa.array(number, pa.int64()))
    made = made.append_column("accuracy", accuracy.flatten()).append_column("samples", samples.flatten())
    precision: Any = pa.concat_arrays(table["class_precision"].chunks)
    known, values = np.isin(row, np.flatnonzero(precision.is_valid())), precision.flatten()  # some may be of 0.1
    if known.sum() != len(values):
        raise RunFolderError(f"{path} cannot be read (its classes have accuracies and precisions of other numbers)")
    filled = np.full(len(row), np.nan)
    filled[known] = values.to_numpy(zero_copy_only=False)
    return made.append_column("precision", pa.array(filled, from_pandas=True))


_READERS: dict[str, Callable[[Path], pa.Table]] = {
    "rounds": _rounds,
    "clients": lambda folder: RunFolder(folder).arrow("clients"),
    "classes": _classes,
    "personal": lambda folder: RunFolder(folder).arrow("personal"),
}
