"""A method of one's own on the board: ``fedskew board``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from engine.base.errors import ConfigError, require
from fedskew.cli.claims import BOARD, LEDGER, sweep_now
from fedskew.cli.naming import Overrides, Profile
from fedskew.cli.output import json_wanted, plain_console, say
from fedskew.cli.sweep import STORE_GB, sweep
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from engine.results.results import Results
    from engine.sweeps.definition import Sweep
    from fedskew.lab.ledger import BoardRow

METHOD = "algorithm"  # the axis of a board


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
    found = named(reference, profile, words, SWEEPS)
    rule, repair = "has no algorithm on its grid", "see beside_fedavg of tune_configs/board.py"
    require(METHOD in found.sweep.space, "FILE", mine, rule, repair)
    folder = SweepFolder.for_sweep(found, None)
    code = sweep(reference, profile, words, folder.path, How(limit_gb=STORE_GB), None)
    if code or json_wanted():
        raise typer.Exit(code)
    results = load(folder.path)
    _show(results, _rows(results, found.sweep, root))


def _rows(results: Results, own: Sweep, root: Path) -> list[BoardRow]:
    """Return the rows of the board on the same task, if there is one, one's own in the place of those like them."""
    from engine.results.results import larger_is_better
    from fedskew.lab import tuned_sides
    from fedskew.lab.ledger import compared, read_all, rows_of_methods
    from fedskew.lab.ledger.rows import changes

    known: dict[str, BoardRow] = {}
    entries = [one for one in read_all(root / LEDGER) if one.name.startswith(f"{BOARD.stem}.") and not one.choice]
    for entry in (one for one in entries if _same_task(one.definition, own)):
        known = {row.method: row for row in rows_of_methods(entry.results(()), entry.searched, ())}
        say(f"board      {entry.name}: {len(known)} methods ({entry.programs})")
        if since := changes(entry, sweep_now(entry.name, entry.profile, entry.overrides)):
            say(f"board      of an earlier version: {', '.join(since)}")
    if not known:
        say(f"board      none in {root / LEDGER} is of this task, with these seeds")
    for row in rows_of_methods(results, tuned_sides.read(results.path), (), mine=True):
        if known.setdefault(row.method, row).seeds != row.seeds:
            say(f"board      {row.method} has other figures here than there; the table has those of here")
            known[row.method] = row
    return compared(known.values(), larger_is_better(results, results.metric))


def _same_task(definition: Mapping[str, Any], own: Sweep) -> bool:
    """Return whether methods of a recorded sweep stand beside those of another: one task, seeds, rows and metric."""
    from engine.experiment import Experiment

    try:
        base = Experiment.from_mapping(definition["base"]).identity()
    except ConfigError:  # of a key that is no more
        return False
    there = (base, *(definition.get(name) for name in ("seeds", "metric", "tuning_seeds", "tuning_rows")))
    return there == (own.base.identity(), list(own.seeds), own.metric, list(own.tuning_seeds), own.tuning_rows)


def _show(results: Results, rows: list[BoardRow]) -> None:
    from fedskew.lab.quantities import quantity

    measured = quantity(results.metric, results.target_accuracy)
    table = Table(box=None)
    for name in ("", "method", "chosen", f"{measured.short}, 95 % interval", "over fedavg"):
        table.add_column(name)
    for number, row in enumerate(rows, start=1):
        low, high = map(measured.text, row.interval)
        ahead, least, most = map(measured.difference, row.ahead)
        lacks = f", seeds lacking: {row.lacks}" if row.lacks else ""
        figure = f"{measured.text(row.mean)} ({low} to {high}){lacks}"
        name = f"{row.method}{' (yours)' if row.mine else ''}{' *' if row.level else ''}"
        table.add_row(str(number), name, row.words, figure, f"{ahead} ({least} to {most})")
    plain_console().print(table)
    say("* level with the best: the interval of the difference, widened for the number of methods, holds 0")
