"""Figures of a trial that are made of its accuracies by class; a trials table has those that its sweep asks for.

class_accuracy[1], class_accuracy[2,4,6]   on class 1, after the last round; the mean of those on classes 2, 4 and 6,
                                           every class with the same weight. NaN if one of them has no test data.
class_std                                  the standard deviation over the classes that have test data (dividing by
                                           their number: they are all there are, and no sample)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

STD = "class_std"
MANY, FEW = 100, 20  # training rows of a class: more are many, fewer are few
_NUMBER = "(?:0|[1-9][0-9]*)"
_ACCURACY = re.compile(rf"class_accuracy\[({_NUMBER}(?:,{_NUMBER})*)\]")
EXAMPLES = ("class_accuracy[1]", "class_accuracy[2,4,6]", STD)  # to suggest in place of a name that is none


def classes_of(name: str) -> tuple[int, ...]:
    """The classes that ``name`` has in brackets; () if it is no such name, or has one of them twice."""
    found = _ACCURACY.fullmatch(name)
    classes = tuple(map(int, found[1].split(","))) if found else ()
    return classes if len(set(classes)) == len(classes) else ()


def is_class_figure(name: str) -> bool:
    return name == STD or bool(classes_of(name))


def class_figures(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``names`` that are such figures, each once, in their order."""
    return tuple(dict.fromkeys(filter(is_class_figure, names)))


def class_figure(name: str, class_accuracy: Sequence[float | None] | None) -> float:
    """The figure ``name`` of accuracies [C] (None or NaN for a class without test data); NaN of none."""
    accuracies = np.array([] if class_accuracy is None else class_accuracy, dtype=float)
    if name == STD:
        tested = accuracies[np.isfinite(accuracies)]
        return float(tested.std()) if len(tested) else math.nan
    classes = list(classes_of(name))
    return float(accuracies[classes].mean()) if max(classes) < len(accuracies) else math.nan


def by_rows(rows: np.ndarray, class_accuracy: Sequence[float | None]) -> dict[str, float]:
    """Return the mean accuracies on classes of many, medium and few training ``rows`` int64 [C]; NaN of no class.

    Thresholds are those of Liu et al., CVPR 2019; a class counts that has test data, as ``class_accuracy`` [C] says.
    """
    accuracies = np.array(class_accuracy, dtype=float)
    groups = {"many": rows > MANY, "medium": (rows >= FEW) & (rows <= MANY), "few": rows < FEW}
    found = {name: accuracies[group & np.isfinite(accuracies)] for name, group in groups.items()}
    return {f"{name}_accuracy": float(own.mean()) if len(own) else math.nan for name, own in found.items()}


def class_label(name: str) -> str:
    """Say in words what the figure ``name`` is."""
    if name == STD:
        return "standard deviation of test accuracy over classes"
    *first, last = map(str, classes_of(name))
    return f"mean test accuracy on classes {', '.join(first)} and {last}" if first else f"test accuracy on class {last}"


def class_short(name: str) -> str:
    """Name the figure for the head of a column."""
    if name == STD:
        return "std over classes"
    classes = classes_of(name)
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(map(str, classes))}"
