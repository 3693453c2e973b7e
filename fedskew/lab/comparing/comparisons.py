"""Tables in the layout of a paper, with its figures beside ours, and which differences in them are real."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from engine.base.errors import ConfigError
from engine.results.claims import PaperTable, Published
from engine.results.coverage import OTHERS
from engine.results.results import Group, Results, averaged_axes, check_axes, grouped, larger_is_better
from engine.results.settings import key, matches, setting_frame, setting_label
from engine.results.statistics import CONFIDENCE, summarise
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


def comparisons(
    results: Results,
    over: PaperTable | str,
    reference: Mapping[str, Any] | None = None,
    metric: str | None = None,
) -> pd.DataFrame:
    """Every setting of a table less a reference setting, paired by seed.

    over: a table, whose rows are compared within each column; or an axis, whose values are compared at equal values of
    all others. reference: the setting that the others are compared with; none: the best mean of each column. The best
    is chosen by the seeds it is then compared on, so its lead is on the large side; a reference named beforehand has
    no such bias.

    Columns: the axes that are held equal, then those compared; setting and reference (readable); difference (setting
    less reference, in the metric's unit), low and high (95 % interval), p (exact sign-flip; NaN where seeds were
    added until claims were decided), p_holm (over the rows of this frame), n and seeds (those that both have finished),
    averaged.
    """
    if isinstance(over, PaperTable):
        compared, equal, where, metric = over.rows, over.columns, over.where, metric or over.metric
    else:
        check_axes(results, [over])
        compared, where, metric = (over,), {}, metric or results.metric
        equal = tuple(axis.name for axis in results.axes if axis.name != over)
    check_axes(results, reference or ())
    averaged = ", ".join(averaged_axes(results, compared + equal, where))
    columns: dict[Any, list[Group]] = {}
    for group in grouped(results, equal + compared, metric, where):
        columns.setdefault(key({name: group.setting[name] for name in equal}), []).append(group)
    rows, found = [], False
    for groups in columns.values():
        base = _reference(groups, reference, larger_is_better(results, metric))
        found = found or base is not None
        for group in groups if base else ():
            if group is base or base is None:
                continue
            pairs = {seed: value for seed, value in group.minus(base).items() if math.isfinite(value)}
            figures = difference(list(pairs.values()), CONFIDENCE, INTERVAL_RULES[results.looks])
            rows.append(
                group.setting
                | {
                    "setting": setting_label({name: group.setting[name] for name in compared}),
                    "reference": setting_label({name: base.setting[name] for name in compared}),
                    "difference": figures.mean,
                    "low": figures.low,
                    "high": figures.high,
                    "p": figures.p,
                    "n": figures.n,
                    "seeds": tuple(pairs),
                    "averaged": averaged,
                }
            )
    if reference and not found:
        raise ConfigError("reference", setting_label(reference), "is no setting of this table", "name a row of it")
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = float(adjusted)
    names = ["setting", "reference", "difference", "low", "high", "p", "p_holm", "n", "seeds", "averaged"]
    return setting_frame(rows, equal + compared, names)


def _reference(groups: list[Group], wanted: Mapping[str, Any] | None, larger: bool) -> Group | None:
    if wanted:
        return next((g for g in groups if all(matches(g.setting[name], wanted[name]) for name in wanted)), None)
    means = [(_mean(group), group) for group in groups]
    scored = [(mean if larger else -mean, group) for mean, group in means if math.isfinite(mean)]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _mean(group: Group) -> float:
    values = [value for value in group.by_seed().values() if math.isfinite(value)]
    return sum(values) / len(values) if values else math.nan
