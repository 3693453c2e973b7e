"""Runs: ``fedskew run | resume``, the progress bar, Ctrl-C, and what is said of a run that does not reach its end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from engine.base import last_word
from engine.base.errors import ConfigError, FedskewError
from engine.experiment import IDENTITY, Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore, check_store
from engine.run.preparing import check_code
from engine.run.run import Run, RunObserver
from fedskew.cli import stopping
from fedskew.cli.export import Track, say, targets
from fedskew.cli.json_output import Json, print_json
from fedskew.cli.naming import Address, Overrides, Profile, What, With, named
from fedskew.cli.show import console, headline, show_header, show_summary
from fedskew.cli.tracebacks import unforeseen
from fedskew.lab.run_pictures import RunPictures
from fedskew.trackers.tracking import OnRound, Target, tracked


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The options of ``fedskew run`` and ``resume`` that say how to run, and not what."""

    address: str | None = None
    overwrite: bool = False
    until: int | None = None
    store: Path | None = None
    track: tuple[Target, ...] = ()  # who is told as it goes

    def __post_init__(self) -> None:
        if self.store is not None:
            check_store(self.store)


def run_command(
    what: What = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; none: runs/<name>-<hash>")] = None,
    overwrite: Annotated[bool, typer.Option(help="start again although the folder holds this run")] = False,
    until: Annotated[int | None, typer.Option(min=1, help="stop after this round; resume goes on")] = None,
    profile: Profile = "laptop",
    store: Annotated[Path | None, typer.Option(help="take rounds that other runs stored here, and store ours")] = None,
    address: Address = None,
    track: Track = None,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Run one experiment; without a name, the quickstart."""
    experiment, words, stopped = named(what or [], profile)
    if experiment is None:  # a sweep without a cell: its cells are listed
        return
    if words and stopped:
        raise ConfigError("overrides", " ".join(words), "cannot change a trial that was stopped", "leave them away")
    options = RunOptions(address, overwrite, until or stopped, store, targets(track))
    _run(experiment.override(words), out, options)


def resume_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    overrides: Overrides = None,
    address: Address = None,
    track: Track = None,
    as_json: Json = False,
    retry_failed: Annotated[bool, typer.Option(help="of a sweep: run failed trials again, too")] = False,
    own: With = None,
) -> None:
    """Continue a run or a sweep from what is on disk; the bits are those of an undisturbed one."""
    if os.path.exists(folder / "sweep.yaml"):
        if overrides:
            raise ConfigError("overrides", " ".join(overrides), "would change the sweep", "leave them away")
        from fedskew.cli.sweep import resume  # of another group

        raise typer.Exit(resume(console, folder, address, retry_failed, targets(track)))
    stored = RunFolder(folder).experiment()
    experiment = stored.override(overrides or [])
    if experiment.digest != stored.digest:
        raise ConfigError(
            "overrides",
            " ".join(overrides or []),
            "would change the experiment",
            "set only checkpoint keys, or execution keys other than " + ", ".join(IDENTITY),
        )
    _run(experiment, folder, RunOptions(address, track=targets(track)))


def _run(experiment: Experiment, out: Path | None, options: RunOptions) -> None:
    folder = RunFolder.for_experiment(experiment.resolve(), out)
    for target in options.track:
        target.check("--track", folder.path)
    done = folder.summary() if folder.has_experiment() and not options.overwrite else {}
    if done.get("status") == "finished":
        check_code(done, experiment, folder)
        console.print(f"{folder.path} is finished already; --overwrite starts it again", markup=False)
        _tell(done, folder)
        return
    with tracked(options.track, folder.path, say) as look, _Interrupts() as interrupts:
        with console.status("data, Ray and actors"):
            store = StageStore(options.store.resolve()) if options.store else None
            observers = [_LeavesRay(), RunPictures(), OnRound(look)]
            run = Run.open(experiment, out, options.address, options.overwrite, store, observers)
        show_header(run)
        if run.round:
            console.print(f"continuing after round {run.round}")
        again = last_word.resume_command(folder.path, options.address)
        last_word.again(again)
        try:
            _advance(run, interrupts, options.until)
        except FedskewError:
            with contextlib.suppress(Exception):
                run.close()  # what was done before the error is kept
            raise
        except Exception as error:  # of an algorithm's hooks, for example: not written for users
            with contextlib.suppress(Exception):
                run.close()
            raise unforeseen(error, folder.path / "log.txt", again) from error
        summary = run.close()
    _tell(summary, folder)
    if not run.finished:
        console.print(again, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(stopping.exit_code() if interrupts.asked else 0)


def _tell(summary: dict[str, Any], folder: RunFolder) -> None:
    show_summary(summary, folder)
    print_json({"folder": folder.path, **summary})


class _LeavesRay(RunObserver):
    """Gives Ray back before pictures are drawn, for which nobody needs it."""

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        if run.finished and run.experiment.execution.actors:
            from engine.worker.ray import cluster  # of runs on actors

            cluster.leave()


def _advance(run: Run, interrupts: _Interrupts, until: int | None) -> None:
    """Run to the end, or to a round, or until Ctrl-C, under a progress bar."""
    columns = (
        TextColumn("round"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("round", total=run.total_rounds, completed=run.done, now="")
        while not run.finished and not interrupts.asked and (until is None or run.round < until):
            progress = run.advance(0.5, until)
            scores = [row for row in progress.rows if row["accuracy"] is not None]
            bar.update(task, completed=progress.done)
            if scores:
                bar.update(task, now=headline(scores[-1]))
        if run.finished:  # perhaps before the last of its rounds
            bar.update(task, total=run.done)


class _Interrupts:
    """The first Ctrl-C asks the run to stop between rounds, where nothing is lost; the second one is an interrupt."""

    asked = False

    def __enter__(self) -> _Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, *signal_and_frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        console.print("stopping after this round; Ctrl-C again gives the round up; the last checkpoint is kept")
