"""A run's tables: parquet files that grow row by row, in parts where they are long."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from engine.base import parquet
from engine.base.errors import RunFolderError
from engine.base.files import beside
from engine.base.opening import regular
from engine.record.columns import LATER, Row

if TYPE_CHECKING:
    import pandas as pd

PARTS = "rows"  # the folder of tables' parts, while a run goes on
GROUP_ROWS = 20_000  # of a parquet row group: about a megabyte
PART_ROWS = 5_000  # of a table's part, from which on another one is begun


class Table:
    """A parquet file that grows by rows.

    Parquet cannot be appended to, so a flush writes a file anew: the table itself while that is small, from then on
    parts of it beside it, of which the last one grows. A flush takes as long in the last round as in the first.
    :meth:`fold` puts parts back into the table; one whose rows have got there already is of a fold that was killed.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.name = path.stem
        self.schema = schema
        self._pending: list[Row] = []

    def add(self, row: Row) -> None:
        """Keep ``row`` until the next :meth:`flush`; columns that it leaves out are null, ``reused`` is false."""
        self._pending.append({"reused": False, **row})

    def flush(self) -> None:
        """Append what is pending."""
        if not self._pending:
            return
        fresh = pa.Table.from_pylist(self._pending, schema=self.schema)
        path = self._grows()
        if path.exists():
            with _reader(path) as reader:
                fresh = pa.concat_tables([self._whole(parquet.valid(reader.read(use_threads=False))), fresh])
        with self._replacing(path) as writer:
            writer.write_table(fresh.combine_chunks(), row_group_size=GROUP_ROWS)
        self._pending.clear()

    def fold(self) -> None:
        """Put all rows into the table itself, row group by row group, so that memory does not grow with the file."""
        parts = self._parts()
        if parts:
            held = self.schema.empty_table()
            with self._replacing(self.path) as writer:
                for group in self._groups((self.path, *parts)):
                    held = pa.concat_tables([held, group])
                    while len(held) >= GROUP_ROWS:
                        writer.write_table(held.slice(0, GROUP_ROWS).combine_chunks())
                        held = held.slice(GROUP_ROWS)
                if len(held):
                    writer.write_table(held.combine_chunks())
        for path in self._all_parts():
            path.unlink()
        with suppress(OSError):  # none was needed, or other tables have parts there
            (self.path.parent / PARTS).rmdir()

    def frame(self) -> pd.DataFrame:
        """Return all that was flushed, also while a run goes on writing; :class:`RunFolderError` if it is damaged."""
        while True:
            paths = [self.path, *self._parts()] if self.path.exists() else []
            try:
                frames = [parquet.read(path).to_pandas() for path in paths]
            except FileNotFoundError:  # just folded
                continue
            except (OSError, pa.ArrowException) as error:
                raise RunFolderError(f"{self.path} cannot be read ({error})") from None
            if len(frames) > 1:
                import pandas as pd  # in a part of a second, which whoever only writes need not wait

                return pd.concat(frames, ignore_index=True)
            return frames[0] if frames else self.schema.empty_table().to_pandas()

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return what :meth:`frame` does in the columns of the schema, of which those that came later are null.

        columns: these alone, all of which must be there, but for those that came later.
        """
        names = [*(self.schema.names if columns is None else columns)]
        wanted = pa.schema([self.schema.field(name) for name in names])
        while True:
            paths = [self.path, *self._parts()] if self.path.exists() else []
            try:
                read = (parquet.read(one, columns and names, LATER.get(self.name, ())) for one in paths)
                return pa.concat_tables([wanted.empty_table(), *(self._whole(one, wanted) for one in read)])
            except FileNotFoundError:  # just folded
                continue
            except (OSError, pa.ArrowException) as error:
                raise RunFolderError(f"{self.path} cannot be read ({error})") from None

    def count(self) -> int:
        """Count the rows that were flushed; :class:`RunFolderError` if a file is damaged."""
        return sum(_rows(path) for path in [self.path, *self._parts()]) if self.path.exists() else 0

    def check(self) -> None:
        """Read everything that was flushed; :class:`RunFolderError` if a file is damaged or has other columns."""
        for path in [self.path, *self._parts()] if self.path.exists() else []:
            with _reader(path) as reader:
                self._whole(parquet.valid(reader.read(use_threads=False)))

    def _grows(self) -> Path:
        """Return the file that the next rows go into."""
        if not self.path.exists():
            return self.path
        last = (self.path, *self._parts())[-1]
        begins, rows = self._begins(last), _rows(last)
        return last if rows < (GROUP_ROWS if last == self.path else PART_ROWS) else self._part(begins + rows)

    def _part(self, begins: int) -> Path:
        """Return the path of the part that begins with row number ``begins``."""
        folder = self.path.parent / PARTS
        folder.mkdir(exist_ok=True)
        return folder / f"{self.name}.{begins:012d}.parquet"

    def _begins(self, path: Path) -> int:
        return 0 if path == self.path else int(path.name.split(".")[1])

    def _parts(self) -> list[Path]:
        """List the parts in their order, without those that a killed fold has put into the table and not removed."""
        found = self._all_parts()
        folded = _rows(self.path) if found and self.path.exists() else 0
        return [path for path in found if self._begins(path) >= folded]

    def _all_parts(self) -> list[Path]:
        named = re.compile(rf"{re.escape(self.name)}\.[0-9]{{12,}}\.parquet")
        return [path for path in sorted((self.path.parent / PARTS).glob("*.parquet")) if named.fullmatch(path.name)]

    def read(self, stage: str, last_round: int) -> list[Row]:
        """Return a stage's rows up to ``last_round`` (global), as far as written."""
        self.fold()
        if not self.path.exists():
            return []
        with _reader(self.path) as reader:
            rows: list[Row] = self._whole(parquet.valid(reader.read(use_threads=False))).to_pylist()
        return [row for row in rows if row["stage"] == stage and row["round"] <= last_round]

    def truncate(self, last_rounds: Mapping[str, int]) -> None:
        """Keep the rows of each stage up to its last round; drop those of other stages, and what is pending."""
        self._pending.clear()
        self.fold()
        if not self.path.exists():
            return
        with _reader(self.path) as reader:
            table = self._whole(parquet.valid(reader.read(use_threads=False)))
        keep = [
            round <= last_rounds.get(stage, -1)
            for stage, round in zip(table["stage"].to_pylist(), table["round"].to_pylist(), strict=True)
        ]
        if not all(keep):
            with self._replacing(self.path) as writer:
                writer.write_table(table.filter(pa.array(keep)), row_group_size=GROUP_ROWS)

    def _groups(self, paths: Iterable[Path]) -> Iterator[pa.Table]:
        """Yield the row groups of these files, one after the other."""
        for path in paths:
            with _reader(path) as reader:
                for group in range(reader.num_row_groups):
                    yield self._whole(parquet.valid(reader.read_row_group(group, use_threads=False)))

    def _whole(self, table: pa.Table, wanted: pa.Schema | None = None) -> pa.Table:
        """Add the columns that came after the file was begun, all null; :class:`RunFolderError` for other columns."""
        schema = self.schema if wanted is None else wanted
        for column in schema:
            if column.name not in table.column_names:
                if column.name in ("stage", "round"):
                    raise RunFolderError(f"{self.path} cannot be read (it has no column {column.name!r})")
                table = table.append_column(column, pa.nulls(len(table), column.type))
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise RunFolderError(f"{self.path} cannot be read ({error}); move it away and resume") from None

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[pq.ParquetWriter]:
        """Give a writer of a new file, which takes the old one's place when it is whole."""
        temporary = beside(path)
        try:
            with pq.ParquetWriter(temporary, self.schema, compression="zstd") as writer:
                yield writer
            with open(temporary, "rb", opener=regular) as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _reader(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with parquet.opened(path) as reader:
            yield reader
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); move it away and resume") from None


def _rows(path: Path) -> int:
    with _reader(path) as reader:
        return reader.metadata.num_rows
