"""Sweeps and reports: ``fedskew sweep | report``, and the part of ``resume`` that is about sweeps.

Ray Tune takes seconds to import, so that what is built on it is imported inside of the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from engine.base import last_word
from engine.base.errors import require
from fedskew.cli import stopping
from fedskew.cli.export import Track, say, targets
from fedskew.cli.json_output import Json, asked, print_json
from fedskew.cli.naming import Address, Overrides, Profile, Rope, With, check_rope
from fedskew.cli.show import console as terminal
from fedskew.trackers.tracking import Target, tracked
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from engine.sweeps.named import NamedSweep
    from engine.sweeps.options import How
    from engine.sweeps.running import SweepResult

Look = Callable[[], None]  # lets trackers look at the folder that they follow
STORE_GB = 20.0  # the store's limit, by default


def sweep_command(
    name: Annotated[str, typer.Argument(help="see 'fedskew list sweeps', or FILE.py:function")],
    overrides: Overrides = None,
    profile: Profile = "laptop",
    out: Annotated[Path | None, typer.Option(help="the sweep's folder; none: runs/<name>-<profile>-<hash>")] = None,
    store: Annotated[Path | None, typer.Option(help="where rounds are shared; none: 'store' beside the folder")] = None,
    store_limit: Annotated[float, typer.Option(help="GB that the store may hold")] = STORE_GB,
    reuse: Annotated[
        bool, typer.Option("--reuse/--no-reuse", help="share the rounds that trials have in common")
    ] = True,
    mode: Annotated[
        str, typer.Option(help="auto | inside: a trial in one process | nested: on client actors")
    ] = "auto",
    concurrent: Annotated[int | None, typer.Option(help="trials at a time, at most")] = None,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="add seeds until each claim is held or not held")
    ] = False,
    most: Annotated[int | None, typer.Option(min=4, help="seeds in all, with --until-decided; none: 20")] = None,
    second_best: Annotated[
        Path | None, typer.Option(help="this sweep's folder or ledger entry: run each side's second best candidate")
    ] = None,
    track: Track = None,
    address: Address = None,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Run a sweep: every trial, then the report."""
    from engine.sweeps.options import How
    from fedskew.lab.sweeping.deciding import MOST

    require(until_decided or most is None, "--most", most, "is for --until-decided", "give both, or neither")
    how = How(store=store, reuse=reuse, mode=mode, concurrent=concurrent, limit_gb=store_limit)
    seeds = (most or MOST) if until_decided else None
    told = targets(track)
    raise typer.Exit(sweep(terminal, name, profile, overrides or [], out, how, address, seeds, second_best, told))


def report_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    metric: Annotated[str | None, typer.Option(help="another column of the trials table")] = None,
    rope: Rope = 0.5,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Write report/report.html in the folder: claims, tables, curves, trials; beside it files for a paper and CSV."""
    check_rope(rope)
    page = report(terminal, folder, metric, rope)
    if as_json:
        print_json({"folder": folder, "report": page, **outcome_in(folder, rope)})


def sweep(
    console: Console,
    name: str,
    profile: str,
    overrides: Sequence[str],
    out: Path | None,
    how: How,
    address: str | None,
    most: int | None = None,
    second_best: Path | None = None,
    track: Sequence[Target] = (),
) -> int:
    """Run a sweep to its end, write its report, and return the exit code.

    most: seeds, until claims are decided. second_best: the folder in which the best candidates were chosen, or the
    ledger's entry of it. track: who is told as it goes.
    """
    from engine.sweeps.named import load

    named = load(name, profile, overrides, SWEEPS)
    if second_best is not None:
        from fedskew.lab.sweeping.tuning import begin_second_best

        out = begin_second_best(named, second_best, out, how.to_mapping())
    with _tracked(track, named, out) as look:
        return _run(console, replace(named, most=most), out, how, address, look)


def resume(
    console: Console, folder: Path, address: str | None, retry_failed: bool, track: Sequence[Target] = ()
) -> int:
    """Go on with a sweep, and return the exit code."""
    from engine.sweeps.running import reopened

    named, how = reopened(folder, SWEEPS)
    with _tracked(track, named, folder) as look:
        return _run(console, named, folder, how, address, look, retry_failed)


def _tracked(track: Sequence[Target], named: NamedSweep, out: Path | None) -> AbstractContextManager[Look]:
    """Let trackers follow the sweep's folder."""
    from engine.sweeps.folder import SweepFolder

    return tracked(track, SweepFolder.for_sweep(named, out).path, say)


def _run(
    console: Console,
    named: NamedSweep,
    out: Path | None,
    how: How,
    address: str | None,
    look: Look,
    retry_failed: bool = False,
) -> int:
    """Run a sweep, with seeds until each claim is decided if it asks for them, and write its report."""
    from engine.results.loading import load
    from fedskew.lab.comparing.verdicts import Verdict, beyond_seeds
    from fedskew.lab.sweeping.deciding import run_until_decided, sentence
    from fedskew.lab.sweeping.live import on_terminal
    from fedskew.lab.sweeping.measuring import measure, run_and_measure

    def measured(sweep: NamedSweep, folder: Path) -> None:
        with console.status("measuring") as status:
            lines = measure(sweep, folder, address, lambda text: status.update(Text(text)))
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    verdicts: list[Verdict] = []
    observers = on_terminal(console, look)
    if named.most is None:
        outcome = run_and_measure(named, out, how, address, observers, retry_failed, measured)
    else:
        named, outcome, verdicts = run_until_decided(named, out, how, address, observers, retry_failed, measured)
    code = _end(console, named, outcome, address)
    results = load(outcome.folder) if verdicts else None
    for number, verdict in enumerate(verdicts, start=1):
        never = beyond_seeds(results, verdict.claim) if results else ""
        console.print(sentence(number, verdict, never), highlight=False, soft_wrap=True, markup=False)
    return code


def _end(console: Console, named: NamedSweep, outcome: SweepResult, address: str | None) -> int:
    """Say what became of the trials, write the report, and return the exit code."""
    told = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
    console.print(f"{outcome.trials} trials: {told}", highlight=False)
    saved = outcome.rounds_asked - outcome.rounds_computed
    share = f" ({100 * saved / outcome.rounds_asked:.0f} % came from other trials)" if saved > 0 else ""
    console.print(
        f"rounds asked for {outcome.rounds_asked:,}, computed {outcome.rounds_computed:,}{share}", highlight=False
    )
    if outcome.interrupted:
        again = last_word.resume_command(outcome.folder, address)
        console.print(again, highlight=False, soft_wrap=True, markup=False)
        _print_json(named, outcome, None)
        return stopping.exit_code()
    from engine.worker.ray import cluster

    cluster.leave()
    page = report(console, outcome.folder, None)
    from fedskew.lab import tuned_sides

    for side in tuned_sides.read(outcome.folder):
        console.print(f"tuned      {side.sentence}", highlight=False, soft_wrap=True, markup=False)
    _print_json(named, outcome, page)
    if outcome.all_failed:
        told = "every trial failed; see the reasons in the report, and resume --retry-failed"
        console.print(Text.assemble(("error:", "bold red"), f" {told}"))
        return 1
    return 0


def _print_json(named: NamedSweep, outcome: SweepResult, page: Path | None) -> None:
    """Print what became of a sweep as JSON, if that was asked for; page: of its report, None without one."""
    if not asked():
        return
    from fedskew.lab import tuned_sides

    figures = ("folder", "trials", "statuses", "rounds_asked", "rounds_computed", "interrupted")
    told = {name: getattr(outcome, name) for name in figures} | {"name": named.name, "profile": named.profile}
    tuned = [side.sentence for side in tuned_sides.read(outcome.folder)]
    claims = outcome_in(outcome.folder)["claims"] if page is not None else []
    print_json(told | {"report": page, "claims": claims, "tuned": tuned})


def outcome_in(folder: Path, rope: float = 0.5) -> dict[str, Any]:
    """Read what trials and claims in a folder came to; ``rope`` is in points."""
    from engine.results.loading import load
    from fedskew.lab.comparing.effects import claim_values, effects_of
    from fedskew.lab.comparing.verdicts import judge

    results = load(folder)
    claims = [claim_values(one, effects_of(results, one.claim, rope / 100)) for one in judge(results)]
    return {"trials": results.coverage.planned, "statuses": results.coverage.statuses, "claims": claims}


def report(console: Console, folder: Path, metric: str | None, rope: float = 0.5) -> Path:
    """Write the report of a sweep or a run, and return its page; ``rope`` is in points."""
    from fedskew.lab.report import write  # with matplotlib

    with console.status("report"):
        page = write(folder, metric, rope / 100)
    console.print(f"report     {page}", highlight=False, soft_wrap=True, markup=False)
    return page
