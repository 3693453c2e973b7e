"""Matrices over classes: the server's entries of kind matrix when its run ends.

    matrices.parquet      one row per pair of classes of each matrix: stage, name, row, column, value

The file is written whole, from the entries of the stage that the run has come to, and is not there without any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from engine.algorithm import Kind, Tensors
from engine.base import parquet
from engine.base.errors import RunFolderError

MOST = 10_000  # rows of a matrix; it is square
FILE = "matrices.parquet"
COST = "cost"  # the matrix whose rows are a class's costs of being taken for each class, smallest for itself
SCHEMA = pa.schema(
    [
        ("stage", pa.string()),
        ("name", pa.string()),  # of the server's entry
        ("row", pa.int64()),  # class
        ("column", pa.int64()),  # class
        ("value", pa.float64()),
    ]
)


def save(folder: Path, stage: str, kinds: Mapping[str, Kind], server: Tensors) -> None:
    """Write the entries of kind matrix, [C, C] each, in place of what an earlier call wrote."""
    parts = [
        _table(stage, name, server[name]) for name, kind in kinds.items() if kind is Kind.MATRIX and name in server
    ]
    if not parts:
        (folder / FILE).unlink(missing_ok=True)
        return
    parquet.write(folder / FILE, pa.concat_tables(parts))


def _table(stage: str, name: str, matrix: Tensor) -> pa.Table:
    values = matrix.detach().cpu().double().numpy()
    rows, columns = (places.ravel() for places in np.indices(values.shape))
    return pa.table([[stage] * values.size, [name] * values.size, rows, columns, values.ravel()], schema=SCHEMA)


def load(folder: Path, name: str | None = None) -> dict[str, np.ndarray]:
    """Read each matrix, or the one of that name, float64 [C, C]; {} where the run in ``folder`` has none.

    Raises :class:`RunFolderError` for a file that cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        table = parquet.read(path).select(SCHEMA.names).cast(SCHEMA)
        if any(column.null_count for column in table.columns):
            raise ValueError("it has empty values")
        for part in ("row", "column"):
            places = table[part].to_numpy()
            if len(places) and not (places.min() >= 0 and places.max() < MOST):
                raise ValueError(f"its {part}s are {places.min()} to {places.max()}")
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise RunFolderError(f"{path} cannot be read ({error})") from None
    names = table["name"].unique().to_pylist()
    return {one: _square(table.filter(pc.field("name") == one)) for one in names if name in (None, one)}


def _square(table: pa.Table) -> np.ndarray:
    row, column, value = (table[part].to_numpy() for part in ("row", "column", "value"))
    matrix = np.full((int(max(row.max(), column.max())) + 1,) * 2, np.nan)
    matrix[row, column] = value
    return matrix


def least_on_diagonal(matrix: np.ndarray) -> np.ndarray:
    """Mark the rows of a [C, C] matrix that have their strict minimum on the diagonal, bool [C]."""
    others = np.where(np.eye(len(matrix), dtype=bool), np.inf, matrix)
    return np.diagonal(matrix) < others.min(axis=1)
