"""SQL over the tables of results, answered by DuckDB (the extra ``query``); it reads these tables and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.base.errors import ConfigError, ResourceError, nearest, one_line, require
from engine.results.frames.frame_columns import TABLES
from engine.results.frames.frames import Frames

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Whatever a query says, DuckDB opens no file, loads no extension and looks at no variable of this process.
CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_COLUMN = (r'Referenced column "([^"]+)" not found', r'does not have a column named "([^"]+)"')
_TABLE = (r"Table with name (\S+) does not exist",)


def answer(frames: Frames, query: str) -> pa.Table:
    """Return what ``query`` selects from trials, rounds, clients, classes and personal.

    Raises :class:`ConfigError` for what is no single SELECT, for an unknown table or column and for anything else that
    DuckDB refuses, and :class:`ResourceError` where DuckDB is not installed.
    """
    duckdb = _duckdb()
    columns: dict[str, list[str]] = {}
    try:
        with duckdb.connect(":memory:", config=CLOSED) as connection:
            _check_reads(connection, query)
            for name in TABLES:
                # The large ones are read only if they are asked for.
                if re.search(rf"\b{name}\b", query, re.IGNORECASE):
                    table = frames.arrow(name)
                    columns[name] = table.schema.names
                    alike = [one for one, n in Counter(map(str.casefold, table.schema.names)).items() if n > 1]
                    require(not alike, "axis", ", ".join(alike), "stands for two columns in SQL", "use load_results")
                    connection.register(name, table)
            connection.execute("SET lock_configuration = true")
            found = connection.sql(query)
            # Of columns with one name, as a join has, each gets its own: those that DuckDB gives them in a subquery.
            return found.to_arrow_table().rename_columns(found.project("*").columns)
    except duckdb.Error as error:
        raise _told(query, str(error), columns) from None


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ResourceError(
            "fedskew query needs DuckDB, which is not installed; pip install 'fedskew[query]'"
        ) from None
    return duckdb


def _check_reads(connection: DuckDBPyConnection, query: str) -> None:
    statements = connection.extract_statements(query)
    kinds = [statement.type.name for statement in statements]
    rule = "is not one SELECT, and a query only reads"
    require(kinds == ["SELECT"], "query", query, rule, 'for example "select setting, accuracy from trials"')


def _told(query: str, said: str, columns: dict[str, list[str]]) -> ConfigError:
    """Return DuckDB's refusal in one sentence, with the nearest name for one that it does not know."""
    names = sorted({name for table in columns.values() for name in table})
    for patterns, field, known in ((_COLUMN, "column", names), (_TABLE, "table", list(TABLES))):
        for pattern in patterns:
            found = re.search(pattern, said)
            if found is not None:
                rule = f"is no {field} of {', '.join(columns) or 'the results'}"
                repair = nearest(found[1], known) if known else "see fedskew query --columns"
                return ConfigError(field, found[1], rule, repair)
    reason = one_line(said.split("\n\nLINE ")[0].strip())
    return ConfigError(
        "query", query, f"was refused by DuckDB ({reason})", "see fedskew query --columns for the tables"
    )
