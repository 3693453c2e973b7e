"""Tables in the layout of a paper, with its figures beside ours, and which differences in them are real."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from engine.results.claims import PaperTable, Published
from engine.results.completeness import OTHERS
from engine.results.results import Group, Results, averaged_axes, grouped, larger_is_better
from engine.results.settings import key, matches, setting_frame, setting_label
from engine.results.statistics import CONFIDENCE, finite, mean, summarise
from fedskew.lab.comparing.intervals import INTERVAL_RULES, difference, holm


def paper_frame(results: Results, layout: PaperTable) -> pd.DataFrame:
    """One row for each cell of a table, those of a table's row side by side.

    The axes of rows and columns; mean, std, low, high (bootstrap interval of the mean over seeds); n, the seeds that
    count (see :class:`~engine.results.settings.Group`); stopped, failed, running, damaged and missing, trials without
    a value; averaged, the axes averaged over ("" if none); published (NaN if the paper has no figure here),
    same_setting, note; difference, ours less the paper's where the setting is the same.
    """
    averaged = ", ".join(averaged_axes(results, layout.axes, layout.where))
    cells = []
    for group in grouped(results, layout.axes, layout.metric, layout.where):
        summary = summarise(list(group.by_seed().values()))
        paper = _published(layout, group)
        comparable = paper is not None and paper.same_setting
        cells.append(
            group.setting
            | {"mean": summary.mean, "std": summary.std, "low": summary.low, "high": summary.high, "n": summary.n}
            | {status: group.statuses[status] for status in OTHERS}
            | {
                "averaged": averaged,
                "published": paper.value if paper else math.nan,
                "same_setting": comparable,
                "note": paper.note if paper else "",
                "difference": summary.mean - paper.value if paper and comparable else math.nan,
            }
        )
    figures = ["mean", "std", "low", "high", "n", *OTHERS]
    return setting_frame(cells, layout.axes, [*figures, "averaged", "published", "same_setting", "note", "difference"])


def _published(layout: PaperTable, group: Group) -> Published | None:
    """The paper's figure for a cell: one that names every axis of the table, and agrees with the cell and ``where``."""
    known = {**layout.where, **group.setting}
    for one in layout.published:
        if set(layout.axes) <= set(one.setting) and all(
            name in known and matches(value, known[name]) for name, value in one.setting.items()
        ):
            return one
    return None


def comparisons(results: Results, layout: PaperTable) -> pd.DataFrame:
    """Every setting of a table less the best of its column, paired by seed.

    The best is chosen by the seeds it is then compared on, so its lead is on the large side. One of which a seed failed
    is the best where all have failed on some, since a mean over those that did not would flatter it.

    Columns: the table's columns, then its rows; setting and reference (readable); difference (setting less reference,
    in the metric's unit), low and high (95 % interval), p (exact sign-flip; NaN where seeds were added until claims
    were decided), p_holm (over the rows of this frame), n and seeds (those that both have finished), averaged, bold
    (not told apart from the reference; of a setting that failed on a seed, where the reference did so too).
    """
    averaged = ", ".join(averaged_axes(results, layout.axes, layout.where))
    columns: dict[Any, list[Group]] = {}
    for group in grouped(results, layout.columns + layout.rows, layout.metric, layout.where):
        columns.setdefault(key({name: group.setting[name] for name in layout.columns}), []).append(group)
    sign = 1 if larger_is_better(results, layout.metric) else -1
    rows = []
    for groups in columns.values():
        means = [(mean(finite(list(group.by_seed().values()))), group) for group in groups]
        known = [(not group.failed, sign * value, group) for value, group in means if math.isfinite(value)]
        base = max(known, key=lambda one: one[:2])[-1] if known else None
        for group in groups:
            if base is None or group is base:
                continue
            pairs = {seed: value for seed, value in group.minus(base).items() if math.isfinite(value)}
            figures = difference(list(pairs.values()), CONFIDENCE, INTERVAL_RULES[results.looks])
            level = figures.low <= 0 <= figures.high or (figures.n > 0 and not any(pairs.values()))
            rows.append(
                group.setting
                | vars(figures)
                | {
                    "setting": setting_label({name: group.setting[name] for name in layout.rows}),
                    "reference": setting_label({name: base.setting[name] for name in layout.rows}),
                    "difference": figures.mean,
                    "seeds": tuple(pairs),
                    "averaged": averaged,
                    "bold": level and bool(base.failed or not group.failed),
                }
            )
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = float(adjusted)
    names = ["setting", "reference", "difference", "low", "high", "p", "p_holm", "n", "seeds", "averaged", "bold"]
    return setting_frame(rows, layout.columns + layout.rows, names)
