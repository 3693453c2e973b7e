"""Results of several folders: ``fedskew query | compare | merge | leaderboard``.

What reads them is imported when it is asked for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from engine.base import last_word
from engine.base.errors import require
from engine.base.opening import read_text
from fedskew.cli.json_output import Json, print_json, print_line
from fedskew.cli.naming import Rope, With, check_rope
from fedskew.cli.plain import plain_console
from fedskew.cli.show import console as terminal
from fedskew.cli.show import print_result
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from fedskew.lab.comparing.sides import Comparison, Pair

LEADERBOARD = Path("leaderboard")
MOST_SAID = 8  # sentences on what is not paired


def query_command(
    what: Annotated[list[str] | None, typer.Argument(help="folders of runs and sweeps, and the query last")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print the answer as CSV")] = False,
    as_json: Json = False,
    columns: Annotated[bool, typer.Option("--columns", help="print all columns, as docs/schema.md")] = False,
) -> None:
    """Answer an SQL query over the tables trials, rounds, clients, classes and personal of some folders."""
    if columns:
        from engine.results.frames.frame_columns import TABLES, markdown

        print_line(markdown().rstrip("\n"))
        print_json({"tables": {table: [vars(one) for one in known] for table, known in TABLES.items()}})
        return
    *folders, query = what or [""]
    asked = bool(query) and not os.path.isdir(query)  # which takes a query longer than any name
    require(asked, "query", query, "is no query", 'give one last: fedskew query FOLDER "select * from trials"')
    require(bool(folders), "folders", "", "name no run and no sweep", f'for example fedskew query runs/* "{query}"')
    require(not (as_csv and as_json), "--csv", "true", "and --json are two ways to print", "choose one of the two")
    from engine.results.frames import load_results
    from engine.results.frames.query import answer

    found = answer(load_results(*folders), query)
    if as_json:
        print_json({"rows": found.to_pylist(maps_as_pydicts="strict")})
    elif as_csv:
        from engine.base.csv_text import csv_text

        print_result(csv_text(found.to_pandas()).rstrip("\n"))
    else:
        shown = Table(*found.schema.names, box=None)
        for row in found.to_pylist(maps_as_pydicts="strict"):
            shown.add_row(*map(_text, row.values()))
        plain_console().print(shown)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def merge_command(
    out: Annotated[Path, typer.Argument(help="the new folder")],
    parts: Annotated[list[Path], typer.Argument(help="folders of one sweep, split by seeds or by values of its grids")],
    as_json: Json = False,
    own: With = None,
) -> None:
    """Put the folders of a sweep that was split over machines together in one; nothing is computed."""
    from engine.results.coverage import named
    from fedskew.lab.sweeping.merging import merge  # with Ray Tune

    merged = merge(out, parts, SWEEPS)
    if as_json:
        print_json(merged.to_mapping())
        return
    here = merged.planned - len(merged.missing)
    doubles = f"; {merged.doubles} are in several, equal to the bit" if merged.doubles else ""
    lines = [
        f"{here} of {merged.planned} trials{doubles}",
        *(f"{count} of {part}" for part, count in merged.taken.items()),
    ]
    lines += [f"damaged: {told}" for told in merged.damaged]
    lines += [f"missing: {named(merged.missing)}; {last_word.resume_command(out)}"] if merged.missing else []
    lines += [f"computed by several: {name}: {', '.join(values)}" for name, values in merged.versions.items()]
    terminal.print("\n".join([f"merged     {out}", *lines]), highlight=False, soft_wrap=True, markup=False)


def compare_command(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs and sweeps; the first is compared with")],
    metric: Annotated[list[str] | None, typer.Option(help="a column of the trials; may be repeated")] = None,
    rope: Rope = 0.5,
    as_json: Json = False,
) -> None:
    """Say what runs or sweeps differ in: their configs by key, their results paired by seed."""
    from engine.results.frames import load_results
    from fedskew.lab.comparing.sides import compare

    check_rope(rope)
    found = compare(load_results(*folders).folders, metric or [], rope / 100)
    if as_json:
        print_json(found.to_mapping())
    else:
        _show_comparison(found)


def _show_comparison(found: Comparison) -> None:
    console = plain_console()
    names = [side.name for side in found.sides]
    for title, rows in (("config", found.config), ("code and machine", found.versions)):
        table = Table(title, *names, box=None)
        for one in rows:
            table.add_row(one.name, *(_few(values) for values in one.values))
        console.print(table if rows else f" {title}: no difference", highlight=False)
        console.print()
    for second in names[1:]:
        pairs = [pair for pair in found.pairs if pair.second == second]
        if pairs:
            console.print(f" {second} less {names[0]}, paired by seed", highlight=False, soft_wrap=True)
            console.print(_pairs_table(pairs, found.interval))
            if any(math.isfinite(pair.improvement.low) for pair in pairs):
                console.print(_worth_table(pairs))
            _show_bits(console, [pair for pair in pairs if pair.metric == pairs[0].metric])
    for told in found.unpaired[:MOST_SAID]:
        console.print(f" not paired: {told}", soft_wrap=True, highlight=False)
    if len(found.unpaired) > MOST_SAID:
        console.print(f" not paired: {len(found.unpaired) - MOST_SAID} more; --json has all", highlight=False)


def _few(values: Sequence[str]) -> str:
    more = f" and {len(values) - MOST_SAID} more" if len(values) > MOST_SAID else ""
    return ", ".join(values[:MOST_SAID]) + more


def _pairs_table(pairs: Sequence[Pair], interval: str) -> Table:
    """Return a row for each pair of cells."""
    from fedskew.lab.quantities import quantity

    rows = []
    for pair in pairs:
        measured, figures = quantity(pair.metric), pair.figures
        bounded = math.isfinite(figures.low)
        rows.append(
            {
                "metric": measured.short,
                "cell": pair.cell,
                **dict(zip((pair.first, pair.second), map(measured.text, pair.means), strict=True)),
                "difference": measured.difference(figures.mean, unit=True),
                f"95 % {interval}": " to ".join(map(measured.difference, (figures.low, figures.high))) * bounded,
                "p (Holm)": f"{pair.p_holm:.3g}" * (bounded and math.isfinite(pair.p_holm)),
                "seeds": ", ".join(map(str, pair.seeds)),
            }
        )
    return _laid_out(rows)


def _worth_table(pairs: Sequence[Pair]) -> Table:
    """Return how sure it is, for each pair of cells, that the second is better, and by how much that matters."""
    from fedskew.lab.quantities import quantity

    rope = next((f" ±{100 * pair.rope:g}" for pair in pairs if math.isfinite(pair.rope)), "")
    rows = []
    for pair in (one for one in pairs if math.isfinite(one.improvement.low)):
        lies = (pair.practical.below, pair.practical.within, pair.practical.above)
        shares = [f"{share:.2f}" * math.isfinite(share) for share in lies]
        rows.append(
            {
                "metric": quantity(pair.metric).short,
                "cell": pair.cell,
                f"{pair.second} better": f"{pair.improvement.chance:.2f}",
                **dict(zip(("below", f"within{rope} points", "above"), shares, strict=True)),
            }
        )
    return _laid_out(rows, ", how sure")


def _laid_out(rows: Sequence[Mapping[str, str]], what: str = "") -> Table:
    """Return rows, of one metric under its name and ``what``; columns that have nothing to say are left out."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    alone = len({row["metric"] for row in rows}) == 1
    title = names.pop(0) if alone else ""
    table = Table(box=None, title=f"{rows[0][title]}{what}" if alone else None, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name == "difference")
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _show_bits(console: Console, cells: Sequence[Pair]) -> None:
    """Say how many pairs are equal to the bit, and how many are of other partitions, which a difference then holds."""
    from fedskew.lab.wording import counted

    pairs = sum(len(cell.seeds) for cell in cells)
    equal, other = sum(cell.equal_weights for cell in cells), pairs - sum(cell.equal_partitions for cell in cells)
    if equal:
        console.print(f" {equal} of {counted(pairs, 'pair')} with equal weights", highlight=False)
    if other:
        console.print(f" {other} of {counted(pairs, 'pair')} with other partitions of the data", highlight=False)
    console.print()


def leaderboard_command(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs and sweeps")],
    out: Annotated[Path, typer.Option(help="the folder of the page, its configs and the same as JSON")] = LEADERBOARD,
    metric: Annotated[str | None, typer.Option(help="a column of the trials; none: the first folder's own")] = None,
    as_json: Json = False,
) -> None:
    """Write a static page of all methods by all tasks; each cell with configs, hashes, interval and commands."""
    from engine.results.frames import load_results
    from fedskew.lab.leaderboard import write

    page = write(load_results(*folders, metric=metric).folders, out, metric)
    if as_json:
        print_json(json.loads(read_text(page.with_suffix(".json"))))
    terminal.print(f"leaderboard {page}", highlight=False, soft_wrap=True, markup=False)
