"""Single classes and pairs of classes at the end of trials, as heat maps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from engine.record.matrices import COST, least_on_diagonal
from engine.results.settings import setting_label
from fedskew.lab.comparing.ranking import Setting, distinct, ranked, spread_out
from fedskew.lab.drawing import CATEGORIES, PANEL, WIDE, Drawing, new_panel, styled
from fedskew.lab.figures.cells import MOST_CELLS, heat_map
from fedskew.lab.figures.panels import MOST_ROWS, row_names
from fedskew.lab.wording import capitalised, counted, shortened

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_MATRICES = 12  # of a report
MOST_TITLE = 54  # letters
NOTE = "What servers end with for each pair of classes, with the same colours in all pictures of one name."


@styled
def class_accuracy(results: Results, settings: list[Setting]) -> list[Drawing]:
    """Accuracy of each class at the end, a row for each setting."""
    finished = ranked(settings, results.mode)
    chosen = spread_out(finished, MOST_ROWS)
    means = {setting: of_seeds.mean(axis=0) for setting in chosen if (of_seeds := by_class(setting)).size}
    if not means:
        return []
    classes = max(map(len, means.values()))
    table = 100 * np.array([np.pad(row, (0, classes - len(row)), constant_values=math.nan) for row in means.values()])
    wide = classes > 12 or max(len(setting.label) for setting in means) > 16
    figure, axes = new_panel(WIDE if wide else PANEL, 0.9 + 0.32 * len(means))
    names = row_names(setting.label for setting in means)
    heat_map(axes, table, names, [str(number) for number in range(classes)], 0, 100, "{:.1f}".format)
    axes.set_xlabel("class")
    count = len(finished)
    some = f"; {len(chosen)} of {count} settings, evenly spaced by rank" if len(chosen) < count else ""
    order = f", mean over seeds; the best setting on top{some}" if count > 1 else ""
    return [Drawing("classes", f"Final test accuracy of each class (%){order}.", figure, wide)]


def by_class(setting: Setting) -> np.ndarray:
    """The accuracy of each class in each finished trial, [trials, classes]; empty if trials differ in their classes."""
    known = [row["class_accuracy"] for row in setting.finished]
    known = [row for row in known if isinstance(row, list | tuple | np.ndarray) and len(row)]
    return np.array(known, dtype=float) if len({len(row) for row in known}) == 1 else np.empty((0, 0))


@styled
def matrix_maps(results: Results, settings: list[Setting]) -> tuple[list[Drawing], str]:
    """Each matrix of each setting, mean over seeds; of settings that end with the same one, a single picture.

    Those of one name have the same colours. With a note on what they are.
    """
    found = _matrices(results, settings)
    drawings: list[Drawing] = []
    for name, matrix, alike in found[:MOST_MATRICES]:
        every = np.concatenate([other.ravel() for other_name, other, _ in found if other_name == name])
        known = every[np.isfinite(every)]
        if not len(known):
            continue
        title = f"{name}: {_label(alike)}" if results.axes else name
        figure, axes = new_panel(PANEL, min(max(0.9 + 0.26 * len(matrix), 2.2), 3.6))
        names, digits = [str(number) for number in range(len(matrix))], _digits(matrix)
        heat_map(axes, matrix, names, names, known.min(), known.max(), f"{{:.{digits}f}}".format)
        axes.set(xlabel="other class", ylabel="class", title=shortened(title, MOST_TITLE))
        over = ", mean over seeds" if len(alike[0].finished) > 1 else ""
        same = f"; the same in {len(alike)} settings" if len(alike) > 1 else ""
        diagonal = _outline_least(axes, matrix) if name == COST else ""
        caption = f"{capitalised(title)}{over}{same}.{diagonal}"
        drawings.append(Drawing(f"matrix-{len(drawings) + 1}", caption, figure))
    some = f"The first {len(drawings)} of {len(found)} matrices. " if len(drawings) < len(found) else ""
    return drawings, f"{some}{NOTE}"


def _matrices(results: Results, settings: list[Setting]) -> list[tuple[str, np.ndarray, list[Setting]]]:
    """Give name, mean over seeds, and the settings that end with it, name by name."""
    found: list[tuple[str, np.ndarray, list[Setting]]] = []
    for setting in settings:
        by_name: dict[str, list[np.ndarray]] = {}
        for row in setting.finished:
            for name, matrix in results.matrices(row["trial"]).items():
                by_name.setdefault(name, []).append(matrix)
        for name, parts in by_name.items():
            mean = np.stack(parts).mean(axis=0)
            same = [alike for other, known, alike in found if other == name and np.array_equal(known, mean, True)]
            if same:
                same[0].append(setting)
            else:
                found.append((name, mean, [setting]))
    order = distinct(name for name, _, _ in found)
    return sorted(found, key=lambda one: order.index(one[0]))


def _label(alike: list[Setting]) -> str:
    """Name the hyper-parameters that all of these settings have in common."""
    first, *others = alike
    if not others:
        return first.label
    values = first.values.items()
    shared = {name: value for name, value in values if len(distinct(s.values[name] for s in alike)) == 1}
    return setting_label(shared) or "all settings"


def _outline_least(axes: Axes, costs: np.ndarray) -> str:
    """Outline the diagonal where it is the least of its row, and say how often it is."""
    least = least_on_diagonal(costs)
    for number in np.flatnonzero(least) if costs.size <= MOST_CELLS else ():
        style = {"fill": False, "edgecolor": CATEGORIES[1], "linewidth": 1.8, "clip_on": False}
        axes.add_patch(Rectangle((number - 0.44, number - 0.44), 0.88, 0.88, **style))
    return f" The diagonal, outlined, is the row's strict minimum in {least.sum()} of {counted(len(costs), 'row')}."


def _digits(matrix: np.ndarray) -> int:
    """Decimals for three significant digits of the largest number."""
    largest = float(np.abs(matrix[np.isfinite(matrix)]).max(initial=0.0))
    return min(max(2 - math.floor(math.log10(largest)), 0), 2) if largest > 0 else 2
