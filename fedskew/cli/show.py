"""The text that users see of a run: its header, the headline of the progress bar, the table at its end."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from engine.algorithm.personalised import has_global_model
from engine.base import last_word
from engine.experiment import CHOICES
from engine.record.metrics import METRICS, PERSONAL
from engine.record.run_folder import BREAKS_PRIVACY, Row, RunFolder
from engine.run.run import Run
from fedskew.cli.plain import plain_console

console = plain_console(stderr=True)  # progress and messages; results that a program reads go to standard output


def leave_streams_to_ray() -> None:
    """Let what Ray writes to standard output and error go to a file, and what is written here where it went before."""
    width = console.width
    kept = last_word.keep_rays_text()
    if kept is not None:
        out, err = (open(one, "w", encoding="utf-8", errors="replace", buffering=1) for one in kept)  # noqa: SIM115
        console.file = err
        _results.append(out)
        if not os.isatty(0):  # Rich asks the three streams for the terminal's width
            console.width = width


_results: list[TextIO] = []  # where results go, the last one if there are more; standard output if there is none


@contextlib.contextmanager
def results_to(stream: TextIO) -> Iterator[None]:
    """Let results go to ``stream``, whatever standard output is meanwhile."""
    _results.append(stream)
    try:
        yield
    finally:
        _results.remove(stream)


def print_result(text: str) -> None:
    """Print what programs read to standard output."""
    print(text, file=_results[-1] if _results else sys.stdout, flush=True)


def headline(score: Row) -> str:
    """Return an evaluation's scores for the progress bar; of a loss that is not finite there is no number."""
    loss = "-" if score["loss"] is None else f"{score['loss']:.3f}"
    return f"accuracy {score['accuracy']:.3f}  loss {loss}"


def show_header(run: Run) -> None:
    """Print what is about to run: data, clients, stages and place."""
    experiment, sizes = run.experiment, run.assignment.sizes()
    held = sizes[sizes > 0]
    plain = experiment.to_mapping()
    lines = [
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
    console.print(Text.assemble((experiment.name, "bold"), f"  {run.folder.path}"), highlight=False)
    console.print("\n".join(lines), highlight=False)


def show_summary(summary: dict[str, Any], folder: RunFolder) -> None:
    """Print the table of a run's results."""
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
    stopped = f", ended by stop.{summary['stopped_by']}" if summary.get("stopped_by") else ""
    for label, value in (
        (f"test accuracy{of}", _percent(summary["accuracy"])),
        *((f"after stage {stage}{whose[stage]}", _percent(accuracy)) for stage, accuracy in before),
        ("best", f"{_percent(summary['best_accuracy'])} in round {summary['best_round']}{best_of}"),
        *last10,
        *own,
        ("rounds", f"{summary['rounds']}{stopped}"),
        ("seconds per round", f"{summary['seconds_per_round']:.3g}" if summary["seconds_per_round"] else "-"),
        ("floats up / down", f"{summary['floats_up']:,} / {summary['floats_down']:,}"),
        ("weights", f"{summary['weights_sha256'][:16]}…"),
        ("pictures", ", ".join(str(path) for path in pictures if path.exists())),
    ):
        table.add_row(label, value)
    console.print(table)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f} %"
