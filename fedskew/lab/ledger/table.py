"""The trials of a ledger's entry as text, one line a trial, and back.

The text is CSV, so that a change of one trial is a change of one line. A value of an axis that is a text stands as it
is where it could be nothing else; all others are JSON, so that lists, algorithms with their fields, true and none come
back as what they were. A figure that a trial does not have is an empty cell.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base.csv_text import FORMULA, guarded, plain_text
from engine.results.coverage import STATUSES

# Of each trial, beside its axes and its metrics: the headings of its columns, and the keys in a row, which are others
# where a sweep may have an axis or a metric of that name.
BEFORE = ("trial", "status", "seed", "partition_seed", "partition", "code", "weights", "seconds")
DRAWN, COST = "drawn partition", "seconds taken"
KEYS = ("trial", "status", "seed", "partition_seed", DRAWN, "code", "weights", COST)
LONGEST = 16 * 2**20  # characters of a table
LONGEST_CELL = 20_000


@dataclass(frozen=True)
class TrialTable:
    """The trials of a sweep: rows by column, in the order of the trials.

    Of a row, ``drawn partition`` and ``weights`` are the first 16 hex digits of what was drawn and of what was trained,
    ``code`` the hash of what computed it, and ``seconds taken`` are those of the rounds that it computed itself.
    Metrics are numbers, or None where the trial has none.
    """

    axes: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def to_text(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        columns = [*KEYS, *self.axes, *self.metrics]
        writer.writerow([*BEFORE, *map(guarded, self.axes), *self.metrics])
        for row in self.rows:
            writer.writerow([_cell(row.get(name), name in self.axes) for name in columns])
        return file.getvalue()

    @classmethod
    def from_text(cls, text: str, axes: Sequence[str], metrics: Sequence[str]) -> TrialTable:
        """Raises ValueError, with what is wrong in words, for a text that is no such table."""
        if len(text) > LONGEST:
            raise ValueError(f"its table has more than {LONGEST:,} characters")
        try:
            head, *lines = csv.reader(io.StringIO(text), strict=True)
        except (csv.Error, ValueError) as error:
            raise ValueError(f"its table is no CSV ({error})") from None
        columns = [*BEFORE, *axes, *metrics]
        if list(map(plain_text, head)) != columns:
            raise ValueError(f"its table has other columns than {', '.join(columns)}")
        rows = tuple(_row(line, columns, axes, metrics) for line in lines)
        return cls(tuple(axes), tuple(metrics), rows)


def _cell(value: Any, of_axis: bool) -> str:
    if not of_axis:
        gone = value is None or (isinstance(value, float) and not math.isfinite(value))
        return "" if gone else value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, str) and value and value.isprintable() and not value.startswith((*FORMULA, "'", " ")):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return value
    return json.dumps(value, sort_keys=True)


def _row(line: Sequence[str], columns: Sequence[str], axes: Iterable[str], metrics: Iterable[str]) -> dict[str, Any]:
    if len(line) != len(columns) or any(len(cell) > LONGEST_CELL for cell in line):
        raise ValueError(f"a line of its table has {len(line)} cells of {len(columns)}, or one that is too long")
    cells = dict(zip([*KEYS, *columns[len(KEYS) :]], line, strict=True))
    row: dict[str, Any] = {name: cells[name] for name in ("trial", "status", DRAWN, "code", "weights")}
    if row["status"] not in STATUSES:
        raise ValueError(f"trial {row['trial'][:20]} has no status that is known")
    row |= {name: int(cells[name]) if cells[name] else None for name in ("seed", "partition_seed")}
    if row["seed"] is None:
        raise ValueError(f"trial {row['trial'][:20]} has no seed")
    row |= {axis: _value(cells[axis]) for axis in axes}
    return row | {name: _number(cells, name) for name in (COST, *metrics)}


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except RecursionError:
        raise ValueError("a value of its table is too deep") from None
    except ValueError:
        return cell


def _number(cells: Mapping[str, str], name: str) -> float | None:
    value = float(cells[name]) if cells[name] else None
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name} of a trial is no number")
    return value
