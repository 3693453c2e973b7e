"""Numbers that travelled up to some round of a run's lineage, in its rounds and in the exchanges outside them.

Rows are those of rounds.parquet and exchanges.parquet, as frames. ``order``: each stage of the lineage -> its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

EXCHANGE = ["stage", "round", "when", "exchange"]  # what tells one exchange from the next
BOTH_WAYS = ["floats_up", "floats_down"]


def until(rows: pd.DataFrame, order: Mapping[str, int], stage: str, round: int) -> pd.DataFrame:
    """Return the rows along the lineage up to ``round`` (global) of ``stage``, those of that round included.

    An exchange before a stage's first round has the last round of the stage before, and its own stage.
    """
    place = rows["stage"].map(lambda name: order.get(name, math.inf))
    here = (place == order[stage]) & (rows["round"] <= round)
    return rows.loc[(place < order[stage]) | here]


def in_bytes(rows: pd.DataFrame, precision: str) -> pd.DataFrame:
    """Return what each row sent up and down in bytes, in the columns :data:`BOTH_WAYS`."""
    floats: Any = rows[BOTH_WAYS]
    return floats * (8 if precision == "float64" else 4)


def of_all(rows: pd.DataFrame) -> int:
    """Add up what every client sent up and down, in floats or in bytes as the rows have it."""
    return int(rows[BOTH_WAYS].to_numpy().sum())


def of_one_client(rounds: pd.DataFrame, exchanges: pd.DataFrame) -> float:
    """Add up the floats of one client that takes part in every round and exchange: the means over those that did.

    What CBFL's Table 13 calls communication: 2 * 0.3 M * 974 rounds = 584.4 M. A round of an empty cohort has none.
    """
    taken = rounds.loc[rounds["clients"] > 0]
    of_rounds = taken.assign(floats=(taken["floats_up"] + taken["floats_down"]) / taken["clients"])
    both_ways = exchanges.assign(floats=exchanges["floats_up"] + exchanges["floats_down"])
    of_exchanges: Any = both_ways.groupby(EXCHANGE)["floats"].mean()
    return float(of_rounds["floats"].sum() + of_exchanges.sum())
