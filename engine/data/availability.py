"""Tables that say in which rounds a client is there, ``participation.availability``."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from engine.base import parquet
from engine.base.errors import ConfigError, DataError
from engine.base.files import expanded

FIELD = "participation.availability"
REPAIR = "give a rate, or a parquet file of who is there when"
ROUND, SPAN = ("round", "client"), ("client", "first_round", "last_round")  # the columns of either kind of table
NO_END = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Availability:
    """Spans of rounds in which clients are there: int64 [N, 3] of client, first and last round, both included.

    Rows are sorted, and those of a client neither overlap nor touch, so that tables that say the same are the same.
    """

    spans: np.ndarray

    @classmethod
    def of(cls, spans: np.ndarray) -> Availability:
        """Merge spans [n, 3] that overlap or touch."""
        merged: list[list[int]] = []
        for client, first, last in np.unique(spans, axis=0).tolist():
            if merged and merged[-1][0] == client and first <= merged[-1][2] + 1:
                merged[-1][2] = max(merged[-1][2], last)
            else:
                merged.append([client, first, last])
        return cls(np.array(merged, dtype=np.int64).reshape(-1, 3))

    def present(self, round: int) -> np.ndarray:
        """Return the clients that are there in ``round`` (global, from 1), ascending, int64 [n]."""
        client, first, last = self.spans.T
        return client[(first <= round) & (round <= last)]

    def levels(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many of ``clients`` are there, int64 [n], and for how many rounds it is that many, int64 [n].

        Over the rounds from 1 to the last that the table names.
        """
        _, first, last = self.spans.T
        end = int(max(first.max(), last[last < NO_END].max(initial=1)))
        _, first, last = self.spans[np.isin(self.spans[:, 0], clients)].T
        comings, goings = first, np.minimum(last, end) + 1
        edges = np.unique(np.concatenate([[1, end + 1], comings, goings]))
        begun, ended = (np.searchsorted(np.sort(events), edges[:-1], side="right") for events in (comings, goings))
        return begun - ended, np.diff(edges)

    def save(self, path: Path) -> None:
        """Write the table for :func:`read_availability`."""
        client, first, last = self.spans.T
        columns = dict(zip(SPAN, (client, first, pa.array(last, mask=last == NO_END)), strict=True))
        parquet.write(path, pa.table(columns))

    @cached_property
    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 of the spans, which is the same wherever the table lies."""
        return hashlib.sha256(self.spans.astype("<i8").tobytes()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Availability) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def read_availability(path: str) -> Availability:
    """Read a parquet table of the columns ``round`` and ``client``, or ``client``, ``first_round`` and ``last_round``.

    A ``last_round`` that is null has no end. Raises :class:`~engine.base.errors.ConfigError` for any other file. A file
    that has not changed is read once.
    """
    try:
        place = expanded(path, FIELD)
        about = os.stat(place)
    except (OSError, ValueError, DataError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(FIELD, path, f"cannot be read ({why})", REPAIR) from None
    return _read(path, place, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _read(path: str, place: Path, changed: int, size: int) -> Availability:
    try:
        names = _names(place)
        table = parquet.read(place, names)
        columns = {name: _whole(table, name) for name in names}
    except (OSError, pa.ArrowException, ValueError) as error:
        raise ConfigError(FIELD, path, f"is no table of clients and rounds ({error})", REPAIR) from None
    if names == ROUND:
        spans = np.stack([columns["client"], columns["round"], columns["round"]], axis=1)
    else:
        spans = np.stack([columns[name] for name in SPAN], axis=1)
    client, first, last = spans.T
    wrong = np.flatnonzero((client < 0) | (first < 1) | (last < first))
    if len(wrong):
        said = f"has client {client[wrong[0]]} from round {first[wrong[0]]} to {last[wrong[0]]} in row {wrong[0]}"
        rule = f"{said}, and clients count from 0, rounds from 1, and no last round is before the first"
        raise ConfigError(FIELD, path, rule, "correct the table")
    return Availability.of(spans)


def _names(place: Path) -> tuple[str, ...]:
    """The columns to read: those of the kind of table that lies there."""
    with parquet.opened(place) as file:
        found, rows = set(file.schema_arrow.names), file.metadata.num_rows
    if not rows:
        raise ValueError("it has no rows")
    for names in (ROUND, SPAN):
        if found >= {*names}:
            return names
    raise ValueError(f"its columns are {', '.join(sorted(found))}; wanted: {', '.join(ROUND)}, or {', '.join(SPAN)}")


def _whole(table: pa.Table, name: str) -> np.ndarray:
    """A column of whole numbers, int64; a last round that is null has no end."""
    column = table[name]
    if name == "last_round" and pa.types.is_floating(column.type):  # as pandas has whole numbers, some of them null
        column = pa.chunked_array([pa.array(column.to_numpy(), from_pandas=True)])  # NaN is null
        with suppress(pa.ArrowInvalid):  # of numbers that are not whole
            column = column.cast(pa.int64())
    if not pa.types.is_integer(column.type):
        raise ValueError(f"its column {name} does not hold whole numbers")
    column = column.cast(pa.int64())
    if name == "last_round":
        column = column.fill_null(NO_END)
    if column.null_count:
        raise ValueError(f"its column {name} has an empty cell")
    return column.to_numpy()
