"""A division that somebody else has made: a parquet file that says which client has which sample."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from engine.base import parquet
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import ConfigError, DataError, require
from engine.base.files import expanded
from engine.data.partitions.partition import Partition
from engine.data.samples.assignment import MOST_CLIENTS, Assignment, Parts, without
from engine.data.samples.dataset import Dataset

SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class Rows:
    """What a table says of one split: ``clients[i]`` has the sample ``rows[i]``; int64 [n], both from 0 on."""

    rows: np.ndarray
    clients: np.ndarray

    def by_client(self, count: int) -> Parts:
        """Return the sorted samples of each of ``count`` clients."""
        return Parts.grouped(self.clients, self.rows, count)

    def repeated(self) -> int | None:
        """Return the first sample that is given more than once, None if there is none."""
        rows, times = np.unique(self.rows, return_counts=True)
        return int(rows[times > 1][0]) if len(rows) < len(self.rows) else None

    @property
    def last(self) -> int:
        """The highest sample; -1 if there is none."""
        return int(self.rows.max(initial=-1))


@dataclass(frozen=True, eq=False)
class Content:
    """A table, read. clients: their number. The order of its lines is not kept: it means nothing."""

    clients: int
    train: Rows
    test: Rows

    @property
    def sha256(self) -> str:
        """SHA-256 of all that a result may depend on: equal for the same lines in another order, or another file."""
        digest = hashlib.sha256()
        for rows in (self.train, self.test):
            parts = rows.by_client(self.clients)
            for array in (parts.ends, parts.joined):
                digest.update(f"/{len(array)}/".encode())
                digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ClientTable(Partition):
    """Clients as a parquet file has them: any split that others have drawn, exactly.

    file: has the columns ``row``, the number of a training sample from 0 on in the order of the data, and ``client``,
    numbers from 0 on or names, which are numbered in the order of their characters. Samples without a line are dropped.
    With a column ``split`` of ``train`` and ``test``, the lines of ``test`` give clients' own test samples; without
    such lines these are divided as in other partitions.
    clients: 0 for as many as the file has (the highest number + 1); a larger number adds clients without samples.
    overlap: allow a sample that has more than one line.
    sha256: of what the file says; None takes it from the file. It counts in the experiment's identity, and the path
    does not. A run goes on with its own copy of the division; a new one is refused where the file says something else.
    """

    shares_rows: ClassVar[bool] = True  # where the file does, with overlap

    names_rows: ClassVar[bool] = True

    clients: Annotated[int, Ge(0), Doc("number of clients"), Neutral(0, "takes those of the file")] = 0
    file: Annotated[str, Doc("parquet file that says who has which sample, see [partitions.md](partitions.md)")]
    overlap: Annotated[bool, Doc("allow a sample that has several lines"), Neutral(False, "refuses it")] = False
    sha256: Annotated[
        str | None, Doc("of what the file says, which is what counts in the digest; null: taken from the file")
    ] = None

    def __post_init__(self) -> None:
        self._check_fixed("where a file says who has which sample")
        super().__post_init__()
        if self.sha256 is None:
            object.__setattr__(self, "sha256", self._read().sha256)
        known = bool(re.fullmatch("[0-9a-f]{64}", str(self.sha256)))
        require(known, "sha256", self.sha256, "must be 64 digits from 0 to f", "leave it out to take the file's")

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in super().identity(written).items() if name != "file"}

    def _check_feasible(self, labels: np.ndarray) -> None:
        pass  # what the file says is checked when it is read

    def draw(self, rng, labels, num_classes, owners):
        content = self._content()
        self._check_last("training", content.train, len(labels))
        clients = content.train.by_client(self.clients or content.clients)
        return Assignment(clients, without(len(labels), content.train.rows))

    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        tests = self._content().test
        if not len(tests.rows):
            return super().share_tests(assignment, dataset)
        self._check_last("test", tests, len(dataset.test))
        return replace(assignment, tests=tests.by_client(len(assignment.clients)))

    def _check_last(self, split: str, rows: Rows, samples: int) -> None:
        if rows.last >= samples:
            raise self._error(f"has row {rows.last}, but there are {samples} {split} samples; rows are counted from 0")

    def _content(self) -> Content:
        """Read the file, which must say what it said when the experiment was made."""
        content = self._read()
        if content.sha256 != self.sha256:
            rule = f"says something else than the table of partition.sha256={self.sha256}"
            repair = "put that file back, or leave partition.sha256 out for another experiment"
            raise ConfigError("partition.file", self.file, rule, repair)
        return content

    def _read(self) -> Content:
        """Read the file; raise :class:`DataError` if it is missing or something else."""
        path = expanded(self.file, "partition.file")
        try:
            numbers, names, is_test = _columns(path)
        except FileNotFoundError:
            repair = "give a parquet file with the columns row and client"
            raise self._error(f"there is no such file (looked at {path.absolute()}); {repair}") from None
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise self._error(f"cannot be read as a table of rows and clients ({error})") from None
        content = Content(
            int(names.max()) + 1,
            Rows(numbers[~is_test], names[~is_test]),
            Rows(numbers[is_test], names[is_test]),
        )
        if not len(content.train.rows):
            raise self._error("gives no training sample to anybody; give it lines of the split train")
        for split, rows in zip(SPLITS, (content.train, content.test), strict=True):
            repeated = rows.repeated()
            if repeated is not None and not self.overlap:
                raise self._error(
                    f"gives row {repeated} of the split {split} more than once; set partition.overlap=true if it may"
                )
        rule = f"is fewer than the {content.clients} of partition.file"
        require(self.clients == 0 or self.clients >= content.clients, "clients", self.clients, rule, "set it to 0")
        return content

    def _error(self, what: str) -> DataError:
        return DataError(f"partition.file={self.file}: {what}")


def _columns(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the columns row and client as int64 [n], and whether a line is of the split test as bool [n].

    Raises ValueError for what is not of its kind, and what :func:`engine.base.parquet.read` raises.
    """
    with parquet.opened(path) as file:
        has_split = "split" in file.schema_arrow.names
    table = parquet.read(path, ["row", "client", *["split"] * has_split])
    if not table.num_rows:
        raise ValueError("it has no line")
    for name in table.column_names:
        if table[name].null_count:
            raise ValueError(f"its column {name!r} has gaps")
    if not pa.types.is_integer(table["row"].type):
        raise ValueError(f"its column 'row' must hold whole numbers, not {table['row'].type}")
    rows = _from_zero(table["row"], "row", np.iinfo(np.int64).max)
    clients = table["client"]
    if _is_text(clients.type):
        names = np.array(clients.cast(pa.large_string()).to_pylist(), dtype=object)
        numbers = np.unique(names, return_inverse=True)[1].astype(np.int64)
    elif pa.types.is_integer(clients.type):
        numbers = _from_zero(clients, "client", MOST_CLIENTS - 1)
    else:
        raise ValueError(f"its column 'client' must hold whole numbers or texts, not {clients.type}")
    if not has_split:
        return rows, numbers, np.zeros(len(rows), dtype=bool)
    splits = table["split"].cast(pa.large_string()).to_pylist() if _is_text(table["split"].type) else [None]
    unknown = sorted({*map(str, splits)} - {*SPLITS})
    if unknown:
        raise ValueError(f"its column 'split' must hold train and test, not {unknown[0]!r}")
    return rows, numbers, np.array(splits) == "test"


def _from_zero(column: pa.ChunkedArray, name: str, most: int) -> np.ndarray:
    """Return whole numbers as int64 [n]; raise ValueError unless they are from 0 to ``most``."""
    numbers = column.cast(pa.int64()).to_numpy()
    for number in (int(numbers.min()), int(numbers.max())):
        if not 0 <= number <= most:
            raise ValueError(f"its column {name!r} has {number}, and must count from 0 to {most:,} at most")
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
