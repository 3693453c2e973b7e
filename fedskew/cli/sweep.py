"""Sweeps: ``fedskew sweep``, and the part of ``resume`` that is about sweeps.

Ray Tune takes seconds to import, so that what is built on it is imported inside of the functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from engine.base.errors import require, resume_command
from fedskew.cli import child
from fedskew.cli.completion import sweeps
from fedskew.cli.naming import Address, Overrides, Profile, Track
from fedskew.cli.output import console, json_wanted, leave_streams_to_ray, print_json, say
from fedskew.cli.results import outcome_in, report
from fedskew.trackers.tracking import Target, parsed, tracked
from tune_configs import SWEEPS

if TYPE_CHECKING:
    from engine.sweeps.named import NamedSweep
    from engine.sweeps.options import How
    from engine.sweeps.running import SweepResult

STORE_GB = 20.0  # the store's limit, by default


def sweep_command(
    name: Annotated[str, typer.Argument(autocompletion=sweeps, help="see 'fedskew list sweeps', or FILE.py:function")],
    overrides: Overrides = None,
    profile: Profile = "laptop",
    out: Annotated[Path | None, typer.Option(help="the sweep's folder; none: runs/<name>-<profile>-<hash>")] = None,
    store: Annotated[Path | None, typer.Option(help="where rounds are shared; none: 'store' beside the folder")] = None,
    store_limit: Annotated[float, typer.Option(help="GB that the store may hold")] = STORE_GB,
    reuse: Annotated[
        bool, typer.Option("--reuse/--no-reuse", help="share the rounds that trials have in common")
    ] = True,
    mode: Annotated[
        str,
        typer.Option(
            autocompletion=lambda: ["auto", "inside", "nested"],
            help="auto | inside: a trial in one process | nested: on client actors",
        ),
    ] = "auto",
    concurrent: Annotated[int | None, typer.Option(help="trials at a time, at most")] = None,
    storage: Annotated[
        str | None, typer.Option(help="also keep the sweep's folder in this one: s3://bucket/folder, gs://, file://")
    ] = None,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="add seeds until each claim is held or not held")
    ] = False,
    most: Annotated[int | None, typer.Option(min=4, help="seeds in all, with --until-decided; none: 20")] = None,
    second_best: Annotated[
        Path | None, typer.Option(help="this sweep's folder or ledger entry: run each side's second best candidate")
    ] = None,
    track: Track = None,
    address: Address = None,
) -> None:
    """Run a sweep: every trial, then the report."""
    from engine.sweeps.options import How
    from fedskew.lab.sweeping.deciding import MOST

    require(until_decided or most is None, "--most", most, "is for --until-decided", "give both, or neither")
    how = How(store=store, reuse=reuse, mode=mode, concurrent=concurrent, limit_gb=store_limit, storage=storage)
    seeds = (most or MOST) if until_decided else None
    raise typer.Exit(sweep(name, profile, overrides or [], out, how, address, seeds, second_best, parsed(track or ())))


def sweep(
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
    from engine.sweeps.folder import SweepFolder
    from engine.sweeps.named import load

    named = load(name, profile, overrides, SWEEPS)
    if second_best is not None:
        from fedskew.lab.sweeping.tuning import begin_second_best

        out = begin_second_best(named, second_best, out, how.to_mapping())
    place = SweepFolder.for_sweep(named, out).path
    return _run(replace(named, most=most), place, how, address, track)


def resume(folder: Path, address: str | None, retry_failed: bool, track: Sequence[Target] = ()) -> int:
    """Go on with a sweep, and return the exit code."""
    from engine.sweeps.running import reopened

    named, how = reopened(folder, SWEEPS)
    return _run(named, folder, how, address, track, retry_failed)


def _run(
    named: NamedSweep,
    place: Path,
    how: How,
    address: str | None,
    track: Sequence[Target],
    retry_failed: bool = False,
) -> int:
    """Run a sweep, with seeds until each claim is decided if it asks for them, and write its report."""
    from engine.results.loading import load
    from engine.sweeps.observers import SweepObserver, SweepStart
    from fedskew.lab.comparing.verdicts import Verdict, beyond_seeds
    from fedskew.lab.sweeping.deciding import run_until_decided, sentence
    from fedskew.lab.sweeping.live import on_terminal
    from fedskew.lab.sweeping.measuring import measure, run_and_measure

    class CanBeResumed(SweepObserver):
        def on_start(self, start: SweepStart) -> None:
            child.again(resume_command(place, address))

    def measured(sweep: NamedSweep, folder: Path) -> None:
        with console.status("measuring") as status:
            lines = measure(sweep, folder, address, lambda text: status.update(Text(text)))
        for line in lines:
            say(line)

    leave_streams_to_ray()
    verdicts: list[Verdict] = []
    with tracked(track, place, lambda _, text: say(text)) as look:
        observers = [*on_terminal(console, look), CanBeResumed()]
        if named.most is None:
            outcome = run_and_measure(named, place, how, address, observers, retry_failed, measured)
        else:
            named, outcome, verdicts = run_until_decided(named, place, how, address, observers, retry_failed, measured)
        code = _end(named, outcome, address)
        results = load(outcome.folder) if verdicts else None
        for number, verdict in enumerate(verdicts, start=1):
            say(sentence(number, verdict, beyond_seeds(results, verdict.claim) if results else ""))
    return code


def _end(named: NamedSweep, outcome: SweepResult, address: str | None) -> int:
    """Say what became of the trials, write the report, and return the exit code."""
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
    say(f"{outcome.trials} trials: {statuses}")
    saved = outcome.rounds_asked - outcome.rounds_computed
    share = f" ({100 * saved / outcome.rounds_asked:.0f} % came from other trials)" if saved > 0 else ""
    say(f"rounds asked for {outcome.rounds_asked:,}, computed {outcome.rounds_computed:,}{share}")
    if outcome.interrupted:
        say(resume_command(outcome.folder, address))
        _print_json(named, outcome, None)
        return child.stop_code()
    child.leave_ray()
    page = report(outcome.folder, None)
    from fedskew.lab import tuned_sides

    for side in tuned_sides.read(outcome.folder):
        say(f"tuned      {side.sentence}")
    _print_json(named, outcome, page)
    if outcome.all_failed:
        sentence = "every trial failed; see the reasons in the report, and resume --retry-failed"
        console.print(Text.assemble(("error:", "bold red"), f" {sentence}"))
        return 1
    return 0


def _print_json(named: NamedSweep, outcome: SweepResult, page: Path | None) -> None:
    """Print what became of a sweep as JSON, if that is wanted; page: of its report, None without one."""
    if not json_wanted():
        return
    from fedskew.lab import tuned_sides

    figures = ("folder", "trials", "statuses", "rounds_asked", "rounds_computed", "interrupted")
    ended = {name: getattr(outcome, name) for name in figures} | {"name": named.name, "profile": named.profile}
    tuned = [side.sentence for side in tuned_sides.read(outcome.folder)]
    claims = outcome_in(outcome.folder)["claims"] if page is not None else []
    print_json(ended | {"report": page, "claims": claims, "tuned": tuned})
