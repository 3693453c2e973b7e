"""The columns of a split's parquet files as arrays: encoded images, numbers, token ids, labels.

A file that cannot be read, or a value that is not what it should be, is a :class:`DataError` that names file and row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.base import parquet
from engine.base.errors import DataError
from engine.data.samples.dataset import as_float32
from engine.data.samples.labels import Part
from engine.data.samples.notes import warn
from engine.data.sources.formats import decode_images, memory_for_images

MOST_TOKENS = 4096  # of a row, unless a length is asked for
HIGHEST_TOKEN = 2**24  # whole numbers up to it are exact in float32

_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls the index of a frame that has no name
# What Arrow and its buffers raise of a broken file.
_BROKEN = (OSError, UnicodeDecodeError, pa.ArrowException)


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """The parquet files of one split, opened; rows count on from file to file.

    A column's name may be ``a.b``: a field of a struct, or a column whose name has a dot.
    """

    paths: Sequence[Path]
    files: Sequence[pq.ParquetFile]

    @classmethod
    def open(cls, paths: Sequence[Path]) -> ParquetTable:
        """Open the files that have rows, in the order given; raises :class:`DataError` for what is no parquet file, or
        where none has a row.
        """
        filled = {path: file for path in paths if (file := _open(path)).metadata.num_rows}
        if not filled:
            raise DataError(f"{paths[0]}: has no rows")
        return cls(list(filled), list(filled.values()))

    def __len__(self) -> int:
        return sum(file.metadata.num_rows for file in self.files)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first file."""
        return self.files[0].schema_arrow

    @property
    def class_labels(self) -> set[str]:
        """The columns that Hugging Face's metadata of the first file call a ClassLabel."""
        features = _metadata(self.files[0], b"huggingface", "info", "features")
        features = features if isinstance(features, dict) else {}
        return {name for name, one in features.items() if isinstance(one, dict) and one.get("_type") == "ClassLabel"}

    @property
    def index_columns(self) -> set[str]:
        """The columns that pandas made of the index of a frame, by the metadata of each file or by their names."""
        named = [_metadata(file, b"pandas", "index_columns") for file in self.files]
        found = {name for own in named if isinstance(own, list) for name in own if isinstance(name, str)}
        return found | {name for file in self.files for name in file.schema_arrow.names if _INDEX.fullmatch(name)}

    def parts(self, name: str) -> list[Part]:
        """Read a column of labels or owners file by file, with the names of a ClassLabel of Hugging Face's."""
        parts = []
        for path, file in zip(self.paths, self.files, strict=True):
            names = _metadata(file, b"huggingface", "info", "features", name, "names")
            names = tuple(map(str, names)) if isinstance(names, list) else ()
            parts.append(Part(str(path), _values(path, file, name), names))
        return parts

    def images(self, name: str, rows: np.ndarray, size: int | None = None, mode: str | None = None) -> np.ndarray:
        """Decode the sorted ``rows`` of a column of encoded images: bytes, or a struct with them (Hugging Face).

        Gives uint8 [n, C, H, W]; size, mode: see :func:`decode_images`.
        """
        return decode_images(self._encoded(name, rows), len(rows), size, mode)

    def features(self, names: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Read the sorted ``rows`` of columns of numbers, or of lists of as many numbers, as float32 [n, D, 1, 1]."""
        widths = [self.width(name) for name in names]
        ends = np.cumsum(widths).tolist()
        result = _room(self.paths[0], len(rows), ends[-1], "features", "name fewer as data.feature_columns")
        for name, width, end in zip(names, widths, ends, strict=True):
            done = 0
            for place, column in self._taken(name, rows):
                block = _numbers(place, column, name, width)
                result[done : done + len(column), end - width : end] = block
                done += len(column)
        return result[:, :, None, None]

    def longest(self, name: str) -> int:
        """Return the largest number of values in a row of a column of lists."""
        every = np.arange(len(self))
        return max(int(_lengths(place, column, name).max(initial=0)) for place, column in self._taken(name, every))

    def tokens(self, name: str, rows: np.ndarray, length: int) -> np.ndarray:
        """Read the sorted ``rows`` of a column of lists of token ids, as float32 [n, length, 1, 1].

        Rows are cut to their first ``length`` ids, or filled with 0.
        """
        result = _room(self.paths[0], len(rows), length, "token ids", "lower data.sequence_length")
        result[:] = 0
        done = 0
        for place, column in self._taken(name, rows):
            lengths = _lengths(place, column, name)
            ids = column.flatten()
            _check_tokens(place, name, lengths, ids)
            row = np.repeat(np.arange(len(lengths)), lengths)
            position = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            kept = position < length
            result[done + row[kept], position[kept]] = ids.to_numpy(zero_copy_only=False)[kept]
            done += len(column)
        return result[:, :, None, None]

    def _encoded(self, name: str, rows: np.ndarray) -> Iterator[tuple[str, bytes]]:
        """(name for errors, image bytes) of the sorted ``rows``."""
        for place, column in self._taken(name, rows, "bytes"):
            kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_null)  # null: paths without bytes
            if not any(is_kind(column.type) for is_kind in kinds):
                kind = f"column {name!r} must hold encoded images (bytes), not {column.type}"
                raise DataError(f"{place.path}: {kind}")
            for row, content in zip(place.rows.tolist(), column.to_pylist(), strict=True):
                if content is None:
                    repair = "a path alone is not read: write the images into the file"
                    raise DataError(f"{place.path}: row {row} of column {name!r} has no image bytes; {repair}")
                yield f"{place.path} row {row}", content

    def _taken(self, name: str, rows: np.ndarray, field: str | None = None) -> Iterator[tuple[_Place, pa.Array]]:
        """The sorted ``rows`` of a column, a batch at a time; field: of a struct, where the name says none."""
        start = 0  # of the batch
        for path, file in zip(self.paths, self.files, strict=True):
            first = start
            for column in _batches(path, file, name, field):
                low, high = np.searchsorted(rows, (start, start + len(column)))
                wanted = rows[low:high]
                start += len(column)
                try:
                    column.validate(full=True)  # before anything goes by its offsets
                    whole = len(wanted) == len(column)
                    chosen = column if whole else column.take(pa.array(wanted - start + len(column)))
                except pa.ArrowException as error:
                    raise _corrupt(path, error) from None
                yield _Place(path, wanted - first), chosen
            if start - first != file.metadata.num_rows:
                raise DataError(f"{path}: has {start - first} rows and not what its footer says; get it again")

    def width(self, name: str) -> int:
        """Return the numbers that a row of a column has: those of the first row where it holds lists."""
        for place, column in self._taken(name, np.arange(1)):
            width = 1
            while _is_list(column.type):
                if column.null_count:
                    raise DataError(f"{place.path}: row 0 of column {name!r} is empty; fill it or drop the row")
                column = column.flatten()
                width = len(column)
            if len(place.rows):
                if width == 0:
                    raise DataError(f"{place.path}: row 0 of column {name!r} has no numbers; leave the column out")
                return width
        raise AssertionError("a table that was opened has a row")


@dataclass(frozen=True, eq=False)
class _Place:
    """Where values come from: a file, and the rows in it."""

    path: Path
    rows: np.ndarray


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a column holds numbers, or lists of them, however deep."""
    while _is_list(kind):
        kind = kind.value_type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def is_tokens(kind: pa.DataType) -> bool:
    """Return whether a column holds lists of whole numbers."""
    return _is_list(kind) and pa.types.is_integer(kind.value_type)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _room(path: Path, rows: int, width: int, what: str, repair: str) -> np.ndarray:
    """An array float32 [rows, width], if it fits into the memory for a split."""
    needed, limit = 4 * rows * width, memory_for_images()
    if needed > limit:
        size = f"{needed / 1e9:,.1f} GB, more than half of this machine's memory ({limit / 1e9:,.1f} GB)"
        raise DataError(f"{path}: {rows:,} rows of {width:,} {what} take {size}; {repair}")
    return np.empty((rows, width), dtype=np.float32)


def _numbers(place: _Place, column: pa.Array, name: str, width: int) -> np.ndarray:
    """The finite numbers of a batch, float32 [n, width]."""
    if not is_numeric(column.type):
        raise DataError(f"{place.path}: column {name!r} must hold numbers, not {column.type}")
    count, per_row = len(column), 1
    while _is_list(column.type):
        lengths = _lengths(place, column, name, per_row)
        if len(lengths) and lengths.min() != lengths.max():
            width_there, odd = int(lengths[0]), int(np.argmax(lengths != lengths[0]))
            _ragged(place, name, odd // per_row, int(lengths[odd]), width_there)
        per_row *= int(lengths[0]) if len(lengths) else 1
        column = column.flatten()
    if count and per_row != width:
        _ragged(place, name, 0, per_row, width)
    _check_filled(place, column, name, per_row)
    block, is_exact = as_float32(column.to_numpy(zero_copy_only=False))
    if not is_exact:
        warn(f"column {name!r} has whole numbers of which float32 loses digits; is it a key and no feature?")
    finite = np.isfinite(block)
    if not finite.all():
        bad = int(np.argmin(finite))
        rule = "and features must be finite numbers of float32; fill it or drop the row"
        row = place.rows[bad // per_row]
        raise DataError(f"{place.path}: row {row} of column {name!r} is {column[bad].as_py()}, {rule}")
    return block.reshape(count, width)


def _ragged(place: _Place, name: str, row: int, found: int, width: int) -> None:
    """Raise the error for a list of another length than the first one's."""
    repair = f"lists of token ids are read by data.token_column={name}"
    rule = f"has {found} numbers and others have {width}"
    raise DataError(f"{place.path}: row {place.rows[row]} of column {name!r} {rule}; {repair}")


def _lengths(place: _Place, column: pa.Array, name: str, per_row: int = 1) -> np.ndarray:
    """The length of each list of a batch, int64 [n]; ``per_row``: the lists of each row."""
    if not _is_list(column.type):
        raise DataError(f"{place.path}: column {name!r} must hold lists of numbers, not {column.type}")
    _check_filled(place, column, name, per_row)
    return pc.call_function("list_value_length", [column]).to_numpy(zero_copy_only=False).astype(np.int64)


def _check_filled(place: _Place, column: pa.Array, name: str, per_row: int = 1) -> None:
    if column.null_count:
        row = place.rows[int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) // per_row]
        raise DataError(f"{place.path}: row {row} of column {name!r} is empty; fill it or drop the row")


def _check_tokens(place: _Place, name: str, lengths: np.ndarray, ids: pa.Array) -> None:
    """Refuse what is no token id."""
    if not pa.types.is_integer(ids.type):
        kind = f"must hold lists of whole numbers, not of {ids.type}"
        raise DataError(f"{place.path}: column {name!r} {kind}; tokenise the texts first")
    if ids.null_count:
        wrong = ids.is_null().to_numpy(zero_copy_only=False)
    else:
        values = ids.to_numpy(zero_copy_only=False)
        wrong = (values < 0) | (values >= HIGHEST_TOKEN)
    if wrong.any():
        at = int(np.argmax(wrong))
        row, found = np.repeat(place.rows, lengths)[at], ids[at].as_py()
        rule = f"a token id is a whole number from 0 to {HIGHEST_TOKEN - 1}"
        raise DataError(f"{place.path}: row {row} of column {name!r} has the token id {found}; {rule}")


# ------------------------------------------------------------------------------------------------ files
def _open(path: Path) -> pq.ParquetFile:
    try:
        file = parquet.open_plain(path)
    except (OSError, pa.ArrowException) as error:
        raise _corrupt(path, error) from None
    names = file.schema_arrow.names
    if len(set(names)) < len(names):
        raise DataError(f"{path}: has two columns called {max(names, key=names.count)!r}; rename one")
    return file


def _metadata(file: pq.ParquetFile, key: bytes, *path: str) -> Any:
    """What the file's metadata, written as JSON, say at a path; None where there are none, or others."""
    try:
        found = json.loads((file.schema_arrow.metadata or {})[key])
        for step in path:
            found = found[step]
        return found
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def _corrupt(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0].rstrip(".")
    return DataError(f"{path}: not a readable parquet file ({reason}); get it again")


def _column(path: Path, schema: pa.Schema, name: str) -> tuple[str, list[str]]:
    """The top-level column of ``name`` and the struct fields below it."""
    if name in schema.names:
        return name, []
    if f"{name}.bytes" in schema.names:
        return f"{name}.bytes", []
    top, *fields = name.split(".")
    if top not in schema.names:
        raise DataError(f"{path}: has no column {name!r}; it has {', '.join(schema.names)}")
    return top, fields


def _batches(path: Path, file: pq.ParquetFile, name: str, field: str | None) -> Iterator[pa.Array]:
    top, fields = _column(path, file.schema_arrow, name)
    try:
        for batch in file.iter_batches(batch_size=4096, columns=[top]):
            column = batch.column(0) if batch.num_columns == 1 else batch.column(top)
            if pa.types.is_struct(column.type) and not fields and field:
                fields = [field]
            for part in fields:
                column = column.field(part)
            yield column
    except _BROKEN as error:
        raise _corrupt(path, error) from None
    except KeyError as error:
        raise DataError(f"{path}: column {top!r} has no field {error}") from None


def _values(path: Path, file: pq.ParquetFile, name: str) -> np.ndarray:
    try:
        column = pa.chunked_array(list(_batches(path, file, name, "bytes")))
        column.validate(full=True)  # texts are UTF-8, codes are of their dictionary: no reader looks
        return _plain_values(path, column, name)
    except pa.ArrowException as error:
        raise _corrupt(path, error) from None


def _plain_values(path: Path, column: pa.ChunkedArray, name: str) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise DataError(f"{path}: column {name!r} has {column.null_count} empty values")
    if is_numeric(column.type) or _is_list(column.type):  # what is no label, who asked for labels refuses
        return column.to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_pylist(), dtype=np.str_)
    raise DataError(f"{path}: column {name!r} must hold whole numbers or texts, not {column.type}")
