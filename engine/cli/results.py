"""Results of several folders: ``fedskew query | merge``. What reads them is imported when it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from engine.analysis.coverage import named
from engine.base import last_word
from engine.base.errors import require
from engine.cli.naming import With
from engine.cli.plain import plain_console
from engine.cli.show import console as terminal
from engine.cli.show import print_result
from tune_configs import SWEEPS


def query_command(
    what: Annotated[list[str] | None, typer.Argument(help="folders of runs and sweeps, and the query last")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print the answer as CSV")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the answer as JSON, one object a row")] = False,
    columns: Annotated[bool, typer.Option("--columns", help="print all columns, as docs/schema.md")] = False,
) -> None:
    """Answer an SQL query over the tables trials, rounds, clients, classes and personal of some folders."""
    if columns:
        from engine.analysis.frames.columns import markdown

        print_result(markdown().rstrip("\n"))
        return
    *folders, query = what or [""]
    asked = bool(query) and not Path(query).is_dir()
    require(asked, "query", query, "is no query", 'give one last: fedskew query FOLDER "select * from trials"')
    require(bool(folders), "folders", "", "name no run and no sweep", f'for example fedskew query runs/* "{query}"')
    require(not (as_csv and as_json), "--csv", "true", "and --json are two ways to print", "choose one of the two")
    from engine.analysis.frames import load_results
    from engine.analysis.frames.query import answer

    found = answer(load_results(*folders), query)
    if as_json:
        print_result(json.dumps(found.to_pylist(maps_as_pydicts="strict"), default=str, indent=1))
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
    as_json: Annotated[bool, typer.Option("--json", help="print what came of it as JSON")] = False,
    own: With = None,
) -> None:
    """Put the folders of a sweep that was split over machines together in one; nothing is computed."""
    from engine.sweeps.merging import merge  # with Ray Tune

    merged = merge(out, parts, SWEEPS)
    if as_json:
        print_result(json.dumps(merged.to_mapping(), indent=1))
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
