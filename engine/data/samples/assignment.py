"""The samples that each client holds, and the file that says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.base import parquet
from engine.base.errors import DataError, require
from engine.data.samples.labels import refuse_masked


def _nobody() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


_COLUMNS = ("client", "index")  # of the file; "test" may be missing
MOST_CLIENTS = 10**8


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be written to: what a part is given, others have, too."""
    view = array.view()
    view.flags.writeable = False
    return view


def without(count: int, rows: np.ndarray) -> np.ndarray:
    """Return the rows from 0 to ``count`` - 1 that are not among ``rows``, ascending, int64."""
    left = np.ones(count, dtype=bool)
    left[rows.astype(np.int64, copy=False)] = False
    return np.flatnonzero(left)


def _is_plain(part: Any) -> bool:
    return type(part) is np.ndarray and part.dtype == np.int64 and part.ndim == 1


def _rows(client: int, part: Any) -> np.ndarray:
    """Return the rows that somebody gave to a client as int64 [n]."""
    refuse_masked(part, f"partition: client {client}")
    try:
        rows = np.asarray(part)
    except ValueError:  # lists of several lengths
        rows = np.asarray(part, dtype=object)
    if rows.size == 0 and rows.ndim == 1:
        return _nobody()
    told, repair = f"{rows.dtype} of shape {list(rows.shape)}", "give whole numbers [n], places in the labels"
    if (
        isinstance(part, list | tuple)
        and rows.ndim == 1
        and len({isinstance(one, bool | np.bool_) for one in part}) > 1
    ):
        rows, told = np.asarray(part, object), "numbers and booleans"
    if rows.dtype == np.bool_:
        told, repair = f"a mask of True and False of shape {list(rows.shape)}", "give np.flatnonzero(mask)"
    whole = rows.ndim == 1 and rows.dtype.kind in "iu"
    require(whole, "partition", f"client {client}", f"is given {told} as its rows", repair)
    return rows.astype(np.int64)


class Parts(Sequence[np.ndarray]):
    """An index array for each client, all in one array: for 100,000 clients the objects would weigh more than the rows.

    joined: int64, the parts one after the other. ends: int64 [K], where each ends; non-decreasing.
    Two arrays are also what travels: processes of a node share them where they share memory.
    """

    def __init__(self, joined: np.ndarray, ends: np.ndarray) -> None:
        self.joined = joined
        self.ends = ends

    @classmethod
    def of(cls, parts: Iterable[np.ndarray]) -> Parts:
        """Join single arrays, copied; return ``parts`` itself if it is one already.

        Raises :class:`ConfigError` for one that is no list of whole numbers: nothing is cast.
        """
        if isinstance(parts, Parts):
            return parts
        parts = [part if _is_plain(part) else _rows(client, part) for client, part in enumerate(parts)]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return cls(np.concatenate([_nobody(), *parts]).astype(np.int64, copy=False), ends)

    @classmethod
    def grouped(cls, owners: np.ndarray, values: np.ndarray, count: int) -> Parts:
        """Give each of the owners 0 to ``count`` - 1 its sorted ``values`` [n], at least 0, by ``owners`` [n]."""
        span = int(values.max(initial=0)) + 1
        keys = owners.astype(np.int64) * span + values  # one sort of numbers takes a tenth of one by two columns
        keys.sort()
        return cls(keys % span, np.cumsum(np.bincount(owners, minlength=count)))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: Any) -> Any:
        """Return a client's part as a view, or a list of parts for a slice."""
        if isinstance(number, slice):
            return [self[k] for k in range(len(self))[number]]
        end = self.ends[number]  # an IndexError beyond the last
        start = self.ends[number - 1] if number % len(self) else 0
        return self.joined[start:end]

    def __iter__(self) -> Iterator[np.ndarray]:
        starts = (self.ends - self.sizes()).tolist()
        return (self.joined[start:end] for start, end in zip(starts, self.ends.tolist(), strict=True))

    def sizes(self) -> np.ndarray:
        """Return the length of each part, int64 [K]."""
        return np.diff(self.ends, prepend=0)

    def owners(self) -> np.ndarray:
        """Return the client of each entry of ``joined``, int64 [n]."""
        return np.repeat(np.arange(len(self)), self.sizes())

    def sorted(self) -> Parts:
        """Return the same parts, each in ascending order."""
        return Parts.grouped(self.owners(), self.joined, len(self))


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of every client.

    clients: for each client, its sorted training samples (int64 [N_k], may be empty).
    dropped: sorted training samples that no client has (int64).
    data: fingerprint of the data set whose samples these are, once it is known.
    tests: for each client, the sorted test samples that its personal model is evaluated on (int64, may be empty),
        of which no two clients share one, unless a table gives it to both; () where they have not been divided.
    public: sorted training samples that no client holds and that everybody may see (int64, may be empty).
    """

    clients: Sequence[np.ndarray]  # of any kind; kept as Parts
    dropped: np.ndarray = field(default_factory=_nobody)
    data: str = ""
    tests: Sequence[np.ndarray] = ()
    public: np.ndarray = field(default_factory=_nobody)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", Parts.of(self.clients))
        if self.tests:
            object.__setattr__(self, "tests", Parts.of(self.tests))

    def sizes(self) -> np.ndarray:
        """Return the number of training samples of each client, int64 [K]."""
        return Parts.of(self.clients).sizes()

    def class_counts(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Count the samples of each client and class, int64 [K, C]; ``labels`` int64 [N] are the training split's."""
        parts, shape = Parts.of(self.clients), (len(self.clients), num_classes)
        cells = parts.owners() * num_classes + labels[parts.joined]
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)

    @property
    def digest(self) -> str:
        """SHA-256 of who has which samples."""
        clients, tests = Parts.of(self.clients), Parts.of(self.tests)
        digest = hashlib.sha256()
        for rows in (clients.ends, clients.joined, tests.ends, tests.joined, self.public):
            digest.update(f"/{len(rows)}/".encode())
            digest.update(np.ascontiguousarray(rows, "<i8").data)
        return digest.hexdigest()

    def check_rows(self, train: int, test: int) -> None:
        """Raise :class:`DataError` if there are rows beyond these numbers of samples."""
        of_train = (Parts.of(self.clients).joined, self.dropped, self.public)
        for rows, count in (*((rows, train) for rows in of_train), (Parts.of(self.tests).joined, test)):
            wrong = [row for row in (rows.min(initial=0), rows.max(initial=0)) if not 0 <= row < max(count, 1)]
            if wrong:
                raise DataError(f"the partition has row {wrong[0]}, but there are {count} samples")

    def save(self, path: Path) -> None:
        """Write as parquet: one row (client, index, test) for each sample.

        Client -1 holds what is dropped, client -2 what is public. Without ``tests`` there is no column ``test``.
        """
        clients, tests = Parts.of(self.clients), Parts.of(self.tests)
        nobodys = np.repeat([-2, -1], [len(self.public), len(self.dropped)])
        owners = [nobodys, clients.owners(), tests.owners()]
        columns = {
            "client": np.concatenate(owners).astype(np.int32),
            "index": np.concatenate([self.public, self.dropped, clients.joined, tests.joined]).astype(np.int64),
        }
        if self.tests:
            columns["test"] = np.repeat([False, True], [len(columns["index"]) - len(tests.joined), len(tests.joined)])
        # empty clients have no row, so the number of clients is kept apart
        table = pa.table(columns).replace_schema_metadata({"clients": str(len(clients)), "data": self.data})
        parquet.write(path, table)

    @classmethod
    def load(cls, path: Path) -> Assignment:
        """Read what :meth:`save` wrote; raise :class:`DataError` if it is missing or something else."""
        try:
            table = parquet.read(path)
            if not all(pa.types.is_integer(table[name].type) and not table[name].null_count for name in _COLUMNS):
                raise ValueError("clients and rows must be whole numbers")
            count = int(table.schema.metadata[b"clients"])
            if not 0 < count <= MOST_CLIENTS:
                raise ValueError(f"{count} clients")
            data = table.schema.metadata[b"data"].decode()
            owners, indices = table["client"].to_numpy(), table["index"].to_numpy()
            has_tests = "test" in table.column_names
            is_test = table["test"].to_numpy().astype(bool) if has_tests else np.zeros(len(owners), dtype=bool)
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not a readable partition ({error})") from None
        for first, part in ((-2, owners[~is_test]), (0, owners[is_test])):
            if len(part) and (part.min() < first or part.max() >= count):
                raise DataError(f"{path}: not a readable partition (a client is outside of 0 to {count - 1})")
        if len(indices) and indices.min() < 0:
            raise DataError(f"{path}: not a readable partition (a row is negative)")
        held = (owners >= 0) & ~is_test
        public, dropped = (np.sort(indices[owners == nobody]).astype(np.int64) for nobody in (-2, -1))
        clients = Parts.grouped(owners[held], indices[held], count)
        tests = Parts.grouped(owners[is_test], indices[is_test], count) if has_tests else ()
        return cls(clients, dropped, data, tests, public)
