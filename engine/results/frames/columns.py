"""Every column of every frame: its name, its Arrow type, its unit and what it holds. ``docs/schema.md`` is this file.

The names and types here are a promise: a column may be added, and none goes or changes its type. Each table begins with
:data:`ROW`, which says whose row it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from engine.record.metrics import ALL, OF_RUN, ON_REQUEST, Metric

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_FRACTION, _SECONDS, _ROUNDS, _FLOATS, _ROWS, _NATS = "fraction", "seconds", "rounds", "floats", "rows", "nats"


@dataclass(frozen=True)
class Column:
    """A column of a frame."""

    name: str
    type: pa.DataType
    unit: str  # "" where a number has none, and of text
    meaning: str  # a sentence
    lacking: bool = True  # whether it may be null


def _sure(name: str, kind: pa.DataType, unit: str, meaning: str) -> Column:
    """Make a column that is never null."""
    return Column(name, kind, unit, meaning, lacking=False)


ROW = (
    _sure("source", TEXT, "", "Name of the folder that the row was read from; with its parents where two have one."),
    Column("sweep", TEXT, "", "Name of the sweep; null of a run by itself."),
    _sure("trial", TEXT, "", "Number of the trial in its sweep; of a run by itself the name of its folder."),
    Column(
        "digest",
        TEXT,
        "",
        "16 hex digits of the experiment and of the code that computed it: equal digests are the same computation. Of "
        "a trial that has not ended the code is not known yet and counts as unknown; null without a readable "
        "experiment.",
    ),
    _sure("seed", WHOLE, "", "The experiment's seed."),
)

# --- trials ---------------------------------------------------------------------------------------------

AXES = "AXIS"  # stands for the columns of the sweeps' axes, behind those of ROW
FIGURES = "FIGURE"  # stands for the figures that a sweep asks for beside all others, at the end

_SMALL_UNITS = {"%": _FRACTION, "MB": "bytes", "M": _FLOATS, "s": _SECONDS}
_UNITS = {"loss": _NATS, "floats_up": _FLOATS, "floats_down": _FLOATS}
_COUNTED = ("rounds", "rounds_asked", "rounds_computed")  # whole numbers of every trial, 0 of one that has not begun


def _metric(metric: Metric) -> Column:
    """Make the column of a metric, in the unit that it is stored in."""
    if metric.name in _COUNTED:
        return _sure(metric.name, WHOLE, _ROUNDS, metric.meaning)
    unit = _SMALL_UNITS.get(metric.unit) or _UNITS.get(metric.name) or (_ROUNDS if "round" in metric.name else "")
    return Column(metric.name, REAL, unit, metric.meaning)


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
    _sure(
        "status",
        TEXT,
        "",
        "finished, stopped (early, by a scheduler or a rule), failed, running, damaged or missing (planned, and "
        "without a record).",
    ),
    Column("reason", TEXT, "", "Why a trial failed, was stopped or is damaged."),
    _sure("setting", TEXT, "", "The values of the axes in one line, as reports label them; empty without axes."),
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
    _sure("folder", TEXT, "", "The trial's folder, from that of its source."),
    Column(
        FIGURES,
        REAL,
        "",
        "One column for each further figure: class_accuracy[...] and class_std, if a sweep or metric= asks for them; "
        "cka_of_LAYER of trials that fedskew diagnose has looked into.",
    ),
)

# --- the tables of runs ---------------------------------------------------------------------------------

_STAGE = _sure("stage", TEXT, "", "Name of the stage; train where none is named.")
_ROUND = _sure("round", WHOLE, _ROUNDS, "The round, counted from 1; a stage counts on from the one that it needs.")
_LINEAGE = _sure("in_lineage", TRUTH, "", "Whether the last stage comes from this one, or is it.")
_REUSED = _sure("reused", TRUTH, "", "Computed by another run, and taken over with its figures.")
_UP = Column("floats_up", WHOLE, _FLOATS, "Floats that the clients sent in this round.")
_DOWN = Column("floats_down", WHOLE, _FLOATS, "Floats that the clients received in this round.")
_LOCAL = "accuracy on the test set before aggregation, in rounds that measure it (evaluation.local_every)."
_SCOPE = "global: the global model on the test set; personal: clients' own models, each on its own test rows."

ROUNDS = (
    *ROW,
    _STAGE,
    _ROUND,
    _LINEAGE,
    Column("lr", REAL, "", "Learning rate of the local steps."),
    Column("clients", WHOLE, "clients", "Clients in the cohort, without those that failed."),
    Column("failed", WHOLE, "clients", "Clients that were left out because they failed."),
    Column("samples", WHOLE, _ROWS, "Training rows of the cohort."),
    Column("steps", WHOLE, "steps", "Optimiser steps of the cohort, added up."),
    Column("loss_before", REAL, _NATS, "Mean over the cohort, by samples, of the clients' loss before local work."),
    Column("loss_after", REAL, _NATS, "The same after local work."),
    Column("local_accuracy", REAL, _FRACTION, f"Mean of the cohort's local models' {_LOCAL}"),
    Column("update_norm", REAL, "", "Euclidean norm of the global weights' change."),
    Column("weights_sha256", TEXT, "", "SHA-256 of the global weights after aggregation."),
    _UP,
    _DOWN,
    Column("scalars", pa.map_(TEXT, REAL), "", "The server's entries of kind scalar after the round, by name."),
    Column("seconds", REAL, _SECONDS, "Time of the round without its evaluation."),
    Column("evaluation_seconds", REAL, _SECONDS, "Time of its evaluation."),
    _REUSED,
    Column("scope", TEXT, "", f"Of the evaluation after the round. {_SCOPE} Null in a round without one."),
    Column("accuracy", REAL, _FRACTION, "Test accuracy after the round; null in a round that was not evaluated."),
    Column("loss", REAL, _NATS, "Mean cross entropy on the test rows; null too where it is not finite."),
    Column("test_samples", WHOLE, _ROWS, "Test rows of the evaluation."),
)

CLIENTS = (
    *ROW,
    _STAGE,
    _ROUND,
    _LINEAGE,
    _sure("client", WHOLE, "", "Number of the client, from 0."),
    Column("samples", WHOLE, _ROWS, "Training rows of the client."),
    Column("steps", WHOLE, "steps", "Its optimiser steps in this round."),
    Column("loss_before", REAL, _NATS, "Its objective on its first batch before its first step."),
    Column("loss_after", REAL, _NATS, "The same, on the same batch, after its last step."),
    Column("local_accuracy", REAL, _FRACTION, f"The local model's {_LOCAL}"),
    Column("seconds", REAL, _SECONDS, "Time of its local work."),
    Column("floats_up", WHOLE, _FLOATS, "Floats that it sent."),
    Column("floats_down", WHOLE, _FLOATS, "Floats that it received."),
    Column("actor", WHOLE, "", "Number of the actor that it ran on; may differ between equal runs, as seconds do."),
    _REUSED,
)

CLASSES = (
    *ROW,
    _STAGE,
    _ROUND,
    _LINEAGE,
    Column("scope", TEXT, "", f"Of the evaluation. {_SCOPE}"),
    _sure("class", WHOLE, "", "Number of the class, from 0."),
    Column("accuracy", REAL, _FRACTION, "Test accuracy on the class; null without test rows of it."),
    Column("samples", WHOLE, _ROWS, "Test rows of the class."),
    _REUSED,
)

PERSONAL = (
    *ROW,
    _STAGE,
    _ROUND,
    _LINEAGE,
    _sure("client", WHOLE, "", "Number of the client, from 0."),
    Column(
        "point",
        TEXT,
        "",
        "When in the round: received, post_local, post_server, fine_tuned, held_out or held_out_tuned; see "
        "docs/personal.md.",
    ),
    Column("participant", TRUTH, "", "Whether the client was in the round's cohort."),
    Column("samples", WHOLE, _ROWS, "The client's test rows, at least one."),
    Column("accuracy", REAL, _FRACTION, "Accuracy of the client's model on them."),
    Column("loss", REAL, _NATS, "Mean cross entropy on them; null where it is not finite."),
    _REUSED,
)

TABLES = {"trials": TRIALS, "rounds": ROUNDS, "clients": CLIENTS, "classes": CLASSES, "personal": PERSONAL}
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
    for table, columns in TABLES.items():
        yield from ("", f"## {table}", "", ABOUT[table], "", "| column | type | unit | meaning |", "|---|---|---|---|")
        for one in columns:
            kind = "any" if one.name == AXES else str(one.type)
            yield f"| `{one.name}`{'' if one.lacking else ' *'} | {kind} | {one.unit} | {one.meaning} |"
