"""A run as somebody sees it: a line while it goes on, a table when it has ended."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from engine.algorithm.personalised import has_global_model
from engine.base.errors import RunFolderError
from engine.record.last_rounds import comparable
from engine.record.metrics import METRICS, PERSONAL
from engine.record.run_folder import BREAKS_PRIVACY, Row, RunFolder
from engine.run.local_driver import Progress as Advanced
from engine.run.run import Run, RunObserver
from fedskew.lab.quantities import quantity
from fedskew.lab.shown import Shown, progress_bar, time_left

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS = 30  # of a curve in one line


class RunLine(RunObserver):
    """Shows a line of a run while it goes on."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._bar = progress_bar("round")
        self._task = self._bar.add_task("round", now="")
        self._now = ""

    def on_start(self, run: Run) -> None:
        self._begun, self._before = time.monotonic(), run.done
        self._bar.update(self._task, total=run.total_rounds, completed=run.done)
        self._shown.show(self._bar)

    def on_round(self, run: Run, progress: Advanced) -> None:
        scores = [row for row in progress.rows if row["accuracy"] is not None]
        if scores:
            self._now = headline(scores[-1])
        total = run.done if run.finished else run.total_rounds  # perhaps before the last of its rounds
        self._bar.update(self._task, now=self._now, total=total, completed=run.done)
        left = time_left(self._begun, run.done - self._before, total - run.done)
        self._shown.show(self._bar, f"round {run.done} of {total}  {self._now}{left}")


def headline(score: Row) -> str:
    """Return an evaluation's scores for the progress bar; of a loss that is not finite there is no number."""
    loss = "-" if score["loss"] is None else f"{score['loss']:.3f}"
    return f"accuracy {score['accuracy']:.3f}  loss {loss}"


def curve(values: Sequence[float]) -> str:
    """Return a curve as blocks in one line, from its least value to its largest."""
    known = [value for value in values if math.isfinite(value)]
    known = known[::-1][:: math.ceil(len(known) / MOST_BLOCKS) or 1][::-1]  # the last one is among them
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * (value - low) / ((high - low) or 1))] for value in known)


def summary_table(summary: Mapping[str, Any], folder: RunFolder) -> Table:
    """Return the table of a run's results, with its curve."""
    title = f"{summary['name']}, {summary['algorithm']['name']}"
    if summary.get("breaks_privacy"):
        title += f" ({BREAKS_PRIVACY})"
    before = list(summary.get("stage_accuracy", {}).items())[:-1]
    best_of = f" of stage {summary['best_stage']}" if before and summary.get("best_stage") else ""
    # Of a stage without rounds there is one evaluation, which is the test accuracy above.
    calibrated = folder.experiment().without_rounds.intersection(list(summary.get("stage_accuracy", {}))[-1:])
    number = min(summary["rounds"], 10)
    last = f"mean of the last {number} round{'s' * (number != 1)}"
    last10 = [] if calibrated else [(last, _percent(summary["last10_accuracy"]))]
    evaluated: Sequence[Mapping[str, Any]] = []
    with contextlib.suppress(RunFolderError):  # the summary stands without its curve
        evaluated = comparable(folder.arrow("evaluations", ["scope", "accuracy", "own"]).to_pylist())
    of_ones_own = dict(evaluated[-1]["own"] or ()) if evaluated else {}
    is_personal = summary.get("scope") == "personal"
    of = ", personal models" if is_personal else ""
    whose = {
        stage.name: "" if has_global_model(stage.algorithm) or is_personal else ", own models"
        for stage in folder.experiment().chain
    }
    pictures = [folder.path / f"{name}.png" for name in ("curves", "partition", "sampler")]
    said_above = ("personal_accuracy", "personal_last10_accuracy") if is_personal else ()
    own = [(METRICS[name].short, _percent(summary[name])) for name in PERSONAL if name in summary.keys() - said_above]
    stopped = f", ended by stop.{summary['stopped_by']}" if summary.get("stopped_by") else ""
    rows = (
        (f"test accuracy{of}", _percent(summary["accuracy"])),
        *((f"after stage {stage}{whose[stage]}", _percent(accuracy)) for stage, accuracy in before),
        ("best", f"{_percent(summary['best_accuracy'])} in round {summary['best_round']}{best_of}"),
        *last10,
        ("curve", curve([row["accuracy"] for row in evaluated if row["accuracy"] is not None])),
        *own,
        *((name, quantity(name).text(value, unit=True)) for name, value in of_ones_own.items()),
        ("rounds", f"{summary['rounds']}{stopped}"),
        *([("epsilon", f"{summary['epsilon']:.3g}")] if summary.get("epsilon") is not None else []),
        ("seconds per round", f"{summary['seconds_per_round']:.3g}" if summary["seconds_per_round"] else "-"),
        ("floats up / down", f"{summary['floats_up']:,} / {summary['floats_down']:,}"),
        ("weights", f"{summary['weights_sha256'][:16]}…"),
        ("pictures", ", ".join(str(path) for path in pictures if path.exists())),
    )
    made = Table("", "", title=Text(title), title_justify="left", show_header=False)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f} %"
