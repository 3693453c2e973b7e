"""One table on the terminal while a sweep runs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ray import tune
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from engine.analysis.quantities import quantity
from engine.sweeps.definition import Sweep, label
from engine.sweeps.folder import SweepFolder

REFRESH = 0.5  # seconds
ROWS = 12  # trials shown; more than run at once on most machines


class LiveTable(tune.Callback):
    """Counts, the best trial so far, and those that run now; also notes what became of trials that Tune ended."""

    def __init__(self, console: Console, folder: SweepFolder, total: int, sweep: Sweep, stopper: str) -> None:
        """``stopper``: what else than the sweep's own rule may stop a trial."""
        self._console = console
        self._folder = folder
        self._metric = sweep.metric
        self._sign = 1 if sweep.mode == "max" else -1
        self._stop = sweep.stop
        self._stopper = stopper
        self._running: dict[str, tuple[dict[str, Any], Mapping[str, Any]]] = {}  # trial -> its config, last report
        self._best: tuple[float, str] = (-math.inf, "")
        self._counts = {"finished": 0, "stopped": 0, "failed": 0}
        self._drawn = 0.0
        self._bar = Progress(
            TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._bar.add_task("trials", total=total)
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draw()
        self._live.stop()
        if not self._console.is_terminal:  # where Rich does not end the table's last line
            self._console.line()

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks, for a way of resuming that is not ours; a terminal cannot be."""
        return {}

    # --- what Tune tells ----------------------------------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._running.setdefault(str(trial), (trial.config, {}))
        self._redraw()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._running[str(trial)] = (trial.config, result)
        value = result[self._metric]
        if math.isfinite(value) and not result["failed"]:
            self._best = max(self._best, (self._sign * value, str(trial)))
        self._redraw()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        _, result = self._running.pop(str(trial), ({}, {}))
        last = trial.last_result or result
        status = "failed" if last.get("failed") else "finished"
        if not last.get("ended"):
            reached = [f"{name}={last[name]:.4g}" for name, goal in self._stop.items() if last.get(name, -1) >= goal]
            if reached:  # it has come as far as was asked for
                self._folder.end(str(trial), "finished", f"{', '.join(reached)} reached after round {last['round']}")
            else:
                self._folder.end(str(trial), "stopped", f"stopped by {self._stopper} after round {last.get('round')}")
        record = self._folder.record(str(trial))
        self._count(record.status if record is not None else status)
        if last.get("failed"):
            self._console.print(f"trial {trial} failed: ", style="red", end="", highlight=False)
            self._console.print(str(last.get("reason")), highlight=False, markup=False, soft_wrap=True)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._running.pop(str(trial), None)
        self._count("failed")

    def _count(self, status: str) -> None:
        self._counts[status] = self._counts.get(status, 0) + 1
        self._bar.advance(self._task)
        self._redraw()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)

    # --- the table ------------------------------------------------------------------------------------------

    def _redraw(self) -> None:
        if time.monotonic() - self._drawn > REFRESH:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        table = Table("trial", "setting", "seed", "round", "accuracy", "loss", box=None, title_justify="left")
        for name, (config, result) in sorted(self._running.items())[:ROWS]:
            setting = {key: value for key, value in config.items() if key not in ("trial", "seed")}
            table.add_row(
                name,
                Text(label(setting)),
                str(config.get("seed", "")),
                str(result.get("round", "starting")),
                _figure(100 * result.get("accuracy", math.nan), "%"),
                _figure(result.get("loss", math.nan)),
            )
        counts = ", ".join(f"{count} {status}" for status, count in self._counts.items() if count)
        value, name = self._best
        scale, unit = (100, " %") if quantity(self._metric).unit == "%" else (1, "")
        best = f"   best {self._metric}: {self._sign * scale * value:.4g}{unit} (trial {name})" if name else ""
        self._live.update(Group(self._bar, Text(f"{counts}{best}"), table), refresh=True)


def _figure(value: float, unit: str = "") -> str:
    return f"{value:.4g} {unit}".rstrip() if math.isfinite(value) else "-"
