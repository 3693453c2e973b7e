"""Metrics of clients' own models: curves over rounds, and the metrics of a run that are taken from them.

A row of personal.parquet is the model of one client at some point of a round, on the client's own test rows:

    received     what a participant of the round received, with what it keeps, before its local work
    post_local   the same after its local work, before the server's step
    post_server  what every client would receive next, with what it keeps: its personal model
    fine_tuned   the same after fine-tuning by the client
    held_out, held_out_tuned   the last two of clients that never train, which are in no other metric

Papers differ in which of these they print, so a run has a metric for each. PFLEGO's is of the round's participants
after their local work; it does not say whether its ± is over rounds or seeds: over rounds it is ``participants_std``,
over seeds the report has it. FedBABU's is after fine-tuning, with the same weight for every client.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from engine.record.columns import finite
from engine.record.last_rounds import of_last_rounds
from engine.record.metrics import PERSONAL

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["stage", "round", "point"]
MEANS = ["balanced_accuracy", "macro_f1"]  # taken over clients as they are
EVERY_CLIENT = ("post_server", "fine_tuned")  # points at which all clients with test rows are evaluated


def tenth(clients: Any) -> Any:
    """Return ceil(K / 10), the size of the worst tenth of K clients; of a whole number, or of a series of them."""
    return -(-clients // 10)


def by_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row for each stage, round and point, in the order of ``rows`` (of personal.parquet).

    samples; accuracy, by samples; client_accuracy, every client with the same weight; worst_decile_accuracy, the mean
    over the worst tenth of clients, every one with the same weight; client_std, their standard deviation (dividing by
    their number: they are all there are); balanced_accuracy, macro_f1, the means over clients.
    """
    rows = rows.reindex(columns=[*rows.columns.union(MEANS, sort=False)])  # of an earlier version's file
    weighed = rows.assign(correct=rows["accuracy"] * rows["samples"]).groupby(PLACE, sort=False)
    rounds: Any = weighed[["samples", "correct"]].sum()
    worst_first: Any = rows.sort_values("accuracy", kind="stable")
    clients = worst_first.groupby(PLACE, sort=False)["accuracy"]
    worst = worst_first[clients.cumcount() < tenth(clients.transform("size"))]
    rounds = rounds.assign(
        accuracy=rounds["correct"] / rounds["samples"],
        client_accuracy=clients.mean(),
        worst_decile_accuracy=worst.groupby(PLACE)["accuracy"].mean(),
        client_std=clients.std(ddof=0),
        **worst_first.groupby(PLACE, sort=False)[MEANS].mean(),
    )
    return rounds.drop(columns="correct").reset_index()


def of_stages(rows: pd.DataFrame, stages: Collection[str]) -> pd.DataFrame:
    return rows.loc[rows["stage"].isin(list(stages))]


def at_the_end(rows: pd.DataFrame, point: str) -> pd.DataFrame:
    """Return the rows of ``point`` in the last round that has any, one for each client."""
    own = rows.loc[rows["point"] == point]
    return own.loc[(own[["stage", "round"]] == own[["stage", "round"]].iloc[-1]).all(axis=1)] if len(own) else own


def figures(rows: pd.DataFrame, last: int, without_rounds: Collection[str] = ()) -> dict[str, float | None]:
    """Compute the metrics :data:`~engine.record.metrics.PERSONAL` of a run; None for one that ``rows`` do not tell.

    rows: of personal.parquet along the run's lineage, in the order of the file. last: the run's last round.
    without_rounds: stages that are one evaluation, and no rounds to take a mean over.

    A metric of the last evaluated round is of the last in which its point was evaluated. A standard deviation has
    n - 1 in the denominator, and needs two rounds.
    """
    if rows.empty:
        return dict.fromkeys(PERSONAL)
    return figures_of_rounds(by_round(rows), last, without_rounds)


def figures_of_rounds(rounds: pd.DataFrame, last: int, without_rounds: Collection[str] = ()) -> dict[str, float | None]:
    """Compute the same from what :func:`by_round` makes of the rows."""
    found: dict[str, float | None] = {}
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for row in rounds.to_dict("records"):
        rows_of.setdefault(row["point"], []).append(row)
    for name, curve in PERSONAL.items():
        rows = rows_of.get(curve.point, [])
        if curve.over == "last":
            found[name] = finite(rows[-1][curve.column]) if rows else None  # NaN of an earlier version's file
            continue
        values = of_last_rounds(rows, last, without_rounds)
        if curve.over == "mean":
            found[name] = statistics.fmean(values) if values else None
        else:
            found[name] = statistics.stdev(values) if len(values) > 1 else None
    return found
