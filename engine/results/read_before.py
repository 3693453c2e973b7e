"""What an earlier report has read of trials that have ended, in one columnar file beside the sweep.

``fedskew report`` reads a dozen files of each trial. Of those that have not changed since the report before it takes
what that has read, so that a sweep of 10,000 trials that goes on is looked at in seconds. A file that is damaged, of
another version of the engine, or of another target is passed over, and written anew. Only a report goes by it: what the
ledger says of a sweep is read from its trials.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import engine
from engine.base import parquet
from engine.base.errors import WriteError
from engine.base.opening import read_bytes
from engine.record import fields, metrics, summary
from engine.record.columns import SCHEMAS

FILE = ".read.parquet"
SETTLED = 2 * 10**9  # nanoseconds: what was changed so shortly before may change again within the clock's grain
KEY = b"made with"
COLUMNS = ("stage", "round", "scope", *metrics.EVALUATED, "class_accuracy", "own")  # of evaluations.parquet
WRONG = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException, WriteError)


@dataclass(frozen=True)
class ReadTrial:
    """What was read of one trial: figures of its row, its experiment as data, its summary, its evaluations."""

    figures: dict[str, Any]
    experiment: dict[str, Any]
    summary: dict[str, Any]
    evaluations: pa.Table | None


class ReadBefore:
    """The trials of one sweep that an earlier report has read, and those that are to be kept for the next."""

    def __init__(self, folder: Path, target: float | None) -> None:
        """``target``: what the metrics to the target are of."""
        self._path = folder / FILE
        self._key = json.dumps([target, _made_by()]).encode()
        self._before: dict[str, tuple[str, ReadTrial]] = {}
        self._trials: dict[str, tuple[str, ReadTrial]] = {}  # those that are there still
        self._grown = False
        with suppress(*WRONG):
            table = parquet.read(self._path)
            if (table.schema.metadata or {}).get(KEY) == self._key:
                self._before = dict(_unpacked(table))

    def get(self, trial: str, stamp: str) -> ReadTrial | None:
        """Return what was read of a trial whose files had this stamp."""
        before = self._before.get(trial)
        if before is None or not stamp or before[0] != stamp:
            return None
        self._trials[trial] = before
        return before[1]

    def put(self, trial: str, stamp: str, read: ReadTrial) -> None:
        """Keep what was read for :meth:`save`, unless it is not the same when it comes back from JSON."""
        told = [read.figures, read.experiment, read.summary]
        with suppress(TypeError, ValueError):
            if stamp and repr(json.loads(json.dumps(told))) == repr(told):
                self._trials[trial], self._grown = (stamp, read), True

    def save(self) -> None:
        """Write the file, if a trial is new in it; where it cannot be written the next report reads all again."""
        if self._grown:
            with suppress(*WRONG):
                parquet.write(self._path, _packed(self._trials).replace_schema_metadata({KEY: self._key}))


def stamp_of(folder: Path) -> str:
    """Return what changes with every change of a file in ``folder``; "" if one has changed just now."""
    lines = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:  # it has gone meanwhile
                return ""
            if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < SETTLED:
                return ""
            changed = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"  # the last: by whatever means
            lines.append(f"{os.path.relpath(place, folder)}/{name} {changed}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _packed(trials: dict[str, tuple[str, ReadTrial]]) -> pa.Table:
    """Make one row for each trial, in which its evaluations are a list."""
    texts = [json.dumps([read.figures, read.experiment, read.summary]) for _, read in trials.values()]
    tables = [read.evaluations for _, read in trials.values()]
    ends = accumulate((0 if table is None else len(table) for table in tables), initial=0)
    begins = [None if table is None else begin for table, begin in zip([*tables, ()], ends, strict=True)]
    rows = pa.concat_tables(table for table in tables if table is not None).to_struct_array().combine_chunks()
    lists = pa.ListArray.from_arrays(pa.array(begins, pa.int32()), rows)
    stamps = [stamp for stamp, _ in trials.values()]
    return pa.table({"trial": [*trials], "stamp": stamps, "read": texts, "evaluations": lists})


def _unpacked(table: pa.Table) -> Iterator[tuple[str, tuple[str, ReadTrial]]]:
    """Do the reverse of :func:`_packed`."""
    lists = table["evaluations"].combine_chunks()
    rows = pa.Table.from_batches([pa.RecordBatch.from_struct_array(lists.flatten())])
    if not rows.schema.equals(pa.schema([SCHEMAS["evaluations"].field(name) for name in COLUMNS])):
        raise ValueError("they are no evaluations")
    begin = 0
    columns = (table["trial"].to_pylist(), table["stamp"].to_pylist(), table["read"].to_pylist())
    for trial, stamp, text, count in zip(*columns, lists.value_lengths().to_pylist(), strict=True):
        figures, experiment, told = json.loads(text)
        read = ReadTrial(figures, experiment, told, None if count is None else rows.slice(begin, count))
        fields.check(read.summary, summary.KIND)
        if not (isinstance(read.figures, dict) and isinstance(read.experiment, dict)):
            raise ValueError("they are no figures of an experiment")
        yield trial, (stamp, read)
        begin += count or 0


def _made_by() -> str:
    """Return a hash of the engine's sources, and the libraries by which figures are made of files."""
    files = sorted(Path(engine.__file__).parent.rglob("*.py"))
    return f"{hashlib.sha256(b''.join(map(read_bytes, files))).hexdigest()} {np.__version__} {pa.__version__}"
