"""What a report shows and how it is written: settings with their trials, places on an axis."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from engine.analysis import statistics
from engine.analysis.drawing import MUTED
from engine.analysis.quantities import Quantity
from engine.analysis.settings import MARK, key, label, setting_label

if TYPE_CHECKING:
    from engine.analysis.tables import Axis, Results


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def shortened(text: str, longest: int) -> str:
    """The mark of an oracle is never cut off."""
    longest = max(longest, text.rfind(MARK) + len(MARK) + 1) if MARK in text else longest
    return text if len(text) <= longest else text[: longest - 1] + "…"


def shown(value: Any, longest: int = 36) -> str:
    """A hyper-parameter's value in a line that fits."""
    return shortened(" ".join(label(_rounded(value)).split()), longest)


def _rounded(value: Any) -> Any:
    """A drawn number has 16 digits, and three of them tell it from the others."""
    return float(f"{value:.3g}") if isinstance(value, float) and math.isfinite(value) else value


@dataclass(frozen=True, eq=False)
class Setting:
    """One combination of hyper-parameters and its trials, one for each seed."""

    values: dict[str, Any]
    trials: list[dict[str, Any]]  # rows of the trials table
    metric: str
    alone: bool = False  # all there is: a single run is shown as far as it went

    @cached_property
    def label(self) -> str:
        text = setting_label({name: _rounded(value) for name, value in self.values.items()}) or "this run"
        return f"{text}, {MARK}" if self.breaks_privacy and MARK not in text else text

    @cached_property
    def finished(self) -> list[dict[str, Any]]:
        """The trials that count: one that was stopped early has trained for less than the others."""
        return [row for row in self.trials if row["status"] == "finished" or self.alone]

    def figures(self, column: str) -> list[float]:
        """Of the finished trials, as far as they have it."""
        return [row[column] for row in self.finished if math.isfinite(row[column])]

    @cached_property
    def summary(self) -> statistics.Summary:
        return statistics.summarise(self.figures(self.metric))

    @property
    def mean(self) -> float:
        return self.summary.mean

    @property
    def breaks_privacy(self) -> bool:
        """Whether a stage behind its figures is an oracle."""
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
    """In the order of the trials."""
    settings: dict[Hashable, Setting] = {}
    for row in results.trials.to_dict("records"):
        values = {axis.name: row[axis.name] for axis in results.axes}
        fresh = Setting(values, [], results.metric, alone=len(results.trials) == 1)
        settings.setdefault(key(values), fresh).trials.append(row)
    return list(settings.values())


def ranked(settings: Iterable[Setting], mode: str) -> list[Setting]:
    """The best first; without those that have no finished trial."""
    finished = [setting for setting in settings if not math.isnan(setting.mean)]
    return sorted(finished, key=lambda setting: -setting.mean if mode == "max" else setting.mean)


def spread_out(items: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of them, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int))]


def distinct(values: Iterable[Any]) -> list[Any]:
    return list({key(value): value for value in values}.values())


def varied(results: Results, settings: Sequence[Setting]) -> dict[str, int]:
    """How many values each hyper-parameter has among ``settings``, if it has more than one."""
    counts = {axis.name: len(distinct(setting.values[axis.name] for setting in settings)) for axis in results.axes}
    return {name: count for name, count in counts.items() if count > 1}


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Scale:
    """Where the values of a hyper-parameter lie along an axis."""

    name: str
    places: dict[Hashable, float]  # of each value's key
    ticks: tuple[tuple[float, str], ...]
    ordered: bool  # numbers; otherwise names in the order in which the sweep lists them
    zero: float | None  # position of 0 on a logarithmic axis, left of a gap

    @classmethod
    def of(cls, axis: Axis, present: Iterable[Any]) -> Scale:
        found = distinct(present)
        if not found or not all(_is_number(value) for value in found):
            order = [key(value) for value in axis.values or ()]
            found.sort(key=lambda value: order.index(key(value)) if key(value) in order else len(order))
            places = {key(value): float(place) for place, value in enumerate(found)}
            ticks = tuple((float(place), shown(value, 22)) for place, value in enumerate(found))
            return cls(axis.name, places, ticks, False, None)
        found.sort()
        logarithmic = axis.log and found[-1] > 0 and found[0] >= 0
        positive = [value for value in found if value > 0]
        zero = None
        if logarithmic:
            places = {key(value): math.log10(value) for value in positive}
            if found[0] == 0:
                steps = np.diff(sorted(places.values())) if len(places) > 1 else np.array([1.0])
                zero = math.log10(positive[0]) - max(float(np.median(steps)), 0.12 * float(steps.sum()))
                places[key(0)] = zero
        else:
            places = {key(value): float(value) for value in found}
        return cls(axis.name, places, cls._ticks(found, places, zero), True, zero)

    @staticmethod
    def _ticks(found: list[Any], places: Mapping[Hashable, float], zero: float | None) -> tuple[tuple[float, str], ...]:
        low, high = min(places.values()), max(places.values())
        logarithmic = places[key(found[-1])] != found[-1]
        if len(found) <= 8:  # the values themselves, where there is room for their names
            ticks = [(places[key(value)], shown(value)) for value in found]
        elif logarithmic:
            first = min(place for place in places.values() if place != zero)
            decades = range(math.floor(first), math.ceil(high) + 1)
            steps = [n * 10.0**power for power in decades for n in ((1, 2, 5) if high - first < 2 else (1,))]
            ticks = [
                (math.log10(step), f"{step:g}") for step in steps if first - 0.05 <= math.log10(step) <= high + 0.05
            ]
            ticks = [(places[key(0)], "0"), *ticks] if zero is not None else ticks
        else:
            ticks = [
                (float(tick), f"{tick:g}") for tick in MaxNLocator(6).tick_values(low, high) if low <= tick <= high
            ]
        kept: list[tuple[float, str]] = []
        for tick in sorted(ticks):
            if not kept or tick[0] - kept[-1][0] > 0.07 * (high - low):
                kept.append(tick)
        return tuple(kept)

    def __getitem__(self, value: Any) -> float:
        return self.places[key(value)]

    def place(self, setting: Setting) -> float:
        return self[setting.values[self.name]]

    @property
    def limits(self) -> tuple[float, float]:
        low, high = min(self.places.values()), max(self.places.values())
        margin = 0.08 * (high - low) if self.ordered and high > low else 0.5
        return low - margin, high + margin

    def label(self, axes: Axes) -> None:
        """Ticks, limits and name along x."""
        crowded = sum(len(name) for _, name in self.ticks) > 40
        axes.set_xticks([place for place, _ in self.ticks], [name for _, name in self.ticks])
        if crowded:
            slanted(axes)
        axes.set_xlim(*self.limits)
        axes.set_xlabel(self.name)
        if self.zero is not None:  # 0 has no place on a logarithmic axis: two strokes say that the axis is cut
            others = [place for place in self.places.values() if place != self.zero]
            middle = (self.zero + min(others)) / 2
            axes.plot(
                [middle],
                [0],
                transform=axes.get_xaxis_transform(),
                marker=[(-0.6, -1), (0.2, 1)],
                markersize=7,
                color=MUTED,
                clip_on=False,
                linestyle="none",
                markeredgewidth=0.9,
            )


def slanted(axes: Axes) -> None:
    """Names along x that would touch each other if they stood level."""
    for text in axes.get_xticklabels():
        text.set(rotation=30, ha="right", rotation_mode="anchor")


def scale_of(results: Results, name: str, settings: Iterable[Setting]) -> Scale:
    axis = next(axis for axis in results.axes if axis.name == name)
    return Scale.of(axis, [setting.values[name] for setting in settings])


def by_value(scale: Scale, settings: Iterable[Setting]) -> dict[str, list[Setting]]:
    """The settings of each value along a scale, in its order."""
    groups: dict[str, list[Setting]] = {}
    for setting in sorted(settings, key=scale.place):
        groups.setdefault(shown(setting.values[scale.name]), []).append(setting)
    return groups
