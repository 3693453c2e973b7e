"""Ranks of settings over several data sets or difficulties: Friedman's test and Nemenyi's critical difference.

Source: Demsar 2006, "Statistical comparisons of classifiers over multiple data sets". In each block (a data set, a
label skew) the k settings are ranked by their means over seeds, the best 1, ties their mean rank. Over N blocks the
average ranks differ more than by luck where Friedman's test says so (here in the form of Iman and Davenport, which is
less conservative), and two settings are told apart if their average ranks differ by at least q sqrt(k (k + 1) / (6 N)).

Blocks are few in a sweep, and ranks forget by how much: with three of them next to nothing is told apart. Blocks
of one data set at several skews share their images, so a result holds for that data set.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its stats are imported at their first use

from engine.results.claims import PaperTable
from engine.results.results import Results, grouped, larger_is_better
from engine.results.settings import key, setting_label
from engine.results.statistics import CONFIDENCE, mean

BLOCKS = ("data", "partition")  # sections of the config whose axes make blocks
FEWEST_BLOCKS, FEWEST_SETTINGS = 3, 3  # in two blocks no two average ranks can be as far apart as they must


@dataclass(frozen=True)
class Ranks:
    """The settings of a table by their average rank over its blocks."""

    settings: tuple[str, ...]  # the best first
    average: tuple[float, ...]
    blocks: tuple[str, ...]
    of_block: tuple[tuple[float, ...], ...]  # ranks [blocks][settings]
    left_out: int  # blocks in which some setting has no finished trial
    p: float  # of "all settings are equal"; NaN where all ranks are tied
    critical: float  # difference of average ranks

    @property
    def alike(self) -> list[tuple[int, int]]:
        """Give the longest runs of settings, first and last, that cannot be told apart."""
        found: list[tuple[int, int]] = []
        for first, rank in enumerate(self.average):
            last = max(n for n, other in enumerate(self.average) if other - rank < self.critical)
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found


def friedman(ranks: np.ndarray) -> float:
    """Return the p of equal settings by ranks [blocks, settings], after Iman and Davenport; NaN if all are tied."""
    blocks, settings = ranks.shape
    if np.ptp(ranks, axis=1).max() == 0:
        return math.nan
    statistic = float(scipy.stats.friedmanchisquare(*ranks.T).statistic)
    left = blocks * (settings - 1) - statistic
    if left <= 1e-9:  # all blocks agree, and F is infinite: the exact chance that they do
        tied = np.unique(ranks[0], return_counts=True)[1].tolist()
        orders = math.factorial(settings) // math.prod(map(math.factorial, tied))  # of a block with these ties
        return orders ** (1.0 - blocks)
    return float(scipy.stats.f.sf((blocks - 1) * statistic / left, settings - 1, (settings - 1) * (blocks - 1)))


def critical_difference(settings: int, blocks: int, confidence: float = CONFIDENCE) -> float:
    """Return Nemenyi's critical difference of average ranks."""
    quantile = float(scipy.stats.studentized_range.ppf(confidence, settings, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(settings * (settings + 1) / (6 * blocks))


def ranks_of(results: Results, layout: PaperTable) -> Ranks | None:
    """Rank the settings of a table over those of its axes that are a data set or a partition.

    A setting of which a seed failed is the last of its block: a mean over those that did not would flatter it.
    None where it has no such axis, fewer than three settings, or fewer than three blocks in which all have a figure.
    """
    sections = {axis.name: axis.key.partition(".")[0] for axis in results.axes}
    across = [name for name in layout.axes if sections[name] in BLOCKS]
    compared = [name for name in layout.axes if name not in across]
    if not across or not compared:
        return None
    larger = larger_is_better(results, layout.metric)
    last = -math.inf if larger else math.inf
    figures: dict[Hashable, dict[Hashable, float]] = {}
    blocks: dict[Hashable, str] = {}
    names: dict[Hashable, str] = {}
    for group in grouped(results, layout.axes, layout.metric, layout.where):
        block, setting = ({name: group.setting[name] for name in part} for part in (across, compared))
        blocks[key(block)], names[key(setting)] = setting_label(block), setting_label(setting)
        values = np.array([last] if group.failed else [*group.by_seed().values()])
        figures.setdefault(key(block), {})[key(setting)] = mean(values)
    table = [[figures[block].get(name, math.nan) for name in names] for block in blocks]
    return ranked(list(names.values()), list(blocks.values()), table, larger, FEWEST_BLOCKS)


def ranked(
    settings: Sequence[str], blocks: Sequence[str], table: Sequence[Sequence[float]], larger: bool, fewest: int
) -> Ranks | None:
    """Rank the settings in each block of ``table`` [blocks][settings] in which all have a figure; NaN is none.

    larger: whether more is better. None with fewer than three settings, or ``fewest`` such blocks.
    """
    complete = [number for number, row in enumerate(table) if not any(map(math.isnan, row))]
    if len(settings) < FEWEST_SETTINGS or len(complete) < fewest:
        return None
    figures = np.array([table[number] for number in complete])
    ranks = scipy.stats.rankdata(-figures if larger else figures, axis=1)
    average = ranks.mean(axis=0)
    order = [int(n) for n in np.argsort(average, kind="stable")]
    return Ranks(
        settings=tuple(settings[n] for n in order),
        average=tuple(float(average[n]) for n in order),
        blocks=tuple(blocks[number] for number in complete),
        of_block=tuple(tuple(row) for row in ranks[:, order].tolist()),
        left_out=len(blocks) - len(complete),
        p=friedman(ranks),
        critical=critical_difference(len(settings), len(complete)),
    )
