"""Settings of a sweep: their values compared, named and matched, and their trials grouped and paired by seed.

A value may have been through YAML, JSON or pandas, so 1 and 1.0 are the same, a list is the same as a tuple, and a
mapping (an algorithm with its fields) is compared field by field. True is not 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from engine.analysis.class_figures import STD
from engine.base.errors import nearest, require
from engine.experiment import CHOICES
from engine.record import metrics

if TYPE_CHECKING:
    from engine.analysis.tables import Results

MARK = "breaks-privacy"  # of an oracle, wherever it is named; one word, since labels name cells as well
SMALLER_IS_BETTER = (*metrics.SMALLER_IS_BETTER, STD)


def key(value: Any) -> Hashable:
    """Equal for values that are the same."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return "mapping", *((str(name), key(value[name])) for name in sorted(value, key=str))
    if isinstance(value, list | tuple):
        return "list", *map(key, value)
    return ("bool", value) if isinstance(value, bool) else value


def matches(value: Any, wanted: Any) -> bool:
    """Whether ``value`` is ``wanted``, or one of ``wanted`` if that is a list."""
    either = [key(value) == key(one) for one in wanted] if isinstance(wanted, list | tuple) else []
    return key(value) == key(wanted) or any(either)


def names_oracle(value: Any) -> bool:
    """Whether ``value``, or a part of it, is an algorithm that no client would take part in."""
    if isinstance(value, Mapping):
        return any(map(names_oracle, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_oracle, value))
    return isinstance(value, str) and getattr(CHOICES["algorithm"].get(value), "breaks_privacy", False)


def label(value: Any) -> str:
    """Short and readable: ``0.1``, ``none``, ``[64, 32]``, ``fedprox(mu=0.1)``.

    An oracle has its mark in front, where no abbreviation cuts it off: ``iid_calibration(breaks-privacy, fraction=1)``.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        told = [f"{name}={label(one)}" for name, one in value.items() if name != "name"]
        marks = [MARK] * names_oracle(value.get("name"))
        return f"{value['name']}({', '.join(marks + told)})".removesuffix("()") if "name" in value else ", ".join(told)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(label, value))}]"
    return f"{value}({MARK})" if names_oracle(value) else str(value)


def setting_label(setting: Mapping[str, Any]) -> str:
    """``mu=0.1, alpha=0.05``; an algorithm is named by itself."""
    return ", ".join(
        label(value) if isinstance(value, Mapping) and "name" in value else f"{name}={label(value)}"
        for name, value in setting.items()
    )


def larger_is_better(results: Results, metric: str) -> bool:
    return results.mode == "max" if metric == results.metric else metric not in SMALLER_IS_BETTER


@dataclass
class Group:
    """The trials of one setting, or of all settings that agree on some axes.

    Axes that the group is not told apart by are averaged over, seed by seed: a seed counts once it has finished every
    point of theirs that the group has trials for, so that no mean is taken over another mixture than its neighbour's.
    """

    setting: dict[str, Any]
    points: set[Hashable] = field(default_factory=set)  # of the averaged axes, whatever became of the trials
    values: dict[tuple[Hashable, int], float] = field(default_factory=dict)  # by point and seed: finished trials
    statuses: Counter[str] = field(default_factory=Counter)

    def by_seed(self) -> dict[int, float]:
        """The metric of each seed that is complete; NaN where a finished trial lacks it."""
        return _averaged(self.points, self.values)

    def minus(self, other: Group) -> dict[int, float]:
        """The difference for each seed that both have finished, at all points that both have trials for."""
        both = {place: value - other.values[place] for place, value in self.values.items() if place in other.values}
        return _averaged(self.points & other.points, both)


def _averaged(points: set[Hashable], values: Mapping[tuple[Hashable, int], float]) -> dict[int, float]:
    """The mean over ``points`` for each seed that has them all."""
    seeds = sorted({seed for _, seed in values})
    complete = [seed for seed in seeds if points and all((point, seed) in values for point in points)]
    # Exact sums: a set has no order, and the same folder must give the same bytes.
    return {seed: math.fsum(values[point, seed] for point in points) / len(points) for seed in complete}


def grouped(results: Results, names: Iterable[str], metric: str, where: Mapping[str, Any] | None = None) -> list[Group]:
    """The trials that match ``where``, in groups of equal values of the axes ``names``; sorted as the axes' values are.

    Only finished trials have a value: one that was stopped early has trained for less than those it is compared with.
    """
    check_metric(results, metric)
    names, where = list(names), where or {}
    check_axes(results, [*names, *where])
    axes = [axis.name for axis in results.axes]
    groups: dict[Hashable, Group] = {}
    for row in results.trials.filter(items=[*axes, "seed", "status", metric]).to_dict("records"):
        if not all(matches(row[name], wanted) for name, wanted in where.items()):
            continue
        setting = {name: row[name] for name in names}
        group = groups.setdefault(key(setting), Group(setting))
        point = key([row[name] for name in axes if name not in names])
        group.points.add(point)
        group.statuses[row["status"]] += 1
        if row["status"] == "finished":
            group.values[point, row["seed"]] = float(row[metric])
    orders = {axis.name: [key(value) for value in axis.values or ()] for axis in results.axes}
    return sorted(groups.values(), key=lambda group: [_rank(group.setting[name], orders[name]) for name in names])


def averaged_axes(results: Results, names: Iterable[str], where: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The axes that a group by ``names`` averages over: those that vary among the trials that match ``where``."""
    names, where = set(names), where or {}
    found = []
    for axis in results.axes:
        values = [value for value in results.trials[axis.name] if matches(value, where.get(axis.name, value))]
        if axis.name not in names and len({key(value) for value in values}) > 1:
            found.append(axis.name)
    return tuple(found)


def check_axes(results: Results, names: Iterable[str]) -> None:
    known = [axis.name for axis in results.axes]
    for name in names:
        repair = nearest(name, known) if known else "a single run has none"
        require(name in known, "axis", name, "is not an axis of this sweep", repair)


def check_metric(results: Results, metric: str) -> None:
    require(metric in results.metrics, "metric", metric, "is no figure of a trial", nearest(metric, results.metrics))


def setting_frame(rows: list[dict[str, Any]], axes: Iterable[str], names: Iterable[str]) -> pd.DataFrame:
    """``rows`` as a frame of the columns ``axes``, whose values stay what they are, and ``names``."""
    axes, names = list(axes), list(names)
    frame = pd.DataFrame(rows, columns=[*axes, *names])
    for axis in axes:
        frame[axis] = setting_column([row[axis] for row in rows])
    return frame


def setting_column(values: list[Any]) -> pd.Series:
    """Numbers as numbers; all else as it is, since pandas would make None a NaN and split a mapping."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return pd.Series(values, dtype=None if numbers and values else object)


def _rank(value: Any, order: list[Hashable]) -> tuple[int, float, str]:
    """The place among an axis' values; those that were drawn come by size, or by name."""
    if key(value) in order:
        return order.index(key(value)), 0.0, ""
    number = isinstance(value, int | float) and math.isfinite(value)
    return len(order), float(value) if number else 0.0, label(value)
