"""Settings with their trials: ranked, thinned out where they are many, and described in words that fit."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from engine.results import statistics
from engine.results.results import Results
from engine.results.settings import MARK, key, setting_label
from fedskew.lab.quantities import Quantity
from fedskew.lab.wording import counted, rounded


@dataclass(frozen=True, eq=False)
class Setting:
    """One combination of hyper-parameters and its trials: one for each seed, or several of a population."""

    values: dict[str, Any]
    trials: list[dict[str, Any]]  # rows of the trials table
    metric: str
    alone: bool = False  # all there is: a single run is shown as far as it went

    @cached_property
    def label(self) -> str:
        text = setting_label({name: rounded(value) for name, value in self.values.items()}) or "this run"
        return f"{text}, {MARK}" if self.breaks_privacy and MARK not in text else text

    @cached_property
    def finished(self) -> list[dict[str, Any]]:
        """The trials that count: one that was stopped early has trained for less than the others."""
        return [row for row in self.trials if row["status"] == "finished" or self.alone]

    def figures(self, column: str) -> list[float]:
        """Return the figure of each seed that has it: a mean where trials of a population came to one setting."""
        rows = [row for row in self.finished if math.isfinite(row[column])]
        seeds = dict.fromkeys(row["seed"] for row in rows)
        return [float(np.mean([row[column] for row in rows if row["seed"] == seed])) for seed in seeds]

    @cached_property
    def summary(self) -> statistics.Summary:
        return statistics.summarise(self.figures(self.metric))

    @property
    def mean(self) -> float:
        return self.summary.mean

    @property
    def breaks_privacy(self) -> bool:
        """True if a stage behind its figures is an oracle."""
        return any(row["breaks_privacy"] == 1 for row in self.trials)

    def describe(self, measured: Quantity) -> str:
        return f"{self.label}\n{describe(self.summary, measured)}"


def describe(summary: statistics.Summary, measured: Quantity) -> str:
    """A sample in a line: mean ± standard deviation, interval, seeds."""
    if not summary.n:
        return "no finished trial"
    text = measured.text(summary.mean, unit=True)
    if summary.n > 1:
        interval = f"{measured.text(summary.low)} to {measured.text(summary.high)}"
        text += f" ± {measured.text(summary.std)}, 95 % interval {interval}"
    return f"{text}, {counted(summary.n, 'seed')}"


def settings_of(results: Results) -> list[Setting]:
    """Gather the trials of each setting, in the order of the trials."""
    settings: dict[Hashable, Setting] = {}
    counted = set[Hashable]()
    for row in results.trials.to_dict("records"):
        values = {axis.name: row[axis.name] for axis in results.axes}
        setting = key(values)
        fresh = Setting(values, [], results.metric, alone=len(results.trials) == 1)
        trials = settings.setdefault(setting, fresh).trials
        run = setting, row["seed"], row["weights_sha256"]
        if row["weights_sha256"] is None or run not in counted:
            trials.append(row)  # draws may come to one setting twice: the same computation is no other seed
        counted.add(run)
    return list(settings.values())


def ranked(settings: Iterable[Setting], mode: str) -> list[Setting]:
    """The best first, those of which a seed failed behind all others; without those that have no finished trial."""
    finished = [setting for setting in settings if not math.isnan(setting.mean)]
    finished.sort(key=lambda setting: -setting.mean if mode == "max" else setting.mean)
    return sorted(finished, key=lambda setting: any(row["status"] == "failed" for row in setting.trials))


def spread_out(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most ``most`` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int))]


def distinct(values: Iterable[Any]) -> list[Any]:
    return list({key(value): value for value in values}.values())


def varied(results: Results, settings: Sequence[Setting]) -> dict[str, int]:
    """Count the values of each hyper-parameter among ``settings``, if it has more than one."""
    counts = {axis.name: len(distinct(setting.values[axis.name] for setting in settings)) for axis in results.axes}
    return {name: count for name, count in counts.items() if count > 1}
