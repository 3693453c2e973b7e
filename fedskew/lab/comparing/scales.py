"""Scales: the places of a hyper-parameter's values along an axis, of a picture or of a forest of trees."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from engine.results.results import Axis, Results
from engine.results.settings import key
from fedskew.lab.comparing.ranking import Setting, distinct
from fedskew.lab.wording import shown


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Scale:
    """The places of a hyper-parameter's values along an axis."""

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


def scale_of(results: Results, name: str, settings: Iterable[Setting]) -> Scale:
    axis = next(axis for axis in results.axes if axis.name == name)
    return Scale.of(axis, [setting.values[name] for setting in settings])


def by_value(scale: Scale, settings: Iterable[Setting]) -> dict[str, list[Setting]]:
    """The settings of each value along a scale, in its order."""
    groups: dict[str, list[Setting]] = {}
    for setting in sorted(settings, key=scale.place):
        groups.setdefault(shown(setting.values[scale.name]), []).append(setting)
    return groups
