"""What is made of finished runs and sweeps: ``fedskew report | query | compare | merge | leaderboard | cite | export``.

What reads them is imported when a command asks for it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from engine.base.errors import require, resume_command
from engine.base.opening import read_text
from fedskew.cli.naming import Folder, Folders, Supposed, devices_of
from fedskew.cli.output import console, json_wanted, plain_console, print_json, print_line, print_result, say, table
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from engine.results.simulated_time import Devices
    from fedskew.lab.comparing.sides import Comparison, Pair

LEADERBOARD = Path("leaderboard")
MOST_SAID = 8  # sentences on what is not paired


def query_command(
    what: Annotated[list[str] | None, typer.Argument(help="folders of runs and sweeps, and the query last")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print the answer as CSV")] = False,
    columns: Annotated[bool, typer.Option("--columns", help="print all columns, as docs/schema.md")] = False,
    devices: Supposed = None,
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
    require(
        not (as_csv and json_wanted()), "--csv", "true", "and --json are two ways to print", "choose one of the two"
    )
    from engine.results.frames import load_results
    from fedskew.lab.query import answer

    found = answer(load_results(*folders, devices=devices_of(devices)), query)
    if json_wanted():
        print_json({"rows": found.to_pylist(maps_as_pydicts="strict")})
    elif as_csv:
        import pandas as pd

        from engine.base.csv_text import csv_text

        exact = {name: found[name].to_pylist() for name in found.column_names}  # pandas would round whole numbers
        print_result(csv_text(pd.DataFrame(exact, dtype=object)).rstrip("\n"))
    else:
        rows = [map(_text, row.values()) for row in found.to_pylist(maps_as_pydicts="strict")]
        plain_console().print(table(found.schema.names, rows, box=None))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def merge_command(
    out: Annotated[Path, typer.Argument(help="the new folder")],
    parts: Annotated[list[Path], typer.Argument(help="folders of one sweep, split by seeds or by values of its grids")],
) -> None:
    """Put the folders of a sweep that was split over machines together in one; nothing is computed."""
    from engine.results.completeness import named
    from fedskew.lab.sweeping.merging import merge  # with Ray Tune

    merged = merge(out, parts, SWEEPS)
    if json_wanted():
        print_json(asdict(merged))
        return
    here = merged.planned - len(merged.missing)
    doubles = f"; {merged.doubles} are in several, equal to the bit" if merged.doubles else ""
    lines = [
        f"{here} of {merged.planned} trials{doubles}",
        *(f"{count} of {part}" for part, count in merged.taken.items()),
    ]
    lines += [f"damaged: {sentence}" for sentence in merged.damaged]
    lines += [f"missing: {named(merged.missing)}; {resume_command(out)}"] if merged.missing else []
    lines += [f"computed by several: {name}: {', '.join(values)}" for name, values in merged.versions.items()]
    say("\n".join([f"merged     {out}", *lines]))


def compare_command(
    folders: Folders,
    metric: Annotated[list[str] | None, typer.Option(help="a column of the trials; may be repeated")] = None,
    devices: Supposed = None,
) -> None:
    """Say in what runs or sweeps differ from the first one: their configs by key, their results paired by seed."""
    from engine.results.frames import load_results
    from fedskew.lab.comparing.sides import compare

    sides = load_results(*folders, devices=devices_of(devices)).folders  # without those that cannot be read
    require(
        len(sides) == len(folders), "folders", ", ".join(map(str, folders)), "are not all whole", "name those alone"
    )
    found = compare(sides, metric or [])
    if json_wanted():
        print_json(found.to_mapping())
    else:
        _show_comparison(found)


def _show_comparison(found: Comparison) -> None:
    tables = plain_console()
    names = [side.name for side in found.sides]
    for title, rows in (("config", found.config), ("code and machine", found.versions)):
        cells = [(name, *map(_few, sides)) for name, sides in rows.items()]
        tables.print(table((title, *names), cells, box=None) if rows else f" {title}: no difference", highlight=False)
        tables.print()
    for second in names[1:]:
        pairs = [pair for pair in found.pairs if pair.second == second]
        if pairs:
            tables.print(f" {second} less {names[0]}, paired by seed", highlight=False)
            tables.print(_pairs_table(pairs, found.interval))
            _show_bits(tables, [pair for pair in pairs if pair.metric == pairs[0].metric])
    for sentence in found.unpaired[:MOST_SAID]:
        tables.print(f" not paired: {sentence}", highlight=False, soft_wrap=True)
    if len(found.unpaired) > MOST_SAID:
        tables.print(f" not paired: {len(found.unpaired) - MOST_SAID} more; --json has all", highlight=False)


def _few(values: Sequence[str]) -> str:
    more = f" and {len(values) - MOST_SAID} more" if len(values) > MOST_SAID else ""
    return ", ".join(values[:MOST_SAID]) + more


def _pairs_table(pairs: Sequence[Pair], interval: str) -> Table:
    """Return a row for each pair of cells: of one metric under its name, and without columns that say nothing."""
    from fedskew.lab.quantities import quantity

    names = ("metric", "cell", pairs[0].first, pairs[0].second, "difference", f"95 % {interval}", "p (Holm)", "seeds")
    rows = []
    for pair in pairs:
        measured = quantity(pair.metric)
        bounded = math.isfinite(pair.low)
        rows.append(
            (
                measured.short,
                pair.cell,
                measured.text(pair.mean_first),
                measured.text(pair.mean_second),
                measured.difference(pair.difference, unit=True),
                " to ".join(map(measured.difference, (pair.low, pair.high))) * bounded,
                f"{pair.p_holm:.3g}" * (bounded and math.isfinite(pair.p_holm)),
                ", ".join(map(str, pair.seeds)),
            )
        )
    alone = len({row[0] for row in rows}) == 1
    shown = [place for place in range(alone, len(names)) if any(row[place] for row in rows)]
    title = rows[0][0] if alone else None
    made = table([names[place] for place in shown], [[row[place] for place in shown] for row in rows], title, box=None)
    for column in made.columns:
        column.overflow, column.no_wrap = "fold", column.header == "difference"
    return made


def _show_bits(tables: Console, cells: Sequence[Pair]) -> None:
    """Say how many pairs are equal to the bit, and how many are of other partitions, which a difference then holds."""
    from fedskew.lab.wording import counted

    pairs = sum(len(cell.seeds) for cell in cells)
    equal, other = sum(cell.equal_weights for cell in cells), pairs - sum(cell.equal_partitions for cell in cells)
    if equal:
        tables.print(f" {equal} of {counted(pairs, 'pair')} with equal weights", highlight=False)
    if other:
        tables.print(f" {other} of {counted(pairs, 'pair')} with other partitions of the data", highlight=False)
    tables.print()


def leaderboard_command(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="the folder of the page, its configs and the same as JSON")] = LEADERBOARD,
    metric: Annotated[str | None, typer.Option(help="a column of the trials; none: the first folder's own")] = None,
) -> None:
    """Write a static page of all methods by all tasks; each cell with configs, hashes, interval and commands."""
    from engine.results.frames import load_results
    from fedskew.lab.leaderboard import write

    page = write(load_results(*folders, metric=metric).folders, out, metric)
    if json_wanted():
        print_json(json.loads(read_text(page.with_suffix(".json"))))
    say(f"leaderboard {page}")


def report_command(
    folder: Folder,
    metric: Annotated[str | None, typer.Option(help="another column of the trials table")] = None,
    rope: Annotated[float, typer.Option(help="points by which accuracies may differ and be worth the same")] = 0.5,
    devices: Supposed = None,
) -> None:
    """Write report/report.html in the folder: claims, tables, curves, trials; beside it files for a paper and CSV."""
    require(0 <= rope < 100, "--rope", rope, "is no difference in points", "for example --rope 0.5")
    supposed = devices_of(devices)
    page = report(folder, metric, rope, supposed)
    if json_wanted():
        print_json({"folder": folder, "report": page, **outcome_in(folder, rope, supposed)})


def report(folder: Path, metric: str | None, rope: float = 0.5, devices: Devices | None = None) -> Path:
    """Write the report of a sweep or a run, and return its page; ``rope`` is in points."""
    from fedskew.lab.report import write  # with matplotlib

    with console.status("report"):
        page = write(folder, metric, rope / 100, devices)
    say(f"report     {page}")
    return page


def outcome_in(folder: Path, rope: float = 0.5, devices: Devices | None = None) -> dict[str, Any]:
    """Read what trials and claims in a folder came to; ``rope`` is in points."""
    from engine.results.loading import load
    from fedskew.lab.comparing.effects import claim_values, effects_of
    from fedskew.lab.comparing.verdicts import judge

    results = load(folder, devices=devices)
    claims = [claim_values(one, effects_of(results, one.claim, rope / 100)) for one in judge(results)]
    return {"trials": results.completeness.planned, "statuses": results.completeness.statuses, "claims": claims}


def cite_command(folder: Folder) -> None:
    """Print the BibTeX of fedskew and of every method, data set, partition and architecture that a folder has used."""
    from fedskew.lab.paper.citations import citations  # with pandas

    text = citations(folder)
    if json_wanted():
        print_json({"folder": folder, "bibtex": text})
    else:
        print_line(text.rstrip("\n"))


def export_command(
    folder: Folder,
    to: Annotated[
        str,
        typer.Option(
            metavar="KIND[:PLACE]",
            help="mlflow | tensorboard | wandb | csv | parquet, and a folder or MLflow's URI; none: beside the run's",
        ),
    ],
) -> None:
    """Bring results to a tracker or into files; what is there already is not added again."""
    from fedskew.trackers.exporting import exported

    kind, _, place = to.partition(":")
    done = exported(folder, kind, place or None)
    say(f"exported   {done.place}: {done.summary}")
    print_json({"folder": folder, "to": kind, "place": done.place, "new": done.new})
