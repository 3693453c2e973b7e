"""The command line's part that is about sweeps: ``fedskew sweep | report``, cells, resuming.

Imported by ``cli.py`` when one of these is asked for, since Ray Tune takes seconds to import.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.base.errors import ConfigError, FedskewError, nearest, require
from engine.experiment import Experiment
from engine.sweeps.definition import Optuna
from engine.sweeps.folder import SweepFolder
from engine.sweeps.how import How
from engine.sweeps.named import NamedSweep, known, load
from engine.sweeps.running import SweepResult, resume_sweep, run_sweep
from tune_configs import SWEEPS


def sweep(
    console: Console, name: str, profile: str, overrides: Sequence[str], out: Path | None, how: How, address: str | None
) -> int:
    """Run a sweep to its end, and write its report; the exit code."""
    named = load(name, profile, overrides, SWEEPS)
    return _end(console, named, run_sweep(named, out, how, address, console), address)


def resume(console: Console, folder: Path, address: str | None, retry_failed: bool) -> int:
    """Go on with a sweep."""
    named, outcome = resume_sweep(folder, SWEEPS, address, console, retry_failed)
    return _end(console, named, outcome, address)


def _end(console: Console, named: NamedSweep, outcome: SweepResult, address: str | None) -> int:
    told = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
    console.print(f"{outcome.trials} trials: {told}", highlight=False)
    saved = outcome.rounds_asked - outcome.rounds_computed
    share = f" ({100 * saved / outcome.rounds_asked:.0f} % came from other trials)" if saved > 0 else ""
    console.print(
        f"rounds asked for {outcome.rounds_asked:,}, computed {outcome.rounds_computed:,}{share}", highlight=False
    )
    if outcome.interrupted:
        again = f"continue with: fedskew resume {shlex.quote(str(outcome.folder))}"
        again += f" --address {address}" if address else ""
        console.print(again, highlight=False, soft_wrap=True, markup=False)
        return 130
    if named.sweep.diagnose and not outcome.all_failed:
        from engine.cli import diagnose as cli_diagnose

        cli_diagnose.sweep(console, outcome.folder, None, None, (), address)
    if named.sweep.images and not outcome.all_failed:
        from engine.cli import diagnose as cli_diagnose

        try:
            cli_diagnose.sweep_images(console, outcome.folder)
        except FedskewError as error:  # the report can do without
            console.print(f"no images: {error}", highlight=False, markup=False)
    report(console, outcome.folder, None)
    if outcome.all_failed:
        console.print("error: ", style="bold red", end="")
        console.print("every trial failed; see the reasons in the report, and resume --retry-failed", highlight=False)
        return 1
    return 0


def report(console: Console, folder: Path, metric: str | None) -> Path:
    """Write the report of a sweep or a run."""
    from engine.analysis.report import write

    with console.status("report"):
        page = write(folder, metric)
    console.print(f"report     {page}", highlight=False, soft_wrap=True, markup=False)
    return page


# --- cells ------------------------------------------------------------------------------------------------


def cell(name: str, profile: str, overrides: Sequence[str] = ()) -> Experiment | None:
    """The experiment of ``SWEEP:CELL``, without ``overrides``; where no cell is named, prints all and returns None."""
    reference, cell = _parted(name)
    named = load(reference, profile, [], SWEEPS)
    if isinstance(named.sweep.search, Optuna):
        raise ConfigError("cell", name, "belongs to a searcher, which has no cells before it runs", "run the sweep")
    cells = {named.sweep.label(setting): setting for setting in named.sweep.settings()}
    if not cell:
        known_as = f"name one as {reference}:{next(iter(cells))}"
        require(not overrides, "overrides", " ".join(overrides), "are for one cell", known_as)
        table = Table("cell", box=None, title=f"{named.title}; seeds {list(named.sweep.seeds)}", title_justify="left")
        for text in cells:
            table.add_row(f"{reference}:{text}")
        Console().print(table)
        return None
    if cell not in cells:
        raise ConfigError("cell", cell, f"is not in {reference}", nearest(cell, cells))
    return named.sweep.experiment(cells[cell], named.sweep.seeds[0])


def _parted(name: str) -> tuple[str, str]:
    """Sweep and cell: the part after the last colon, but for ``FILE.py:function``."""
    if ".py:" in name:
        path, _, rest = name.partition(".py:")
        function, _, cell = rest.partition(":")
        return f"{path}.py:{function}", cell
    reference, _, cell = name.partition(":")
    return reference, cell


def trial(name: str) -> tuple[Experiment, int | None] | None:
    """``FOLDER:TRIAL`` as (its experiment with its schedule, the round after which it was stopped)."""
    path, colon, number = name.rpartition(":")
    if not colon or not SweepFolder(Path(path)).is_sweep():
        folder_meant = "/" in path and ".py" not in path
        require(not folder_meant, "folder", path, "is not a sweep's folder", "name a trial as FOLDER:NUMBER")
        return None
    return SweepFolder(Path(path)).experiment(number)


def listing() -> Table:
    """All sweeps."""
    table = Table("name", "trials", "what it is", box=None)
    for name in known(SWEEPS):
        laptop, paper = (load(name, profile, [], SWEEPS) for profile in ("laptop", "paper"))
        table.add_row(name, f"{_trials(laptop)} (paper: {_trials(paper)})", laptop.title)
    return table


def _trials(named: NamedSweep) -> int:
    sweep = named.sweep
    settings = sweep.samples if isinstance(sweep.search, Optuna) else len(sweep.settings())
    return settings * len(sweep.seeds)
