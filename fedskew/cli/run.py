"""Runs: ``fedskew run | resume``, the progress bar, Ctrl-C, and what is said of a run that does not reach its end."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from engine.base import errors
from engine.base.errors import ConfigError, FedskewError, RunError
from engine.experiment import CHOICES, IDENTITY, Experiment
from engine.record.run_folder import BREAKS_PRIVACY, RunFolder
from engine.record.store import StageStore, check_store
from engine.run.preparing import check_code
from engine.run.run import Run, RunObserver
from fedskew.cli import child
from fedskew.cli.naming import Address, Folder, Overrides, Profile, Track, What, named
from fedskew.cli.output import console, leave_streams_to_ray, print_json, say, unforeseen
from fedskew.lab.run_line import RunLine, summary_table
from fedskew.lab.run_pictures import RunPictures
from fedskew.lab.shown import Shown
from fedskew.trackers.tracking import OnRound, Target, parsed, tracked


def run_command(
    what: What = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; none: runs/<name>-<hash>")] = None,
    overwrite: Annotated[bool, typer.Option(help="start again although the folder holds this run")] = False,
    until: Annotated[int | None, typer.Option(min=1, help="stop after this round; resume goes on")] = None,
    profile: Profile = "laptop",
    store: Annotated[Path | None, typer.Option(help="take rounds that other runs stored here, and store ours")] = None,
    address: Address = None,
    track: Track = None,
) -> None:
    """Run one experiment; without a name, the quickstart."""
    experiment, words, stopped = named(what or [], profile)
    if words and stopped:
        raise ConfigError("overrides", " ".join(words), "cannot change a trial that was stopped", "leave them away")
    if store is not None:
        check_store(store)
    targets = parsed(track or ())
    _run(experiment.override(words), out, address, targets, overwrite, until or stopped, store)


def resume_command(
    folder: Folder,
    overrides: Overrides = None,
    address: Address = None,
    track: Track = None,
    retry_failed: Annotated[bool, typer.Option(help="of a sweep: run failed trials again, too")] = False,
) -> None:
    """Continue a run or a sweep from what is on disk; the bits are those of an undisturbed one."""
    if os.path.exists(folder / "sweep.yaml"):
        if overrides:
            raise ConfigError("overrides", " ".join(overrides), "would change the sweep", "leave them away")
        from fedskew.cli.sweep import resume  # of another group

        raise typer.Exit(resume(folder, address, retry_failed, parsed(track or ())))
    stored = RunFolder(folder).experiment()
    experiment = stored.override(overrides or [])
    if experiment.digest != stored.digest:
        raise ConfigError(
            "overrides",
            " ".join(overrides or []),
            "would change the experiment",
            "set only checkpoint keys, or execution keys other than " + ", ".join(IDENTITY),
        )
    _run(experiment, folder, address, parsed(track or ()))


def _run(
    experiment: Experiment,
    out: Path | None,
    address: str | None,
    track: Sequence[Target],
    overwrite: bool = False,
    until: int | None = None,
    shared: Path | None = None,
) -> None:
    """Run an experiment to its end, to the round ``until`` or to Ctrl-C; ``shared``: a store of rounds."""
    folder = RunFolder.for_experiment(experiment.resolve(), out)
    for target in track:
        target.check("--track", folder.path)
    done = folder.summary() if folder.has_experiment() and not overwrite else {}
    if done.get("status") == "finished":
        check_code(done, experiment, folder)
        say(f"{folder.path} is finished already; --overwrite starts it again")
        _tell(done, folder)
        return
    with tracked(track, folder.path, lambda _, text: say(text)) as look:
        if experiment.execution.actors:
            leave_streams_to_ray()
        with console.status("data, Ray and actors"):
            store = StageStore(shared.resolve()) if shared else None
            observers = [finishes := _Finishes(), RunPictures(), OnRound(look)]
            run = Run.open(experiment, out, address, overwrite, store, observers)
        show_header(run)
        if run.round:
            console.print(f"continuing after round {run.round}")
        again = errors.resume_command(folder.path, address)
        child.again(again)
        with _Interrupts() as interrupts:  # before, nothing is lost by an interrupt
            try:
                _advance(run, interrupts, until)
            except FedskewError:
                with contextlib.suppress(Exception):
                    run.close()  # what was done before the error is kept
                raise
            except Exception as error:  # of an algorithm's hooks, for example: not written for users
                with contextlib.suppress(Exception):
                    run.close()
                raise unforeseen(error, folder.path / "log.txt", again) from error
            summary = run.close()
    if finishes.unprinted:
        raise finishes.unprinted
    _tell(summary, folder)
    if not run.finished:
        say(again)
        raise typer.Exit(child.stop_code() if interrupts.asked else 0)


def _tell(summary: dict[str, Any], folder: RunFolder) -> None:
    console.print(summary_table(summary, folder))
    print_json({"folder": folder.path, **summary})


class _Finishes(RunObserver):
    """Tells that all is saved, and gives Ray back, before pictures are drawn, for which nobody needs either."""

    unprinted: RunError | None = None

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        if not run.finished:
            return
        try:
            print_json({"folder": run.folder.path, **summary})
        except RunError as error:
            self.unprinted = error
        child.finished(f"{run.folder.path} is finished; it was stopped when only pictures and trackers were left to do")
        if run.experiment.execution.actors:
            child.leave_ray()


def _advance(run: Run, interrupts: _Interrupts, until: int | None) -> None:
    """Run to the end, or to a round, or until Ctrl-C, under a progress bar."""
    with Shown(console) as shown:
        line = RunLine(shown)
        line.on_start(run)
        while not run.finished and not interrupts.asked and (until is None or run.round < until):
            line.on_round(run, run.advance(0.5, until))


class _Interrupts:
    """The first Ctrl-C asks the run to stop between rounds, where nothing is lost; the second one is an interrupt."""

    asked = False

    def __enter__(self) -> _Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, *signal_and_frame: object) -> None:
        if self.asked or child.what_is_finished():
            raise KeyboardInterrupt
        self.asked = True
        console.print("stopping after this round; Ctrl-C again gives the round up; the last checkpoint is kept")


# --- what is said of a run ---------------------------------------------------------------------------------------


def show_header(run: Run) -> None:
    """Print what is about to run: data, clients, stages and place."""
    experiment, sizes = run.experiment, run.assignment.sizes()
    held = sizes[sizes > 0]
    plain = experiment.to_mapping()
    lines = [
        f"data       {plain['data']['name']}, {len(run.labels)} images, {len(run.classes)} classes",
        *(f"           {sentence}" for sentence in run.told),
        f"clients    {len(held)} with {held.min()} to {held.max()} images, median {statistics.median(held.tolist()):g}"
        + (f"; {len(sizes) - len(held)} without any take no part" if len(held) < len(sizes) else "")
        + (f"; {len(run.assignment.public)} images are public" if len(run.assignment.public) else "")
        + (f"; {len(run.assignment.dropped)} images are dropped" if len(run.assignment.dropped) else ""),
    ]
    for stage in experiment.chain:
        fields = {**CHOICES["algorithm"].dump(stage.algorithm)}
        name = fields.pop("name")
        shown = ", ".join(f"{field}={value}" for field, value in fields.items())
        rounds = f"{stage.rounds} rounds of" if stage.rounds else f"after {stage.needs[0]},"
        mark = f", {BREAKS_PRIVACY}" if stage.algorithm.breaks_privacy else ""
        lines.append(f"stage      {stage.name}: {rounds} {name} ({shown}){mark}")
    actors = experiment.execution.actors
    lines.append(f"where      {f'{actors} Ray actors' if actors else 'this process'}, {experiment.execution.device}")
    console.print(Text.assemble((experiment.name, "bold"), f"  {run.folder.path}"), highlight=False)
    say("\n".join(lines))
