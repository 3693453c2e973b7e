"""Every column of every frame: its name, its Arrow type, its unit and what it holds. ``docs/schema.md`` is this file.

The names and types here are a promise: a column may be added, and none goes or changes its type. Each table begins with
:data:`ROW`, which says whose row it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from engine.record import columns
from engine.record.columns import (
    FLOATS,
    FRACTION,
    NATS,
    REAL,
    REUSED,
    ROUND,
    ROWS,
    SCOPE,
    SECONDS,
    STAGE,
    TEXT,
    TRUTH,
    WHOLE,
    Column,
    sure,
)
from engine.record.columns import ROUNDS as ROUND_UNIT
from engine.record.metrics import ALL, EVALUATED, OF_RUN, ON_REQUEST, Metric
from engine.results.simulated_time import CLOCK

ROW = (
    sure("source", TEXT, "", "Name of the folder that the row was read from; with its parents where two have one."),
    Column("sweep", TEXT, "", "Name of the sweep; null of a run by itself."),
    sure("trial", TEXT, "", "Number of the trial in its sweep; of a run by itself the name of its folder."),
    Column(
        "digest",
        TEXT,
        "",
        "16 hex digits of the experiment and of the code that computed it: equal digests are the same computation. Of "
        "a trial that has not ended the code is not known yet and counts as unknown; null without a readable "
        "experiment.",
    ),
    sure("seed", WHOLE, "", "The experiment's seed."),
)

# --- trials ---------------------------------------------------------------------------------------------

AXES = "AXIS"  # stands for the columns of the sweeps' axes, behind those of ROW
FIGURES = "FIGURE"  # stands for the figures that a sweep asks for beside all others, at the end

_SMALL_UNITS = {"%": FRACTION, "MB": "bytes", "M": FLOATS, "s": SECONDS}
_UNITS = {"loss": NATS, "floats_up": FLOATS, "floats_down": FLOATS}
_COUNTED = ("rounds", "rounds_asked", "rounds_computed")  # whole numbers of every trial, 0 of one that has not begun


def _metric(metric: Metric) -> Column:
    """Make the column of a metric, in the unit that it is stored in."""
    if metric.name in _COUNTED:
        return sure(metric.name, WHOLE, ROUND_UNIT, metric.meaning)
    unit = _SMALL_UNITS.get(metric.unit) or _UNITS.get(metric.name) or (ROUND_UNIT if "round" in metric.name else "")
    looked = "fedskew" in metric.source  # a command, which may have looked into an earlier round than the last
    return Column(metric.name, REAL, unit, metric.meaning + f" Of the last round that {metric.source} saw." * looked)


TRIALS = (
    *ROW,
    Column(
        AXES,
        pa.null(),
        "",
        "One column for each axis of the sweeps, under the axis' name, with the trial's value: whole numbers, real "
        "numbers, truths or text where all values are of that kind, otherwise JSON; null in a row whose sweep has no "
        "such axis.",
    ),
    sure(
        "status",
        TEXT,
        "",
        "finished, stopped (early, by a scheduler or a rule), failed, running, damaged or missing (planned, and "
        "without a record).",
    ),
    Column("reason", TEXT, "", "Why a trial failed, was stopped or is damaged."),
    sure("setting", TEXT, "", "The values of the axes in one line, as reports label them; empty without axes."),
    Column("profile", TEXT, "", "Profile of the sweep: laptop or paper; null of a run by itself."),
    Column("experiment", TEXT, "", "12 hex digits of all that a result depends on but code and machine."),
    Column("code", TEXT, "", "16 hex digits of the code that computed the trial; null until it has ended."),
    Column("data_name", TEXT, "", "Name of the data set."),
    Column("partition_name", TEXT, "", "Name of the partition of rows over clients."),
    Column("model_name", TEXT, "", "Name of the model."),
    Column("algorithm_name", TEXT, "", "Name of the algorithm; of several stages that of the last one."),
    *(_metric(metric) for metric in ALL if metric.name in OF_RUN),
    *(_metric(metric) for metric in ALL if metric.name in ON_REQUEST),
    Column(
        "scope",
        TEXT,
        "",
        "What accuracies without a further word are of: global (the global model on the test set) or personal "
        "(clients' own models, each on its own test rows).",
    ),
    Column("breaks_privacy", TRUTH, "", "Whether a stage of the lineage is an oracle that no client would join."),
    Column("weights_sha256", TEXT, "", "SHA-256 of the final global weights: equal for results equal to the bit."),
    Column("parent", TEXT, "", "Trial whose weights this one last copied; null of all but copies in a population."),
    Column("schedule", TEXT, "", "What its weights had from which round on, as JSON; the axes have the last."),
    sure("folder", TEXT, "", "The trial's folder, from that of its source."),
    Column(
        FIGURES,
        REAL,
        "",
        "One column for each further figure: class_accuracy[...] and class_std, if a sweep or metric= asks for them; "
        "cka_of_LAYER of trials that fedskew diagnose has looked into.",
    ),
)

# --- the tables of runs ---------------------------------------------------------------------------------

_LINEAGE = sure("in_lineage", TRUTH, "", "Whether the last stage comes from this one, or is it.")
_OF = {table: {column.name: column for column in columns} for table, columns in columns.TABLES.items()}
_EVALUATION = _OF["evaluations"]


def _of_run(table: str) -> tuple[Column, ...]:
    """Return the columns of a run's table behind those that say whose row it is."""
    return (*ROW, STAGE, ROUND, _LINEAGE, *(one for one in columns.TABLES[table] if one not in (STAGE, ROUND)))


ROUNDS = (
    *_of_run("rounds"),
    Column("scope", TEXT, "", f"Of the evaluation after the round. {SCOPE} Null in a round without one."),
    *(_EVALUATION[name] for name in EVALUATED),
    replace(_EVALUATION["samples"], name="test_samples"),
    Column(
        CLOCK,
        REAL,
        SECONDS,
        "Simulated time until the round's end; null outside the lineage and where no devices are supposed.",
    ),
)

CLASSES = (
    *ROW,
    STAGE,
    ROUND,
    _LINEAGE,
    _EVALUATION["scope"],
    sure("class", WHOLE, "", "Number of the class, from 0."),
    Column("accuracy", REAL, FRACTION, "Test accuracy on the class; null without test rows of it."),
    Column("samples", WHOLE, ROWS, "Test rows of the class."),
    Column("precision", REAL, FRACTION, "Share of the rows predicted to be of the class that are; null without any."),
    REUSED,
)

TABLES = {
    "trials": TRIALS,
    "rounds": ROUNDS,
    "clients": _of_run("clients"),
    "classes": CLASSES,
    "personal": _of_run("personal"),
}
ABOUT = {
    "trials": "One row for each trial of a sweep, whatever became of it, and one for a run by itself.",
    "rounds": "One row for each round of each trial, those that another trial computed included, with the evaluation "
    "after it. A stage without rounds has one row. Messages outside rounds are counted in `trials` alone.",
    "clients": "One row for each client and round of its cohort.",
    "classes": "One row for each class and evaluation.",
    "personal": "One row for each client, round and point at which its own model was evaluated on its own test rows.",
}
FIXED = frozenset(column.name for column in TRIALS) - {AXES, FIGURES}  # names that no axis can have


def schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table; of ``trials`` without the columns that depend on the sweeps."""
    return pa.schema([(one.name, one.type) for one in TABLES[table] if one.name not in (AXES, FIGURES)])


def markdown() -> str:
    """Write ``docs/schema.md``."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# The tables of results",
        "",
        "Made by `fedskew query --columns`; do not edit it. `fedskew.load_results(*folders)` has these tables as "
        "pandas frames (`.trials`, `.rounds`, `.clients`, `.classes`, `.personal`) and as Arrow tables "
        "(`.arrow(name)`); `fedskew query` has them in SQL under the same names. [results.md](results.md) shows both.",
        "",
        "Columns keep their names and types; new ones may be added. A column marked * is never null. In pandas, "
        "whole numbers and truths that may be null have the types `Int64` and `boolean`. Accuracies are fractions.",
    )
    for table, described in TABLES.items():
        yield from ("", f"## {table}", "", ABOUT[table], "", "| column | type | unit | meaning |", "|---|---|---|---|")
        for one in described:
            kind = "any" if one.name == AXES else str(one.type)
            yield f"| `{one.name}`{'' if one.lacking else ' *'} | {kind} | {one.unit} | {one.meaning} |"
