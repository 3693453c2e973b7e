"""One table on the terminal while a sweep runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from engine.results.results import Results
from engine.results.settings import setting_label
from engine.sweeps.observers import SweepObserver, SweepStart
from fedskew.lab.comparing.ranking import describe, ranked, settings_of
from fedskew.lab.quantities import quantity, quantity_of
from fedskew.lab.run_line import curve
from fedskew.lab.shown import Shown, time_left

REFRESH = 0.5  # seconds
ROWS = 12  # trials shown; more than run at once on most machines


class LiveTable(SweepObserver):
    """Shows counts, the best trial so far, and those that run now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._running: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}  # trial -> its config, last report
        self._status = console.status("data and Ray")
        self._shown: Shown | None = None  # until trials run

    def on_prepare(self) -> None:
        self._status = self._console.status("data and Ray")
        if not self._console.is_jupyter:  # where it needs ipywidgets
            self._status.start()

    def on_start(self, start: SweepStart) -> None:
        self._status.stop()
        self._announce(start)
        if start.ended == start.trials:
            return
        sweep = start.named.sweep
        self._metric = sweep.metric
        self._sign = 1 if sweep.mode == "max" else -1
        self._running.clear()
        self._best: tuple[float, str] = (-math.inf, "")
        self._counts = {"finished": 0, "stopped": 0, "failed": 0}
        self._begun, self._total = time.monotonic(), start.to_report
        self._again = start.ended - (start.trials - start.to_report)  # that have ended before, and report again
        self._drawn = 0.0
        self._bar = Progress(
            TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=self._console
        )
        self._task = self._bar.add_task("trials", total=start.to_report)
        self._shown = Shown(self._console)
        self._draw()

    def _announce(self, start: SweepStart) -> None:
        named, mode, seeds = start.named, start.mode, len(start.named.sweep.seeds)
        where = "each in a process of its own" if mode.kind == "inside" else f"each on {mode.actors} client actors"
        lines = [
            named.title,
            f"trials     {start.trials}: {start.trials // seeds} settings x {seeds} seeds"
            + (f"; {start.ended} have ended already" if start.ended else ""),
            f"where      {min(start.places, start.trials)} at a time, {where} ({mode.reason}; --mode changes it)",
        ]
        title = Text.assemble((named.name, "bold"), f" ({named.profile})  {start.folder.path}")
        self._console.print(title, highlight=False)
        self._console.print("\n".join(lines), highlight=False, markup=False)

    def on_trial_start(self, trial: str, config: Mapping[str, Any]) -> None:
        self._running.setdefault(trial, (config, {}))
        self._redraw()

    def on_trial_result(self, trial: str, config: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self._running[trial] = (config, result)
        value = result[self._metric]
        if math.isfinite(value) and not result["failed"]:
            self._best = max(self._best, (self._sign * value, trial))
        self._redraw()

    def on_trial_end(self, trial: str, status: str, reason: str | None) -> None:
        self._running.pop(trial, None)
        self._counts[status] = self._counts.get(status, 0) + 1
        self._bar.advance(self._task)
        self._redraw()
        if reason is not None:
            self._console.print(f"trial {trial} failed: ", style="red", end="", highlight=False)
            self._console.print(reason, highlight=False, markup=False, soft_wrap=True)

    def on_message(self, text: str) -> None:
        self._console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)

    def on_end(self) -> None:
        self._status.stop()
        if self._shown is None:
            return
        self._draw()
        self._shown.__exit__()
        self._shown = None

    # --- the table ------------------------------------------------------------------------------------------

    def _redraw(self) -> None:
        if time.monotonic() - self._drawn > REFRESH:
            self._draw()

    def _draw(self) -> None:
        if self._shown is None:
            return
        self._drawn = time.monotonic()
        statuses = {**self._counts, "running": len(self._running)}
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items() if count)
        value, name = self._best
        scale, unit = (100, " %") if quantity(self._metric).unit == "%" else (1, "")
        best = f"; best {self._metric}: {self._sign * scale * value:.4g}{unit} (trial {name})" if name else ""
        ended = sum(self._counts.values())
        left = time_left(self._begun, ended - self._again, self._total - ended)
        line = f"{ended} of {self._total} trials have ended: {counts}{best}{left}"
        table = [self._table()] if self._running and not self._shown.is_log else []
        self._shown.show(Group(self._bar, Text(f"{counts}{best}"), *table), line)

    def _table(self) -> Table:
        table = Table("trial", "setting", "seed", "round", "accuracy", "loss", box=None, title_justify="left")
        for name, (config, result) in sorted(self._running.items())[:ROWS]:
            setting = {key: value for key, value in config.items() if key not in ("trial", "seed")}
            table.add_row(
                name,
                Text(setting_label(setting).replace(" ", "")),
                str(config.get("seed", "")),
                str(result.get("round", "starting")),
                _figure(100 * result.get("accuracy", math.nan), "%"),
                _figure(result.get("loss", math.nan)),
            )
        return table


def settings_table(results: Results) -> Table:
    """Return the settings of a sweep, the best first, with their curves."""
    measured = quantity_of(results)
    curves: Any = results.curves()
    made = Table("setting", measured.title, "accuracy over rounds")
    for setting in ranked(settings_of(results), results.mode)[:ROWS]:
        rows = curves[curves["trial"].isin([row["trial"] for row in setting.finished])]
        made.add_row(
            setting.label, describe(setting.summary, measured), curve(rows.groupby("round")["accuracy"].mean())
        )
    return made


def _figure(value: float, unit: str = "") -> str:
    return f"{value:.4g} {unit}".rstrip() if math.isfinite(value) else "-"


class OnTrial(SweepObserver):
    """Lets trackers look at a sweep's folder when one of its trials has begun, has reported or has ended."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def on_trial_start(self, trial: str, config: Mapping[str, Any]) -> None:
        self._look()

    def on_trial_result(self, trial: str, config: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self._look()

    def on_trial_end(self, trial: str, status: str, reason: str | None) -> None:
        self._look()


def on_terminal(console: Console, look: Callable[[], None] = lambda: None) -> list[SweepObserver]:
    """Return the observers of a sweep that somebody watches; ``look``: of the trackers that follow it."""
    return [LiveTable(console), OnTrial(look)]
