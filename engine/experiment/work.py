"""The section ``work``: the local work of each client, where it is not what the section ``local`` says for all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pydantic
from pyarrow import csv
from pydantic import BeforeValidator

from engine.algorithm import Local, whole_as_int
from engine.base import parquet
from engine.base.declared import Doc, Ge, Gt, Le, Neutral
from engine.base.errors import ConfigError, DataError, require
from engine.base.files import expanded
from engine.base.opening import regular
from engine.base.section import Section

TABLE = "work.table"
COLUMNS = ("client", "work")


def read_table(path: str) -> list[float]:
    """Read the ``work`` of each ``client`` from a table, ``.csv`` or else parquet, with a line for each from 0 on.

    Raises :class:`~engine.base.errors.ConfigError` for any other file.
    """
    try:
        place = expanded(path, TABLE)
        if place.suffix == ".csv":
            with open(place, "rb", opener=regular) as file:
                table = csv.read_csv(file)
        else:
            table = parquet.read(place)
        lacking = sorted({*COLUMNS} - {*table.column_names})
        if lacking:
            raise ValueError(f"it has no column {lacking[0]!r}")
        clients, work = (table[name].to_numpy() for name in COLUMNS)
        if not np.issubdtype(clients.dtype, np.integer) or not np.issubdtype(work.dtype, np.number):
            raise ValueError("a cell is empty or no number, or a client is no whole one")
    except (OSError, ValueError, DataError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or error
        repair = "give a CSV or parquet file with the columns client and work"
        raise ConfigError(TABLE, path, f"is no table of clients' work ({why})", repair) from None
    places, lines = np.unique(clients, return_counts=True)
    wrong = np.flatnonzero((places != np.arange(len(places))) | (lines != 1))
    if len(wrong):
        client = int(wrong[0])
        count = int((clients == client).sum())
        rule = f"has {count} lines for client {client}, and each client has one, from 0 on"
        raise ConfigError(TABLE, path, rule, "correct the table")
    return work[np.argsort(clients)].tolist()


def _numbers(value: Any) -> tuple[float, ...] | None:
    """Return the numbers of clients 0, 1, ... that a list or a file gives."""
    if value is None:
        return None
    given = read_table(value) if isinstance(value, str) and value else value
    are_numbers = isinstance(given, Sequence) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and one > 0 for one in given
    )
    rule = "must be the path of a table, or a list with a number above 0 for each client"
    require(bool(given) and are_numbers, TABLE, value, rule, "for example [5, 2, 3]")
    return tuple(given)


class Work(Section):
    """The local work of each client: a draw for stragglers or for all, or a table; else what ``local`` says.

    Numbers are epochs, or steps where ``local.steps`` is set.
    """

    stragglers: Annotated[
        float | None,
        Ge(0),
        Le(1),
        Doc("share of a cohort, rounded down, whose work is drawn, see [Unequal work](#unequal-work)"),
        Neutral(None, "is none, or all with `work.low` or `work.high`"),
    ] = None
    low: Annotated[
        int | None,
        Ge(1),
        Doc("the least that is drawn, in epochs, or in steps where `local.steps` is set"),
        Neutral(None, "is 1"),
    ] = None
    high: Annotated[
        int | None, Ge(1), Doc("the most that is drawn"), Neutral(None, "is what `local` says, rounded down")
    ] = None
    drawn: Annotated[
        Literal["round", "run"], Doc("who is a straggler and how much each does: in every round, or once for the run")
    ] = "round"
    cut: Annotated[
        Literal["partial", "drop"],
        Doc("of a straggler: its part of the work counts, or it is dropped before it trains"),
        Neutral("partial", "leaves nobody out"),
    ] = "partial"
    table: Annotated[
        tuple[Annotated[float, Gt(0)], ...] | str | None,
        BeforeValidator(_numbers),
        Doc("each client's epochs or steps by its number, as a list or the path of a CSV or parquet file"),
        Neutral(None, "is none"),
    ] = None

    @pydantic.model_validator(mode="after")
    def _fields_belong_together(self) -> Work:
        rule, repair = "says all, so that nothing is drawn", "set work.table=null, or leave the draw out"
        require(self.table is None or not self.is_drawn, TABLE, "...", rule, repair)
        some = self.stragglers is not None and self.stragglers < 1
        rule = "is for a share of stragglers below 1, and would leave nobody else"
        require(self.cut == "partial" or some, "cut", self.cut, rule, "set work.stragglers, for example to 0.5")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that a result depends on: none where all clients do what ``local`` says."""
        return self.model_dump(mode="json") if self.is_drawn or self.numbers else {}

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """Each client's number of ``table``, whole ones as such; none where there is no table."""
        return tuple(map(whole_as_int, self.table)) if isinstance(self.table, tuple) else ()

    @property
    def is_drawn(self) -> bool:
        """True if some clients' work is drawn."""
        return self.stragglers != 0 and (self.stragglers, self.low, self.high) != (None, None, None)

    @property
    def share(self) -> float:
        """The share of a cohort whose work is drawn."""
        return 0.0 if not self.is_drawn else 1.0 if self.stragglers is None else self.stragglers

    def span(self, local: Local) -> tuple[int, int]:
        """Return the least and the most that is drawn where ``local`` says what all others do."""
        return self.low or 1, self.high or int(local.epochs if local.steps is None else local.steps)

    def check_clients(self, clients: int) -> None:
        """Refuse a table of another number of clients."""
        given = len(self.numbers)
        rule = f"is for clients 0 to {given - 1}, and clients are 0 to {clients - 1}"
        require(given in (0, clients), TABLE, "...", rule, "correct the table")

    def check(self, local: Local) -> None:
        """Refuse numbers that do not go with what ``local`` says."""
        low, high = self.span(local)
        rule = f"must be at most {high}, the most that is drawn: work.high, or what local says, rounded down"
        require(not self.is_drawn or low <= high, "work.low", low, rule, "lower it, or raise work.high")
        parts = [one for one in self.numbers if local.steps is not None and not isinstance(one, int)]
        require(not parts, TABLE, parts[:1], "must have whole numbers, for local.steps is set", "round them")
