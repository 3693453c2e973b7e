"""Tables in the layout of a paper, with the comparisons behind their bold figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine.base.errors import ConfigError
from engine.record.run_folder import BREAKS_PRIVACY
from engine.results.claims import PaperTable
from engine.results.completeness import OTHERS
from engine.results.results import Results
from engine.results.settings import key, matches, names_oracle, setting_label
from fedskew.lab.comparing.comparisons import comparisons, paper_frame
from fedskew.lab.comparing.ranking import distinct
from fedskew.lab.comparing.ranks import Ranks, ranks_of
from fedskew.lab.drawing import Drawing, drawn
from fedskew.lab.figures import critical_differences
from fedskew.lab.pages.tables import (
    NO_P,
    Cell,
    Table,
    difference_cells,
    interval_text,
    p_cell,
    p_text,
    ranks_table,
    seeds_cell,
    spread_text,
    value_cell,
    word_cell,
)
from fedskew.lab.quantities import Quantity, quantity_of, with_unit
from fedskew.lab.wording import capitalised, counted, shown

MOST_ROWS, MOST_COLUMNS = 48, 8  # of a table that the report makes up by itself
BOLD = (
    "Bold: the best of each column, and what is not significantly different from it (the paired 95 % interval "
    "contains 0, or all differences are 0); what failed on a seed only where all did."
)
BOLD_ONE_SEED = "Bold: the best of each column; one seed cannot tell it from the others."


@dataclass(frozen=True)
class TableView:
    """A table in the layout of a paper, or why there is none."""

    title: str
    source: str
    tables: tuple[Table, ...] = ()  # first itself, then the comparisons behind its bold figures, and the average ranks
    diagram: Drawing | None = None  # of the ranks
    problem: str = ""


def paper_tables(results: Results) -> list[TableView]:
    layouts = list(results.tables) or _own_layouts(results)
    return [_table(results, layout, f"table-{number}") for number, layout in enumerate(layouts, start=1)]


def _own_layouts(results: Results) -> list[PaperTable]:
    """One table of the whole grid, if a sweep asks for none and the grid is small enough to be read."""
    counts = {axis.name: len(distinct(results.trials[axis.name])) for axis in results.axes if axis.kind == "grid"}
    if not counts or len(counts) < len(results.axes):
        return []
    rows, columns = tuple(counts)[:-1], tuple(counts)[-1:]
    if not rows or counts[columns[0]] > MOST_COLUMNS:
        rows, columns = rows + columns, ()
    if math.prod(counts[name] for name in rows) > MOST_ROWS:
        return []
    return [PaperTable("All settings", rows, columns, results.metric)]


def _table(results: Results, layout: PaperTable, name: str) -> TableView:
    try:
        frame, compared = paper_frame(results, layout), comparisons(results, layout)
    except ConfigError as error:
        return TableView(layout.title, layout.source, problem=f"This sweep cannot fill the table: {error}.")
    measured = quantity_of(results, layout.metric)
    cells: list[dict[str, Any]] = frame.to_dict("records")
    best = _best(cells, compared, layout)
    across = distinct(tuple(cell[axis] for axis in layout.columns) for cell in cells)
    down: dict[Any, dict[Any, Mapping[str, Any]]] = {}
    for cell in cells:
        down.setdefault(_place(cell, layout.rows), {})[_place(cell, layout.columns)] = cell
    rows = []
    for row in down.values():
        first = next(iter(row.values()))
        filled = [_figure(row.get(key(place)), measured, best, layout) for place in across]
        rows.append([*(value_cell(first[axis]) for axis in layout.rows), *filled])
    columns = [setting_label(dict(zip(layout.columns, place, strict=True))) or measured.short for place in across]
    several = any(cell["n"] > 1 for cell in cells)
    averaged = cells[0]["averaged"] if cells else ""
    where = ", ".join(f"{axis} = {shown(value)}" for axis, value in layout.where.items())
    notes = [
        f"{capitalised(measured.title)}{', mean ± standard deviation over seeds' if several else ''}.",
        f"At {where}." if where else "",
        f"Averaged over {averaged}, seed by seed." if averaged else "",
        _privacy(results, layout),
        (BOLD if several else BOLD_ONE_SEED) if len(compared) else "",
        "After the word paper: the published figure, which is compared with ours where the setting is the same."
        if any(not math.isnan(cell["published"]) for cell in cells)
        else "",
    ]
    head = (*layout.rows, *columns)
    table = Table(name, layout.title, " ".join(filter(None, notes)), head, rows, frame, labels=len(layout.rows))
    pairs = _pairs(compared, layout, measured, f"{name}-comparisons", results.looks)
    ranks = ranks_of(results, layout)
    tables = (table, pairs, _ranks(ranks, f"{name}-ranks") if ranks else None)
    diagram = None
    if ranks:
        diagram = drawn("ranks", lambda: critical_differences(name.replace("table", "ranks"), ranks), None)
    return TableView(layout.title, layout.source, tuple(filter(None, tables)), diagram)


def _ranks(ranks: Ranks, name: str) -> Table:
    note = (
        f"The best of each column has rank 1. Friedman's test of equal settings: p {p_text(ranks.p)}; two settings are "
        f"told apart if their average ranks differ by {ranks.critical:.2f} (Nemenyi, 5 %; Demsar 2006)."
    )
    if ranks.left_out:
        note += f" Left out, for some setting has no figure there: {counted(ranks.left_out, 'column')}."
    return ranks_table(ranks, name, "Average ranks", note)


def _privacy(results: Results, layout: PaperTable) -> str:
    """Return a note for a table in which oracles stand and no label says so."""
    inside: list[dict[str, Any]] = [
        row
        for row in results.trials.to_dict("records")
        if all(matches(row[name], wanted) for name, wanted in layout.where.items())
    ]
    oracles = [row for row in inside if row["breaks_privacy"] == 1]
    if all(names_oracle([row[name] for name in layout.axes]) for row in oracles):
        return ""
    return f"{'Every figure' if len(oracles) == len(inside) else 'A figure here'} is of {BREAKS_PRIVACY}."


def _place(row: Mapping[str, Any], axes: Iterable[str]) -> Any:
    return key([row[axis] for axis in axes])


def _best(cells: list[dict[str, Any]], compared: pd.DataFrame, layout: PaperTable) -> set[Any]:
    """The cells in bold: the reference of each column, and those that are not told apart from it."""
    if not len(compared):
        return set()
    plain = {_place(row, layout.axes) for row in compared.to_dict("records") if not row["bold"]}
    return {_place(cell, layout.axes) for cell in cells if math.isfinite(cell["mean"])} - plain


def _figure(row: Mapping[str, Any] | None, measured: Quantity, best: set[Any], layout: PaperTable) -> Cell:
    if row is None:
        return Cell("", math.nan)
    lost = [f"{row[status]} {status}" for status in OTHERS if row[status]]
    text = measured.text(row["mean"]) + spread_text(measured, row["std"], row["n"])
    text += f", {row['failed']} failed" if row["failed"] else ""
    interval = f"95 % interval {interval_text(measured, row['low'], row['high'], signed=False)}"
    tip = [
        setting_label({name: row[name] for name in layout.axes}),
        interval if row["n"] > 1 else "",
        ", ".join([counted(row["n"], "seed"), *lost]),
    ]
    below, below_style = "", ""
    if not math.isnan(row["published"]):  # infinite: a target that the paper never reached
        below = f"paper {measured.text(row['published'])}"
        if row["same_setting"]:
            tip.append(f"ours less the paper's: {measured.difference(row['difference'], unit=True)}")
        else:
            below, below_style = f"{below}, other setting", "other"
        tip.append(row["note"])
    style = "best" if _place(row, layout.axes) in best else ""
    if not row["n"]:
        text = ", ".join(lost) or "–"
    return Cell(text, row["mean"], "\n".join(filter(None, tip)), style, below, below_style)


def _pairs(compared: pd.DataFrame, layout: PaperTable, measured: Quantity, name: str, looks: str) -> Table | None:
    if not len(compared):
        return None
    difference = with_unit("difference", measured.unit_of_difference)
    head = ("setting", "best of the column", difference, "95 % interval", "p", "p, Holm", "seeds")
    records: list[dict[str, Any]] = compared.to_dict("records")
    rows = [
        [
            *(value_cell(row[axis]) for axis in layout.columns),
            word_cell(row["setting"]),
            word_cell(row["reference"]),
            *difference_cells(measured, row["difference"], row["low"], row["high"]),
            p_cell(row["p"]),
            p_cell(row["p_holm"]),
            seeds_cell(row["seeds"]),
        ]
        for row in records
    ]
    fewest = min(row["n"] for row in records)
    least = f" With {fewest} seeds no exact p is below {2 / 2**fewest:g}." if 1 < fewest < 6 else ""
    test = f"p: exact sign-flip test, two-sided; Holm: over the rows of this table.{least}" if looks == "once" else NO_P
    note = (
        "Paired seed by seed with the best of the same column, which was chosen by these same seeds, so its lead is on "
        f"the large side. {test}"
    )
    labels = len(layout.columns) + 2
    return Table(name, "Paired differences", note, (*layout.columns, *head), rows, compared, labels, len(rows) > 14)
