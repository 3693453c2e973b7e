"""The ledger of claims: ``fedskew claims``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from engine.base.errors import ConfigError, FedskewError, RunFolderError, nearest, require
from engine.base.files import write_atomically
from engine.base.opening import read_text
from fedskew.cli import child
from fedskew.cli.completion import sweeps
from fedskew.cli.output import console, json_wanted, leave_streams_to_ray, plain_console, print_json, say
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from fedskew.lab.ledger import Entry, SweepRows, SweepSpec

LEDGER, PAGE, README = Path("docs/claims"), Path("docs/claims.md"), Path("README.md")
BOARD = Path("docs/board.md")


def claims_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=lambda: [*SWEEPS, *sweeps()],
            help="a paper (ccvr) or a sweep (ccvr.main): print its rows alone; "
            "with --record folders, with --confirm entries",
        ),
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="put these sweeps' folders into the ledger first")] = False,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="run one seed of these entries again: equal bits, and they count again")
    ] = False,
    figures: Annotated[
        float | None,
        typer.Option(
            "--figures",
            min=0.0,
            help="with --confirm on any machine: are figures within this of the entry's? the ledger stays",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 if the page is not up to date")] = False,
    root: Annotated[Path, typer.Option(help="the checkout of fedskew whose docs/claims.md is written")] = Path("."),
) -> None:
    """Write docs/claims.md, each claim of each paper with its verdict, and docs/board.md, from docs/claims."""
    for word, writes in {"--record": record, "--confirm": confirm}.items():
        require(not (writes and check), "--check", "true", f"writes nothing, and {word} does", "choose one of the two")
    require(not (record and confirm), "--confirm", "true", "is not for what --record adds", "choose one of the two")
    require(figures is None or confirm, "--figures", figures, "compares what --confirm runs", "add --confirm")
    named = ", ".join(what or ())
    require(not (check and what), "--check", "true", f"is of the whole page, not of {named} alone", "name nothing")
    for path in (root / PAGE.parent, root / README):
        require(path.exists(), "--root", root, f"is no checkout of fedskew (it has no {path.name})", "name one")
    if record:
        require(bool(what), "--record", "true", "needs the folder of a sweep", "fedskew claims --record runs/SWEEP")
        for folder in what or ():
            _record(Path(folder), root)
    if confirm:
        rule = "needs entries of the ledger"
        require(bool(what), "--confirm", "true", rule, f"fedskew claims --confirm {LEDGER}/ENTRY.yaml")
        for entry in what or ():
            _confirm(Path(entry), root, figures)
        if figures is not None:
            return
    wanted = [] if record or confirm else list(what or ())
    rows = ledger(root, wanted)
    if wanted and not json_wanted():
        _print(rows)
        return
    stale = [] if wanted else _pages(root, rows, check)
    if json_wanted():
        from fedskew.lab.ledger import counts, to_mappings

        print_json({"counts": counts(rows), "claims": to_mappings(rows), "stale": stale if check else []})
    if check and stale:
        raise typer.Exit(1)


def ledger(root: Path, wanted: Sequence[str] = ()) -> list[SweepRows]:
    """Judge the claims of all named sweeps, or of the papers and sweeps that are ``wanted``."""
    from engine.sweeps.named import PROFILES, load  # with Ray Tune
    from fedskew.lab.ledger import read_all, rows_of
    from fedskew.lab.sweeping.confirming import spec_of

    names = sweeps()
    for one in wanted:
        require(one in {*names, *SWEEPS}, "claims", one, "is no paper and no sweep", nearest(one, [*SWEEPS, *names]))
    chosen = [name for name in names if not wanted or {name, name.partition(".")[0]} & {*wanted}]
    stated = [spec_of(load(name, profile, [], SWEEPS)) for name in chosen for profile in PROFILES]
    entries = [entry for entry in read_all(root / LEDGER) if not wanted or entry.name in chosen]
    return rows_of(stated, entries, lambda entry: sweep_now(entry.name, entry.profile, entry.overrides))


def sweep_now(name: str, profile: str, overrides: Sequence[str]) -> SweepSpec | None:
    """Return the sweep as it is now; None if there is none of that name any more, or none with these overrides."""
    from engine.sweeps.named import load
    from fedskew.lab.sweeping.confirming import spec_of

    try:
        return spec_of(load(name, profile, overrides, SWEEPS))
    except FedskewError:
        return None


def _record(folder: Path, root: Path) -> None:
    from fedskew.lab.ledger import file_of, read, record, write
    from fedskew.lab.ledger.recording import choice_of, sweep_of

    name, profile, overrides = sweep_of(folder)
    place = file_of(root / LEDGER, name, profile, choice_of(folder))
    before: Entry | None = None
    with suppress(RunFolderError):  # a damaged one is replaced
        before = read(place) if place.exists() else None
    entry = record(folder, sweep_now(name, profile, overrides), before)
    path = write(root / LEDGER, entry)
    say(f"recorded   {entry.ended} in {path}")


def _confirm(place: Path, root: Path, figures: float | None) -> None:
    """Run one seed of an entry again, and write down that it came to the same bits, or say how far its figures are.

    figures: by how much they may differ; None: bits are compared, which needs a machine like the entry's.
    """
    from engine.sweeps.options import How
    from fedskew.lab.ledger import check_machine, confirmed, largest_difference, read, record, write
    from fedskew.lab.sweeping.confirming import again, spec_of
    from fedskew.lab.sweeping.live import on_terminal
    from fedskew.lab.sweeping.measuring import run_and_measure

    entry, how = read(place), How()
    if figures is None:
        check_machine(entry)
    named, folder = again(entry, how, SWEEPS)
    leave_streams_to_ray()
    outcome = run_and_measure(named, folder, how, None, on_terminal(console))
    if outcome.interrupted:
        say("continue with the same command")
        raise typer.Exit(child.stop_code())
    child.leave_ray()
    stated = spec_of(named)
    if figures is not None:
        most, trials = largest_difference(entry, record(folder, stated), figures)
        say(f"figures    {trials} trials of {place}: differences are {most:.2g} at most, {figures:g} are allowed")
        return
    path = write(root / LEDGER, confirmed(entry, record(folder, stated), stated))
    say(f"confirmed  {path}")


def _pages(root: Path, rows: Sequence[SweepRows], check: bool) -> list[Path]:
    """Write the page and the README's rows, or with ``check`` compare them; return those that were not up to date."""
    from engine.sweeps.named import load, papers
    from fedskew.lab.ledger import HEADLINES, board_page, counts, page, with_headlines
    from tune_configs.board import LEFT_OUT

    bases = {name: load(name, "paper", [], SWEEPS).sweep.base.to_mapping() for name in HEADLINES.values()}
    made = {PAGE: page(rows, papers(SWEEPS)), README: with_headlines(read_text(root / README), rows, bases)}
    made[BOARD] = board_page([one for one in rows if one.paper == BOARD.stem and not one.choice], LEFT_OUT)
    old = [path for path, text in made.items() if not (root / path).exists() or read_text(root / path) != text]
    if check:
        for path in old:
            say(f"{path} is not up to date; run fedskew claims")
        if not old:
            say(f"{', '.join(map(str, made))} are up to date")
        return old
    for path in old:
        try:
            write_atomically(root / path, made[path])
        except OSError as error:
            raise ConfigError("--root", root, f"cannot be written ({error})", "name another one") from None
    totals = ", ".join(f"{count} {word}" for word, count in counts(rows).items())
    say(f"{root / PAGE}: {totals}")
    return old


def _print(rows: Sequence[SweepRows]) -> None:
    table = Table(box=None)
    for name in ("sweep", "claim", "source", "verdict", "effect, 95 % interval", "seeds"):
        table.add_column(name, no_wrap=name in ("sweep", "verdict"))
    for sweep in rows:
        name = sweep.name if sweep.profile == "laptop" else f"{sweep.name} ({sweep.profile})"
        name += sweep.changed + ", second best" * bool(sweep.choice)
        for row in sweep.rows:
            seeds = str(len(row.verdict.seeds)) if row.verdict else ""
            table.add_row(name, row.claim.text, row.claim.source, row.word, row.effect, seeds)
    plain_console().print(table)
