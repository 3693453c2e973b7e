"""The board: methods beside each other on one task, each with the best of as many candidates, as a page and as rows.

Rows are of a sweep whose sides are methods (``tune_configs/board.py``): of an entry of the ledger, or of a folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from engine.results.results import Group, Results, grouped, larger_is_better
from engine.results.settings import key, label
from engine.results.statistics import finite, mean
from fedskew.lab.comparing.intervals import interval, level_with
from fedskew.lab.ledger.page import filled, where
from fedskew.lab.ledger.rows import SweepRows
from fedskew.lab.quantities import quantity
from fedskew.lab.tuned_sides import TunedSide

METHOD = "algorithm"  # the axis
PLAIN = "fedavg"  # that all are compared with
MEDIANS = ("rounds_to_target", "bytes_to_target")  # a finished seed without one never came there


@dataclass(frozen=True)
class BoardRow:
    """A method with what was chosen for it.

    choice: dotted key -> value. edge: whether a number of it is the least or the greatest that was tried, of three or
    more. seeds: the metric of each finished one. lacks: how many seeds of the sweep have none, whatever became of them.
    others: the sweep's other figures, means over seeds or medians. level with the best: it lacks no seed, and the
    interval of the difference, taken seed by seed, at 1 - 0.05 / (methods - 1), holds 0. mine: not of the board itself.
    """

    method: str
    choice: Mapping[str, Any]
    edge: bool
    seeds: Mapping[int, float]
    lacks: int
    others: Mapping[str, float]
    level: bool = False
    ahead: tuple[float, float, float] = (math.nan, math.nan, math.nan)  # of FedAvg: mean, low, high
    mine: bool = field(default=False, compare=False)

    @property
    def mean(self) -> float:
        return mean(finite(list(self.seeds.values())))

    @property
    def interval(self) -> tuple[float, float]:
        """The t interval of the mean over seeds."""
        return interval(list(self.seeds.values()))

    @property
    def words(self) -> str:
        """What was chosen, as ``fedskew run`` takes it."""
        return " ".join(f"{name}={label(value)}" for name, value in self.choice.items())


def rows_of_methods(
    results: Results, sides: Sequence[TunedSide], metrics: Sequence[str], mine: bool = False
) -> list[BoardRow]:
    """Return a row for each method of a sweep, not compared yet; metrics: beside the sweep's own."""
    chosen = {key(side.where[METHOD]): side for side in sides}
    others = {metric: _by_method(results, metric) for metric in metrics}
    rows = []
    for method, group in _by_method(results, results.metric).items():
        side, seeds = chosen.get(method), group.by_seed()
        rows.append(
            BoardRow(
                method=label(group.setting[METHOD]),
                choice=side.chosen.values if side else {},
                edge=side is not None and _at_the_edge(side),
                seeds=seeds,
                lacks=len(results.seeds) - len(finite([*seeds.values()])),
                others={metric: _over_seeds(metric, found[method]) for metric, found in others.items()},
                mine=mine,
            )
        )
    return rows


def compared(rows: Iterable[BoardRow], larger: bool) -> list[BoardRow]:
    """Return the rows from the best to the worst, each with its lead over FedAvg and whether the best is no better.

    A method that lacks a seed comes after all others: a mean over those that it has could flatter it.
    """
    known = [*rows]
    best_first = sorted((row for row in known if row.seeds), key=lambda row: row.mean, reverse=larger)
    ended = sorted(best_first, key=lambda row: row.lacks > 0)
    plain = next((row for row in ended if row.method == PLAIN), None)
    found = []
    for row in ended:
        ahead = row.ahead
        if plain is not None and row is not plain:
            differences = [value - plain.seeds[seed] for seed, value in row.seeds.items() if seed in plain.seeds]
            ahead = (mean(finite(differences)), *interval(differences))
        found.append(
            replace(row, level=not row.lacks and level_with(ended[0].seeds, row.seeds, len(ended)), ahead=ahead)
        )
    return found + [row for row in known if not row.seeds]


def board_page(sweeps: Iterable[SweepRows], left_out: Mapping[str, str]) -> str:
    """Return the page in Markdown; left_out: methods that are on no board -> why."""
    boards = []
    for sweep in sweeps:
        if sweep.entry is None:
            continue
        results = sweep.entry.results(())
        others = [metric for metric in sweep.entry.metrics if metric != results.metric]
        rows = rows_of_methods(results, sweep.entry.searched, others)
        shown = {"sweep": sweep, "entry": sweep.entry, "where": where(sweep.entry)}
        shown |= {"candidates": len(sweep.entry.searched[0].candidates) if sweep.entry.searched else 0}
        shown |= {"rows": compared(rows, larger_is_better(results, results.metric))}
        shown |= {"measured": quantity(results.metric, results.target_accuracy)}
        boards.append(shown | {"columns": [quantity(one, results.target_accuracy) for one in others]})
    return filled("board.md.j2", boards=boards, left_out=left_out)


def _by_method(results: Results, metric: str) -> dict[Any, Group]:
    return {key(group.setting[METHOD]): group for group in grouped(results, [METHOD], metric)}


def _over_seeds(metric: str, group: Group) -> float:
    values = list(group.by_seed().values())
    if metric in MEDIANS:
        return median(math.inf if math.isnan(value) else value for value in values) if values else math.nan
    return mean(finite(values))


def _at_the_edge(side: TunedSide) -> bool:
    for name, value in side.chosen.values.items():
        tried = {one.values[name] for one in side.candidates if isinstance(one.values[name], int | float)}
        if len(tried) > 2 and value in (min(tried), max(tried)):
            return True
    return False
