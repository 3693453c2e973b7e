"""Settings of a sweep: their values compared, named and matched.

A value may have been through YAML, JSON or pandas, so 1 and 1.0 are the same, a list is the same as a tuple, and a
mapping (an algorithm with its fields) is compared field by field; one of a name alone is that name. True is not 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from engine.base.evaluated import way_of
from engine.experiment import CHOICES, written
from engine.record import metrics
from engine.results.class_figures import STD, is_class_figure

MARK = "breaks-privacy"  # of an oracle, wherever it is named; one word, since labels name cells as well


def better_way(metric: str) -> Literal["max", "min"] | None:
    """Return whether more or less of a metric is better; None if neither is by itself."""
    if is_class_figure(metric):
        return "min" if metric == STD else "max"
    return metrics.METRICS[metric].better if metric in metrics.METRICS else way_of(metric)


def key(value: Any) -> Hashable:
    """Return a key that is equal for values that are the same."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        if list(value) == ["name"]:
            return key(value["name"])
        return "mapping", *((str(name), key(value[name])) for name in sorted(value, key=str))
    if isinstance(value, list | tuple):
        return "list", *map(key, value)
    return ("bool", value) if isinstance(value, bool) else value


def plain(value: Any) -> Any:
    """Return a value as YAML has it: numbers as Python's own, an algorithm or another choice as its name and fields."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else written(value)


def make_plain(owner: Any, *names: str) -> None:
    """Replace algorithms, and other choices that are given as objects, by data in settings of ``owner``."""
    for name in names:
        object.__setattr__(owner, name, {axis: plain(value) for axis, value in getattr(owner, name).items()})


def matches(value: Any, wanted: Any) -> bool:
    """Return whether ``value`` is ``wanted``, or one of ``wanted`` if that is a list.

    An algorithm, or whatever else has a name and fields, may be wanted by its name or its label.
    """
    names = (value.get("name"), label(value)) if isinstance(value, Mapping) and "name" in value else ()
    each = [wanted, *wanted] if isinstance(wanted, list | tuple) else [wanted]
    return any(key(value) == key(one) or (isinstance(one, str) and one in names) for one in each)


def names_oracle(value: Any) -> bool:
    """Return whether ``value``, or a part of it, is an algorithm that no client would take part in."""
    if isinstance(value, Mapping):
        return any(map(names_oracle, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_oracle, value))
    return isinstance(value, str) and getattr(CHOICES["algorithm"].get(value), "breaks_privacy", False)


def label(value: Any) -> str:
    """Write a value short and readable: ``0.1``, ``none``, ``[64, 32]``, ``fedprox(mu=0.1)``.

    An oracle has its mark in front, where no abbreviation cuts it off: ``iid_calibration(breaks-privacy, fraction=1)``.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value or value != value else repr(value)
    if isinstance(value, Mapping):
        told = [f"{name}={label(one)}" for name, one in value.items() if name != "name"]
        marks = [MARK] * names_oracle(value.get("name"))
        return f"{value['name']}({', '.join(marks + told)})".removesuffix("()") if "name" in value else ", ".join(told)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(label, value))}]"
    return f"{value}({MARK})" if names_oracle(value) else str(value)


def setting_label(setting: Mapping[str, Any]) -> str:
    """Write a setting as ``mu=0.1, alpha=0.05``; an algorithm is named by itself."""
    return ", ".join(
        label(value)
        if (isinstance(key(value), str) and name in CHOICES) or (isinstance(value, Mapping) and "name" in value)
        else f"{name}={label(value)}"
        for name, value in setting.items()
    )


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
