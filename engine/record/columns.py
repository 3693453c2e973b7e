"""Every column of a run's tables: its name, its Arrow type, its unit and what it holds.

The tables of results are made of these columns (``engine/results/frames/frame_columns.py``); the metrics of whole runs
are in ``metrics.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Row = dict[str, Any]  # of a table: column -> value

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
FRACTION, SECONDS, ROUNDS, FLOATS, ROWS, NATS = "fraction", "seconds", "rounds", "floats", "rows", "nats"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: pa.DataType
    unit: str  # "" where a number has none, and of text
    meaning: str  # a sentence
    lacking: bool = True  # whether it may be null
    later: bool = False  # whether files of earlier versions lack it; it is null then


def sure(name: str, kind: pa.DataType, unit: str, meaning: str) -> Column:
    """Make a column that is never null."""
    return Column(name, kind, unit, meaning, lacking=False)


def _later(name: str, kind: pa.DataType, unit: str, meaning: str) -> Column:
    """Make a column that files of version 0.1 lack."""
    return Column(name, kind, unit, meaning, later=True)


STAGE = sure("stage", TEXT, "", "Name of the stage; train where none is named.")
ROUND = sure("round", WHOLE, ROUNDS, "The round, counted from 1; a stage counts on from the one that it needs.")
REUSED = sure("reused", TRUTH, "", "Computed by another run, and taken over with its figures.")
CLIENT = sure("client", WHOLE, "", "Number of the client, from 0.")
SCOPE = "global: the global model on the test set; personal: clients' own models, each on its own test rows."
MOST_CLASSES = 100  # of an evaluation that has its confusion matrix: 10,000 numbers, some kilobytes in the file
_F1 = "2 * right / (rows of the class + rows predicted to be of it); a class with neither is left out"
_BRIER = "Brier score: mean squared distance of the softmax scores [C] from the label as a one-hot vector, 0 to 2"
_ECE = "mean over test rows of the distance between confidence and accuracy of their bin"
_BINS = "15 bins of equal width of the confidence, the softmax score of the predicted class"
_LOCAL = "accuracy on the test set before aggregation, in rounds that measure it (evaluation.local_every)."

# What a round's time goes into. At each moment the driver is in one of them, so that they add up to it.
PHASES = {
    "draw": "its cohort is drawn and cut into blocks; a stage's first is tried before",
    "broadcast": "what clients get is made, and sent to workers",
    "training": "the driver waits for results while every worker is at work; in process, clients train",
    "wait": "the driver waits for the last results while a worker has nothing to do",
    "transfer": "results come in from workers' memory",
    "addition": "the driver adds results",
    "aggregation": "the server takes its own steps, at a stage's end too, and rows are made",
    "evaluation": "models are evaluated after it",
}

TABLES: dict[str, tuple[Column, ...]] = {
    "rounds": (
        STAGE,
        ROUND,
        Column("lr", REAL, "", "Learning rate of the local steps."),
        Column("clients", WHOLE, "clients", "Clients in the cohort, without those that were left out."),
        Column("failed", WHOLE, "clients", "Clients that were left out because they failed."),
        Column("samples", WHOLE, ROWS, "Training rows of the cohort."),
        Column("steps", WHOLE, "steps", "Optimiser steps of the cohort, added up."),
        Column("loss_before", REAL, NATS, "Mean over the cohort, by samples, of the clients' loss before local work."),
        Column("loss_after", REAL, NATS, "The same after local work."),
        Column("local_accuracy", REAL, FRACTION, f"Mean of the cohort's local models' {_LOCAL}"),
        Column("update_norm", REAL, "", "Euclidean norm of the global weights' change."),
        Column("weights_sha256", TEXT, "", "SHA-256 of the global weights after aggregation."),
        Column("floats_up", WHOLE, FLOATS, "Floats that the clients sent in this round."),
        Column("floats_down", WHOLE, FLOATS, "Floats that the clients received in this round."),
        Column("scalars", pa.map_(TEXT, REAL), "", "The server's entries of kind scalar after the round, by name."),
        Column("seconds", REAL, SECONDS, "Time of the round without its evaluation: its other phases, added up."),
        *(_later(f"{name}_seconds", REAL, SECONDS, f"In it, {it}.") for name, it in PHASES.items()),
        _later("bytes_in", WHOLE, "bytes", "Bytes of the results that came in from workers; 0 in process."),
        REUSED,
    ),
    "clients": (
        STAGE,
        ROUND,
        CLIENT,
        Column("samples", WHOLE, ROWS, "Training rows of the client."),
        Column("steps", WHOLE, "steps", "Its optimiser steps in this round."),
        Column("loss_before", REAL, NATS, "Its objective on its first batch before its first step."),
        Column("loss_after", REAL, NATS, "The same, on the same batch, after its last step."),
        Column("local_accuracy", REAL, FRACTION, f"The local model's {_LOCAL}"),
        Column("seconds", REAL, SECONDS, "Time of its local work."),
        Column("floats_up", WHOLE, FLOATS, "Floats that it sent."),
        Column("floats_down", WHOLE, FLOATS, "Floats that it received."),
        Column("actor", WHOLE, "", "Number of the actor that it ran on; may differ between equal runs, as seconds do."),
        REUSED,
    ),
    "evaluations": (
        STAGE,
        ROUND,
        Column("scope", TEXT, "", f"Of the evaluation. {SCOPE}"),
        Column("accuracy", REAL, FRACTION, "Test accuracy after the round; null in a round that was not evaluated."),
        Column("loss", REAL, NATS, "Mean cross entropy on the test rows; null too where it is not finite."),
        _later("balanced_accuracy", REAL, FRACTION, "Mean over the classes with test rows of the accuracy on them."),
        _later("macro_f1", REAL, FRACTION, f"Mean over classes of {_F1}."),
        _later("worst_class_accuracy", REAL, FRACTION, "The lowest accuracy on a class with test rows."),
        _later("brier", REAL, "", f"{_BRIER}; null where it is not finite."),
        _later("ece", REAL, FRACTION, f"Expected calibration error: {_ECE}; null where it is not finite."),
        Column("samples", WHOLE, ROWS, "Test rows of the evaluation."),
        Column("class_accuracy", pa.list_(REAL), FRACTION, "Test accuracy on each class; null without test rows."),
        Column("class_samples", pa.list_(WHOLE), ROWS, "Test rows of each class."),
        _later(
            "class_precision",
            pa.list_(REAL),
            FRACTION,
            "Share of the rows predicted to be of each class that are; null where none is predicted to be.",
        ),
        _later(
            "confusion",
            pa.list_(WHOLE),
            ROWS,
            "Test rows of each true class (rows) and predicted class (columns), [C, C] row by row; null with more than "
            f"{MOST_CLASSES} classes.",
        ),
        _later("own", pa.map_(TEXT, REAL), "", "Metrics of your own (`evaluation.metrics`); null without any."),
        _later("bin_samples", pa.list_(WHOLE), ROWS, f"Test rows in each of {_BINS}."),
        _later("bin_confidence", pa.list_(REAL), FRACTION, "Their mean confidence; null without test rows."),
        _later("bin_accuracy", pa.list_(REAL), FRACTION, "The accuracy on them; null without test rows."),
        REUSED,
    ),
    "personal": (
        STAGE,
        ROUND,
        CLIENT,
        Column(
            "point",
            TEXT,
            "",
            # received: what a participant of the round got, with what it keeps, before its local work
            # post_local: the same after its local work, before the server's step
            # post_server: what every client would get next, with what it keeps
            # fine_tuned: that after fine-tuning, at the end of the run, if asked for
            # held_out, held_out_tuned: the last two of clients that never train
            "When in the round: received, post_local, post_server, fine_tuned, held_out or held_out_tuned; see "
            "docs/personal.md.",
        ),
        Column("participant", TRUTH, "", "Whether the client was in the round's cohort."),
        Column("samples", WHOLE, ROWS, "The client's test rows, at least one."),
        Column("accuracy", REAL, FRACTION, "Accuracy of the client's model on them."),
        Column("loss", REAL, NATS, "Mean cross entropy on them; null where it is not finite."),
        _later("balanced_accuracy", REAL, FRACTION, "Mean over the classes among them of the accuracy on these."),
        _later("macro_f1", REAL, FRACTION, f"Mean over classes of {_F1}."),
        _later("brier", REAL, "", f"{_BRIER}; null where it is not finite."),
        REUSED,
    ),
    # Messages outside rounds, in numbers of any kind: of clients.map as they were given, see the contract.
    "exchanges": (
        STAGE,
        sure("round", WHOLE, ROUNDS, "After which it took place: the last of the stage before, or of the stage."),
        Column("when", TEXT, "", "The method that asked: prepare, finish; start: what is sent once and kept."),
        Column("exchange", WHOLE, "", "Number of the pass over the clients of that method, from 1."),
        CLIENT,
        Column("samples", WHOLE, ROWS, "Training rows of the client."),
        Column("floats_up", WHOLE, FLOATS, "Floats that it sent."),
        Column("floats_down", WHOLE, FLOATS, "Floats that it received."),
        REUSED,
    ),
    "failures": (
        STAGE,
        ROUND,
        CLIENT,
        Column("step", WHOLE, "steps", "First step (from 1) that was not finite; null: not known, or it raised."),
        Column("reason", TEXT, "", "Why the client was left out."),
        REUSED,
    ),
}
HOW_IT_WENT = ["seconds", *(f"{name}_seconds" for name in PHASES), "bytes_in", "actor"]  # may differ of equal runs
LATER = {name: frozenset(one.name for one in columns if one.later) for name, columns in TABLES.items()}
SCHEMAS = {name: pa.schema([(one.name, one.type) for one in columns]) for name, columns in TABLES.items()}


def finite(value: float | None) -> float | None:
    """Return ``value``, or None for infinity and NaN: a null in a table, and JSON has no word for them."""
    return value if value is not None and math.isfinite(value) else None
