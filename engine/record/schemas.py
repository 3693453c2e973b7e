"""The columns of a run's tables."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

Row = dict[str, Any]  # of a table: column -> value

SCHEMAS = {
    "rounds": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),  # global, from 1
            ("lr", pa.float64()),
            ("clients", pa.int64()),  # in the cohort, without those that failed
            ("failed", pa.int64()),  # clients that were left out, see participation.on_client_error
            ("samples", pa.int64()),  # of these clients
            ("steps", pa.int64()),  # optimizer steps, over these clients
            ("loss_before", pa.float64()),  # mean over the cohort by samples; see clients
            ("loss_after", pa.float64()),
            ("local_accuracy", pa.float64()),  # mean of the local models on the test set, before aggregation
            ("update_norm", pa.float64()),  # Euclidean norm of the global weights' change
            ("weights_sha256", pa.string()),  # of the global model right after aggregation
            ("floats_up", pa.int64()),
            ("floats_down", pa.int64()),
            ("scalars", pa.map_(pa.string(), pa.float64())),  # the server's entries of kind scalar after the round
            ("seconds", pa.float64()),  # of the round without evaluation
            ("evaluation_seconds", pa.float64()),
            ("reused", pa.bool_()),  # computed by another run, and taken over with its figures
        ]
    ),
    "clients": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            ("client", pa.int64()),
            ("samples", pa.int64()),
            ("steps", pa.int64()),
            ("loss_before", pa.float64()),  # the objective on the client's first batch, before its first step
            ("loss_after", pa.float64()),  # on the same batch, after its last step
            ("local_accuracy", pa.float64()),  # of the local model on the test set, every evaluation.local_every rounds
            ("seconds", pa.float64()),
            ("floats_up", pa.int64()),
            ("floats_down", pa.int64()),
            ("actor", pa.int64()),  # where it ran; with seconds and reused, all that may differ between equal runs
            ("reused", pa.bool_()),
        ]
    ),
    "evaluations": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            # global: the global model on the whole test set; personal, where there is none: clients' own models, each
            # on its own share of the test rows, all rows together
            ("scope", pa.string()),
            ("accuracy", pa.float64()),  # a fraction
            ("loss", pa.float64()),  # mean cross entropy; null: not finite, as for a class that the model cannot name
            ("samples", pa.int64()),
            ("class_accuracy", pa.list_(pa.float64())),
            ("class_samples", pa.list_(pa.int64())),
            ("reused", pa.bool_()),
        ]
    ),
    # Clients' own models, each on its own share of the test rows.
    "personal": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            ("client", pa.int64()),
            # received: what a participant of the round got, with what it keeps, before its local work
            # post_local: the same after its local work, before the server's step
            # post_server: what every client would get next, with what it keeps
            # fine_tuned: that after fine-tuning, at the end of the run, if asked for
            # held_out, held_out_tuned: the last two of clients that never train
            ("point", pa.string()),
            ("participant", pa.bool_()),  # in the round's cohort
            ("samples", pa.int64()),  # the client's test rows, at least one
            ("accuracy", pa.float64()),  # a fraction
            ("loss", pa.float64()),  # mean cross entropy; null: not finite, as for a class that the model cannot name
            ("reused", pa.bool_()),
        ]
    ),
    # Messages outside rounds, in numbers of any kind: of clients.map as they were given, see the contract.
    "exchanges": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),  # after which it took place: the last of the stage before, or of the stage
            ("when", pa.string()),  # prepare, finish: the method that asked; start: what is sent once and kept
            ("exchange", pa.int64()),  # counts the passes over the clients of that method, from 1
            ("client", pa.int64()),
            ("samples", pa.int64()),
            ("floats_up", pa.int64()),
            ("floats_down", pa.int64()),
            ("reused", pa.bool_()),
        ]
    ),
    "failures": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            ("client", pa.int64()),
            ("step", pa.int64()),  # from which on something was not finite, from 1; null: not known, or it raised
            ("reason", pa.string()),
            ("reused", pa.bool_()),
        ]
    ),
}


def finite(value: float | None) -> float | None:
    """Return ``value``, or None for infinity and NaN: a null in a table, and JSON has no word for them."""
    return value if value is not None and math.isfinite(value) else None
