"""The command line: ``fedskew run | sweep | resume | report | floor | scale | tune-executor | ...``, see ``--help``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import os
import shlex
import signal
import statistics
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from engine import __version__
from engine.algorithm.personalised import has_global_model
from engine.base.errors import ConfigError, FedskewError, RunError, nearest, one_line, require
from engine.base.writable import check_writable
from engine.experiment import CHOICES, IDENTITY, Experiment
from engine.record.metrics import METRICS, PERSONAL
from engine.record.run_folder import BREAKS_PRIVACY, Row, RunFolder
from engine.record.store import StageStore
from engine.run.run import Run
from tune_configs import EXPERIMENTS, SWEEPS

app = typer.Typer(
    help="Federated learning under label skew, simulated on Ray, equal to the bit on any number of actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(stderr=True)  # progress and messages; results that a program reads go to standard output

LISTS = {"algorithms": "algorithm", "models": "model", "datasets": "data", "partitions": "partition"}

What = Annotated[
    list[str] | None,
    typer.Argument(
        help="a YAML file, a name (see 'fedskew list experiments'), a sweep's cell SWEEP:CELL or a trial "
        "FOLDER:NUMBER, then key=value pairs; without a name, the quickstart"
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted key=value pairs, e.g. partition.alpha=0.1")]
Placement = Annotated[list[str] | None, typer.Argument(help="where to compute, in key=value pairs: execution.actors=0")]
Json = Annotated[bool, typer.Option("--json", help="print the summary as the last line, as JSON")]
Profile = Annotated[str, typer.Option(help="of a sweep: laptop (minutes) or paper (the real one)")]
Address = Annotated[str | None, typer.Option(help="a Ray cluster to use, e.g. auto; none: start Ray on this machine")]


@app.command("run")
def run_command(
    what: What = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; none: runs/<name>-<hash>")] = None,
    overwrite: Annotated[bool, typer.Option(help="start again although the folder holds this run")] = False,
    until: Annotated[int | None, typer.Option(min=1, help="stop after this round; resume goes on")] = None,
    profile: Profile = "laptop",
    store: Annotated[Path | None, typer.Option(help="take rounds that other runs stored here, and store ours")] = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Run one experiment; without a name, the quickstart."""
    experiment, words, stopped = _named(what or [], profile)
    if experiment is None:  # a sweep without a cell: its cells are listed
        return
    if words and stopped:
        raise ConfigError("overrides", " ".join(words), "cannot change a trial that was stopped", "leave them away")
    _run(experiment.override(words), out, Options(address, overwrite, as_json, until or stopped, store))


@app.command("sweep")
def sweep_command(
    name: Annotated[str, typer.Argument(help="see 'fedskew list sweeps', or FILE.py:function")],
    overrides: Overrides = None,
    profile: Profile = "laptop",
    out: Annotated[Path | None, typer.Option(help="the sweep's folder; none: runs/<name>-<profile>-<hash>")] = None,
    store: Annotated[Path | None, typer.Option(help="where rounds are shared; none: 'store' beside the folder")] = None,
    store_limit: Annotated[float, typer.Option(help="GB that the store may hold")] = 20.0,
    reuse: Annotated[
        bool, typer.Option("--reuse/--no-reuse", help="share the rounds that trials have in common")
    ] = True,
    mode: Annotated[
        str, typer.Option(help="auto | inside: a trial in one process | nested: on client actors")
    ] = "auto",
    concurrent: Annotated[int | None, typer.Option(help="trials at a time, at most")] = None,
    address: Address = None,
) -> None:
    """Run a sweep: every trial, then the report."""
    from engine.cli import sweeps as cli_sweeps  # with Ray Tune

    how = cli_sweeps.How(store=store, reuse=reuse, mode=mode, concurrent=concurrent, limit_gb=store_limit)
    raise typer.Exit(cli_sweeps.sweep(console, name, profile, overrides or [], out, how, address))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    overrides: Overrides = None,
    address: Address = None,
    as_json: Json = False,
    retry_failed: Annotated[bool, typer.Option(help="of a sweep: run failed trials again, too")] = False,
) -> None:
    """Continue a run or a sweep from what is on disk; the bits are those of an undisturbed one."""
    if os.path.exists(folder / "sweep.yaml"):
        if overrides:
            raise ConfigError("overrides", " ".join(overrides), "would change the sweep", "leave them away")
        from engine.cli import sweeps as cli_sweeps

        raise typer.Exit(cli_sweeps.resume(console, folder, address, retry_failed))
    stored = RunFolder(folder).experiment()
    experiment = stored.override(overrides or [])
    if experiment.digest != stored.digest:
        raise ConfigError(
            "overrides",
            " ".join(overrides or []),
            "would change the experiment",
            "set only checkpoint keys, or execution keys other than " + ", ".join(IDENTITY),
        )
    _run(experiment, folder, Options(address, as_json=as_json))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    metric: Annotated[str | None, typer.Option(help="another column of the trials table")] = None,
) -> None:
    """Write report/report.html in the folder: claims, tables, curves, trials; with PNG, CSV and Markdown beside it."""
    from engine.cli import sweeps as cli_sweeps

    cli_sweeps.report(console, folder, metric)


@app.command("floor")
def floor_command(
    what: What = None,
    rounds: Annotated[int, typer.Option(min=2, help="rounds to run; the first one is not counted")] = 5,
    layers: Annotated[bool, typer.Option("--layers", help="show what each layer costs")] = False,
    save: Annotated[Path | None, typer.Option(help="a JSON file for all figures")] = None,
    profile: Profile = "laptop",
) -> None:
    """Hold a round's time against the least that this machine's arithmetic and memory allow."""
    experiment = _overridden(what, profile)
    if experiment is None:
        return
    from engine.cli import floor as cli_floor

    cli_floor.floor(console, experiment, rounds, layers, save)


@app.command("tune-executor")
def tune_executor(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="as of run: a YAML file, a name, a cell or a trial, then key=value pairs"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="to time, of each executor")] = 10,
    out: Annotated[Path | None, typer.Option(help="a YAML file; none: the one that was given, or NAME.yaml")] = None,
    profile: Profile = "laptop",
) -> None:
    """Time each way to train clients on this machine, and write the fastest into the experiment's YAML file."""
    experiment = _overridden(what, profile)
    if experiment is None:
        return
    from engine.cli import executors as cli_executor

    given = Path(what[0]) if what and what[0].endswith((".yaml", ".yml")) else None
    cli_executor.tune(console, experiment, rounds, out or given or Path(f"{experiment.name}.yaml"))


@app.command()
def diagnose(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    overrides: Placement = None,
    number: Annotated[int | None, typer.Option("--round", help="none: the last one")] = None,
    stage: Annotated[str | None, typer.Option(help="one that trains; none: of the last stage's lineage")] = None,
    probe: Annotated[int, typer.Option(help="test images, balanced over classes")] = 1000,
    estimator: Annotated[str, typer.Option(help="of linear CKA: unbiased | biased")] = "unbiased",
    layers: Annotated[str, typer.Option(help="taps | weights: each convolution and linear layer")] = "taps",
    clients: Annotated[str | None, typer.Option(help="some of the cohort, as 0,3,7; none: all")] = None,
    address: Address = None,
) -> None:
    """Compute a round again and compare its local models: CKA between clients, classifier norms per class."""
    from engine.cli import diagnose as cli_diagnose  # with matplotlib and pandas

    options = cli_diagnose.options(probe, estimator, layers, clients)
    cli_diagnose.diagnose(console, folder, number, stage, options, overrides or [], address)


@app.command()
def embed(
    folder: Annotated[Path, typer.Argument(help="the folder of a run")],
    after: Annotated[str | None, typer.Option(help="a stage; none: the last one")] = None,
    before: Annotated[str | None, typer.Option(help="a stage; none: the one that the other needs")] = None,
    method: Annotated[str, typer.Option(help="pca | tsne")] = "pca",
    probe: Annotated[int, typer.Option(help="test images, balanced over classes")] = 1000,
) -> None:
    """Draw the features of test images in the plane, and what the heads before and after a calibration decide."""
    from engine.cli import diagnose as cli_diagnose

    cli_diagnose.embed(console, folder, after, before, method, probe)


@app.command()
def images(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    number: Annotated[int | None, typer.Option("--round", help="one with a checkpoint; none: the last one")] = None,
    probe: Annotated[int, typer.Option(help="images to generate, and test images to compare with")] = 1000,
) -> None:
    """Draw what a run's generator makes beside the nearest training images, and measure how far from copies it is."""
    from engine.cli import diagnose as cli_diagnose

    cli_diagnose.images(console, folder, number, probe)


@app.command()
def scale(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="as of run: a YAML file, a name, a cell or a trial, then key=value pairs; none: scaling"),
    ] = None,
    actors: Annotated[str | None, typer.Option(help="0,1,2,...; 0: in process; none: up to the cores")] = None,
    clients: Annotated[str | None, typer.Option("--clients-per-round", help="8,16,...")] = None,
    blocks: Annotated[str | None, typer.Option(help="clients in a block: auto,1,4,...")] = None,
    models: Annotated[str | None, typer.Option(help="names: logistic,mlp,...")] = None,
    predict: Annotated[str | None, typer.Option(help="actors to predict for: 8,64; none: twice, four times")] = None,
    turns: Annotated[int, typer.Option(help="of each setting")] = 5,
    seconds: Annotated[float, typer.Option(help="of a turn, about; at least one round")] = 2.0,
    output: Annotated[Path | None, typer.Option(help="the study's folder; none: runs/scale-<name>-<hash>")] = None,
    address: Address = None,
) -> None:
    """Measure rounds per second over actors, cohort, block and model; fit a scaling law and say what it predicts."""
    from engine.cli import scale as cli_scale  # with matplotlib and pandas

    words = list(what or [])
    named = bool(words) and _is_name(words[0])
    experiment, _ = _experiment(words.pop(0) if named else "scaling", "laptop", words)
    if experiment is None:  # a sweep without a cell: its cells are listed
        return
    asked = cli_scale.Asked(actors, clients, blocks, models, predict, turns, seconds)
    cli_scale.scale(console, experiment, words, not named, asked, address, output)


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(help="experiments | sweeps | " + " | ".join(LISTS))],
) -> None:
    """What there is to choose from, with fields and their defaults."""
    out = Console()
    if what == "experiments":
        table = Table("name", "what it is", box=None)
        for name, function in EXPERIMENTS.items():
            table.add_row(name, inspect.getdoc(function))
    elif what == "sweeps":
        from engine.cli import sweeps as cli_sweeps

        table = cli_sweeps.listing()
    elif what in LISTS:
        table = Table("name", "fields", "what it is", box=None)
        for name, cls in CHOICES[LISTS[what]].items():
            fields = ", ".join(f"{field.name}={_default(field)}" for field in dataclasses.fields(cls))
            mark = f" ({BREAKS_PRIVACY})" if getattr(cls, "breaks_privacy", False) else ""
            table.add_row(name, fields, _first_sentence(cls) + mark)
    else:
        raise ConfigError("list", what, "is not a list", nearest(what, ["experiments", "sweeps", *LISTS]))
    out.print(table)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def _is_name(word: str) -> bool:
    """Whether the first word is no key=value pair; a cell's name has such pairs behind its colon."""
    return ":" in word.partition("=")[0] or "=" not in word


def _overridden(what: list[str] | None, profile: str) -> Experiment | None:
    """What was typed, as one experiment; None where cells were listed instead."""
    experiment, words, _ = _named(what or [], profile)
    return None if experiment is None else experiment.override(words)


def _named(what: list[str], profile: str) -> tuple[Experiment | None, list[str], int | None]:
    """What was typed: an experiment, the key=value pairs behind it, and the round of :func:`_experiment`."""
    if profile != "laptop":
        from engine.sweeps.named import PROFILES  # with Ray Tune

        require(profile in PROFILES, "--profile", profile, "is not a profile", nearest(profile, PROFILES))
    named = bool(what) and _is_name(what[0])
    name, words = (what[0], what[1:]) if named else ("quickstart", what)
    experiment, stopped = _experiment(name, profile, words)
    return experiment, words, stopped


def _experiment(name: str, profile: str, overrides: Sequence[str] = ()) -> tuple[Experiment | None, int | None]:
    """What a name stands for, and the round after which it stopped, if it is a trial that was stopped.

    Prints the cells of a sweep, for which ``overrides`` have no meaning; others are left to the caller.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name](), None
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or os.path.exists(path):
        return Experiment.from_yaml(path), None
    reference = name.partition(":")[0]
    if ":" in name or reference.partition(".")[0] in SWEEPS:
        from engine.cli import sweeps as cli_sweeps

        return cli_sweeps.trial(name) or (cli_sweeps.cell(name, profile, overrides), None)
    names = [*EXPERIMENTS, *(f"{module}.{sweep}" for module, sweeps in SWEEPS.items() for sweep in sweeps)]
    raise ConfigError("experiment", name, "is neither a file nor a known name", nearest(name, names))


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run, of what the command line says."""

    address: str | None = None
    overwrite: bool = False
    as_json: bool = False
    until: int | None = None
    store: Path | None = None

    def __post_init__(self) -> None:
        if self.store is not None:
            check_writable(self.store, "--store")


def _run(experiment: Experiment, out: Path | None, options: Options) -> None:
    folder = RunFolder.for_experiment(experiment.resolve(), out)
    done = folder.summary() if folder.has_experiment() and not options.overwrite else {}
    if done.get("status") == "finished":
        console.print(f"{folder.path} is finished already; --overwrite starts it again", markup=False)
        _show(done, folder, options.as_json)
        return
    with console.status("data, Ray and actors"):
        store = StageStore(options.store.resolve()) if options.store else None
        run = Run.open(experiment, out, options.address, options.overwrite, store)
    _header(run)
    if run.round:
        console.print(f"continuing after round {run.round}")
    again = f"continue with: fedskew resume {shlex.quote(str(folder.path))}" + (
        f" --address {options.address}" if options.address else ""
    )
    with _Interrupts() as interrupts:
        try:
            _advance(run, interrupts, options.until)
        except FedskewError:
            with contextlib.suppress(Exception):
                run.close()  # what was done before the error is kept
            raise
        except Exception as error:  # of an algorithm's hooks, for example: not written for users
            with contextlib.suppress(Exception):
                run.close()
            raise _unforeseen(error, folder.path / "log.txt", again) from error
        except KeyboardInterrupt:
            console.print(again, highlight=False, soft_wrap=True, markup=False)
            raise
        summary = run.close()
    _show(summary, folder, options.as_json)
    if not run.finished:
        console.print(again, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130 if interrupts.asked else 0)


def _unforeseen(error: Exception, log: Path | None = None, again: str = "") -> RunError:
    """In one sentence; the traceback goes to the end of the run's log, or to a file of its own."""
    told = f"{type(error).__name__}: {error} (the traceback is at the end of {_kept(error, log)})"
    return RunError(f"{told}; {again}" if again else told)


def _kept(error: Exception, log: Path | None) -> Path:
    """Where the traceback is."""
    text = "".join(traceback.format_exception(error))
    if log is not None:
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:
            file.write(text)
            return log
    handle, name = tempfile.mkstemp(prefix="fedskew-", suffix=".txt")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def _advance(run: Run, interrupts: _Interrupts, until: int | None) -> None:
    """Run to the end, or to a round, or until Ctrl-C, under a progress bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
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
                bar.update(task, now=_now(scores[-1]))


def _now(score: Row) -> str:
    """A headline, for the progress bar; a loss may not be finite, and then there is none."""
    loss = "-" if score["loss"] is None else f"{score['loss']:.3f}"
    return f"accuracy {score['accuracy']:.3f}  loss {loss}"


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


def _header(run: Run) -> None:
    experiment, sizes = run.experiment, run.assignment.sizes()
    held = sizes[sizes > 0]
    plain = experiment.to_mapping()
    lines = [
        f"[bold]{experiment.name}[/bold]  {run.folder.path}",
        f"data       {plain['data']['name']}, {len(run.labels)} images, {len(run.classes)} classes",
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
    console.print("\n".join(lines), highlight=False)


def _show(summary: dict[str, Any], folder: RunFolder, as_json: bool) -> None:
    title = f"{summary['name']}, {summary['algorithm']['name']}"
    if summary.get("breaks_privacy"):
        title += f" ({BREAKS_PRIVACY})"
    table = Table(title=title, title_justify="left", show_header=False)
    before = list(summary.get("stage_accuracy", {}).items())[:-1]
    best_of = f" of stage {summary['best_stage']}" if before and summary.get("best_stage") else ""
    # Of a stage without rounds there is one evaluation, which is the test accuracy above.
    calibrated = folder.experiment().without_rounds.intersection(list(summary.get("stage_accuracy", {}))[-1:])
    last10 = [] if calibrated else [("mean of the last 10 rounds", _percent(summary["last10_accuracy"]))]
    is_personal = summary.get("scope") == "personal"
    of = ", personal models" if is_personal else ""
    whose = {
        stage.name: "" if has_global_model(stage.algorithm) or is_personal else ", own models"
        for stage in folder.experiment().chain
    }
    pictures = [folder.path / f"{name}.png" for name in ("curves", "partition", "classes", "matrices", "sampler")]
    said_above = ("personal_accuracy", "personal_last10_accuracy") if is_personal else ()
    own = [(METRICS[name].short, _percent(summary[name])) for name in PERSONAL if name in summary.keys() - said_above]
    for label, value in (
        (f"test accuracy{of}", _percent(summary["accuracy"])),
        *((f"after stage {stage}{whose[stage]}", _percent(accuracy)) for stage, accuracy in before),
        ("best", f"{_percent(summary['best_accuracy'])} in round {summary['best_round']}{best_of}"),
        *last10,
        *own,
        ("rounds", str(summary["rounds"])),
        ("seconds per round", f"{summary['seconds_per_round']:.3g}" if summary["seconds_per_round"] else "-"),
        ("floats up / down", f"{summary['floats_up']:,} / {summary['floats_down']:,}"),
        ("weights", f"{summary['weights_sha256'][:16]}…"),
        ("pictures", ", ".join(str(path) for path in pictures if path.exists())),
    ):
        table.add_row(label, value)
    console.print(table)
    if as_json:
        print(json.dumps(summary, allow_nan=False))


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f} %"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return str(field.default)
    return str(field.default_factory()) if field.default_factory is not dataclasses.MISSING else "?"


def _first_sentence(cls: type) -> str:
    own = cls.__doc__ if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(") else None
    text = own or inspect.getdoc(sys.modules[cls.__module__]) or ""
    return " ".join(text.split("\n\n")[0].split())


def main() -> None:
    """Entry point: errors that are the user's to repair end in one sentence and their exit code."""
    log = logging.getLogger("fedskew")
    if not any(isinstance(handler, RichHandler) for handler in log.handlers):
        log.addHandler(RichHandler(console=console, show_time=False, show_path=False, level=logging.WARNING))
    try:
        app()
    except Exception as raised:
        error = raised if isinstance(raised, FedskewError) else _unforeseen(raised)
        console.print("error:", style="bold red", end=" ")
        console.print(one_line(str(error)), highlight=False, soft_wrap=True, markup=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
