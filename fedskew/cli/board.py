"""A method of one's own on the board: ``fedskew board``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from engine.base.errors import require
from fedskew.cli.claims import BOARD, LEDGER
from fedskew.cli.naming import Overrides, Profile
from fedskew.cli.output import json_wanted, plain_console, say
from fedskew.cli.sweep import STORE_GB, sweep
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from engine.results.results import Results
    from fedskew.lab.ledger import BoardRow


def board_command(
    mine: Annotated[
        str, typer.Argument(metavar="FILE.py", help="whose function board returns the sweep of your method")
    ],
    overrides: Overrides = None,
    profile: Profile = "laptop",
    root: Annotated[Path, typer.Option(help="the checkout of fedskew whose docs/claims has the board")] = Path("."),
) -> None:
    """Tune a method of your own with the budget that all on the board had, and show it among them."""
    from engine.results.loading import load
    from engine.sweeps.folder import SweepFolder
    from engine.sweeps.named import load as named
    from engine.sweeps.options import How

    reference, words = f"{mine}:{BOARD.stem}", overrides or []
    folder = SweepFolder.for_sweep(named(reference, profile, words, SWEEPS), None)
    code = sweep(reference, profile, words, folder.path, How(limit_gb=STORE_GB), None)
    if code or json_wanted():
        raise typer.Exit(code)
    results = load(folder.path)
    methods = any(axis.name == "algorithm" for axis in results.axes)
    require(methods, "FILE", mine, "has a board without an algorithm on its grid", "see tune_configs/board.py")
    _show(results, _rows(results, folder.sweep(), root / LEDGER))


def _rows(results: Results, own: Mapping[str, Any], ledger: Path) -> list[BoardRow]:
    """Return the rows of the board on the same task, if there is one, and those of the methods that are not on it.

    own: the sweep as its folder has it.
    """
    from engine.results.results import larger_is_better
    from fedskew.lab import tuned_sides
    from fedskew.lab.ledger import compared, read_all, rows_of_methods

    rows: list[BoardRow] = []
    for entry in read_all(ledger):
        of_board = entry.name.startswith(f"{BOARD.stem}.") and not entry.choice
        if of_board and _task(entry.definition) == _task(own):
            rows = rows_of_methods(entry.results(()), entry.searched, ())
            say(f"board      {entry.name} of {ledger}: {len(rows)} methods")
    known = {row.method: row for row in rows}
    for row in rows_of_methods(results, tuned_sides.read(results.path), (), mine=True):
        if row.method not in known:
            rows.append(row)
        elif row.seeds != known[row.method].seeds:
            say(f"board      {row.method} has other figures here: compare yours with your own {row.method}")
    return compared(rows, larger_is_better(results, results.metric))


def _task(definition: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two sweeps have in common whose methods stand beside each other."""
    base = {**definition["base"], "data": {**definition["base"]["data"], "root": None}}
    return base, definition["metric"], definition.get("tuning_seeds"), definition.get("tuning_rows")


def _show(results: Results, rows: list[BoardRow]) -> None:
    from fedskew.lab.quantities import quantity

    measured = quantity(results.metric, results.target_accuracy)
    table = Table(box=None)
    for name in ("", "method", "chosen", f"{measured.short}, 95 % interval", "over fedavg"):
        table.add_column(name)
    for number, row in enumerate(rows, start=1):
        low, high = map(measured.text, row.interval)
        ahead, least, most = map(measured.difference, row.ahead)
        figure = f"{measured.text(row.mean)} ({low} to {high})"
        name = f"{row.method}{' (yours)' if row.mine else ''}{' *' if row.level else ''}"
        table.add_row(str(number), name, row.words, figure, f"{ahead} ({least} to {most})")
    plain_console().print(table)
    say("* level with the best: the interval of the difference, widened for the number of methods, holds 0")
