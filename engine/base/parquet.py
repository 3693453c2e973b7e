"""Parquet files, possibly a stranger's, read as values that can hold no code.

A column may be of an extension type, a class that some library has registered with Arrow. Ray registers one whose
values are pickles: they are loaded, and so run, where such a column is made a list. So a file with a type that is
defined in Python is refused when it is opened. Arrow's own extension types stay, and so do those that nobody has
registered, which Arrow reads as what they are stored as.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from engine.base.files import write_atomically
from engine.base.opening import check_file


def open_plain(path: Path) -> pq.ParquetFile:
    """Open the file at ``path``; raises OSError, or :class:`pyarrow.ArrowException` for types that may be code."""
    try:
        check_file(path)  # Arrow opens it by its name
        file = pq.ParquetFile(pa.OSFile(os.fsencode(path)), pre_buffer=False)  # whatever bytes its name has
        schema = file.schema_arrow
    except UnicodeDecodeError:
        raise pa.ArrowInvalid("its columns have names that are no text") from None
    for column in schema:
        if _is_python(column.type):
            file.close()
            raise pa.ArrowInvalid(f"its column {column.name!r} holds objects of Python, which may be code")
    return file


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open the file as :func:`open_plain` does, and close it at the end."""
    with open_plain(path) as file:
        yield file


def valid(table: pa.Table) -> pa.Table:
    """Return ``table``; raises :class:`pyarrow.ArrowException` for values that are not of their type."""
    table.validate(full=True)
    return table


def read(path: Path, columns: Sequence[str] | None = None, later: Collection[str] = ()) -> pa.Table:
    """Read the whole file, or some of its columns; raises as :func:`open_plain` and :func:`valid` do.

    later: those of ``columns`` that a file may lack.
    """
    with opened(path) as file:
        lacking = set(columns or ()) - {*file.schema_arrow.names}
        if lacking - set(later):
            raise pa.ArrowInvalid(f"it has no column {min(lacking - set(later))!r}")
        there = None if columns is None else [name for name in columns if name not in lacking]
        table = valid(file.read(columns=there, use_threads=False))
    # Without the notes by which pandas would make columns an index, or of another type than they are stored as.
    metadata = table.schema.metadata or {}
    return table.replace_schema_metadata({key: value for key, value in metadata.items() if key != b"pandas"})


def write(path: Path, table: pa.Table) -> None:
    """Write ``table`` to ``path``, whole or not at all."""
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue().to_pybytes())


def _is_python(kind: pa.DataType) -> bool:
    """Return whether a type, or one that it is made of, is defined in Python."""
    if isinstance(kind, pa.ExtensionType):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_python(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _is_python(kind.value_type)
    return any(_is_python(kind.field(number).type) for number in range(kind.num_fields))
