"""Which client holds which samples, and the file that says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.errors import DataError
from engine.files import write_atomically


def _nobody() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of every client.

    clients: for each client, its sorted training samples (int64 [N_k], may be empty).
    dropped: sorted training samples that no client has (int64).
    data: fingerprint of the data set whose samples these are, once it is known.
    tests: for each client, the sorted test samples that its personal model is evaluated on (int64, may be empty),
        of which no two clients share one; () where they have not been divided.
    public: sorted training samples that no client holds and that everybody may see (int64, may be empty).
    """

    clients: tuple[np.ndarray, ...]
    dropped: np.ndarray = field(default_factory=_nobody)
    data: str = ""
    tests: tuple[np.ndarray, ...] = ()
    public: np.ndarray = field(default_factory=_nobody)

    def sizes(self) -> np.ndarray:
        """Training samples of each client, int64 [K]."""
        return np.array([len(indices) for indices in self.clients], dtype=np.int64)

    def class_counts(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Samples of each client and class, int64 [K, C]; ``labels`` int64 [N] of the training split."""
        return np.stack([np.bincount(labels[indices], minlength=num_classes) for indices in self.clients])

    def save(self, path: Path) -> None:
        """Write as parquet: one row (client, index, test) for each sample.

        Client -1 holds what is dropped, client -2 what is public. Without ``tests`` there is no column ``test``.
        """
        parts = {-2: self.public, -1: self.dropped, **dict(enumerate(self.clients))}
        columns = _columns(parts)
        if self.tests:
            tests = _columns(dict(enumerate(self.tests)))
            test = np.repeat([False, True], [len(columns["index"]), len(tests["index"])])
            columns = {name: np.concatenate([columns[name], tests[name]]) for name in columns} | {"test": test}
        # empty clients have no row, so the number of clients is kept apart
        table = pa.table(columns).replace_schema_metadata({"clients": str(len(self.clients)), "data": self.data})
        content = pa.BufferOutputStream()
        pq.write_table(table, content, compression="zstd")
        write_atomically(path, content.getvalue().to_pybytes())

    @classmethod
    def load(cls, path: Path) -> Assignment:
        """Read what :meth:`save` wrote; :class:`DataError` if it is missing or something else."""
        try:
            table = pq.read_table(path)
            count = int(table.schema.metadata[b"clients"])
            data = table.schema.metadata[b"data"].decode()
            owners, indices = table["client"].to_numpy(), table["index"].to_numpy()
            has_tests = "test" in table.column_names
            is_test = table["test"].to_numpy().astype(bool) if has_tests else np.zeros(len(owners), dtype=bool)
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not a readable partition ({error})") from None
        for first, part in ((-2, owners[~is_test]), (0, owners[is_test])):
            if len(part) and (part.min() < first or part.max() >= count):
                raise DataError(f"{path}: not a readable partition (a client is outside of 0 to {count - 1})")
        public, dropped, *clients = _grouped(owners[~is_test] + 2, indices[~is_test], count + 2)
        tests = _grouped(owners[is_test], indices[is_test], count) if has_tests else []
        return cls(tuple(clients), dropped, data, tuple(tests), public)


def _columns(parts: dict[int, np.ndarray]) -> dict[str, np.ndarray]:
    """Samples by client as two columns."""
    owners = np.repeat(np.array(list(parts), dtype=np.int32), [len(part) for part in parts.values()])
    return {"client": owners, "index": np.concatenate(list(parts.values())).astype(np.int64)}


def _grouped(owners: np.ndarray, indices: np.ndarray, count: int) -> list[np.ndarray]:
    """The sorted ``indices`` int64 of each of the owners 0 to ``count`` - 1."""
    order = np.lexsort((indices, owners))
    cuts = np.cumsum(np.bincount(owners, minlength=count))[:-1]
    return np.split(indices[order].astype(np.int64), cuts)
