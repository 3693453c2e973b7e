"""Rows, columns and cells of a leaderboard, made from the finished trials of any number of folders.

A row is a method: the algorithms of a run's stages and the local work, with their fields. A column is a task: all other
keys of the config that decide what is computed. Seeds tell the runs of a cell apart. Labels name the fields in which
rows, or columns, differ from each other, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.base.errors import RunFolderError, require
from engine.results.results import Results, check_metric, larger_is_better
from engine.results.settings import key, label, names_oracle
from fedskew.lab.comparing.intervals import interval, level_with
from fedskew.lab.comparing.ranks import Ranks, ranked
from fedskew.lab.comparing.sides import Trial, trials_of

METHOD = ("algorithm", "local", "stages")  # sections of the keys of a row; all other keys are of the task
LEVEL = 0.95
FEWEST_TASKS = 2  # for ranks; with two of them none are told apart


@dataclass(frozen=True)
class Cell:
    """The runs of a method at a task, by seed."""

    runs: tuple[Trial, ...]
    values: tuple[float, ...]  # of the runs
    low: float  # t interval of the mean; NaN of a single seed
    high: float
    best: bool  # of its column, or level with the best

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def by_seed(self) -> dict[int, float]:
        """The value of each seed."""
        return {run.row["seed"]: value for run, value in zip(self.runs, self.values, strict=True)}

    @property
    def breaks_privacy(self) -> bool:
        """Whether an oracle, which no client would join, is a part of its runs."""
        return any(names_oracle(run.facts.values) for run in self.runs)


@dataclass(frozen=True)
class Board:
    """The whole table."""

    metric: str
    rows: tuple[str, ...]  # labels of methods
    columns: tuple[str, ...]  # labels of tasks
    cells: Mapping[tuple[int, int], Cell]  # by row and column
    left_out: tuple[str, ...]  # sentences on trials that are in no cell
    ranks: Ranks | None  # of methods, over the tasks that all of them have; None where these are too few


def board_of(folders: Mapping[str, Results], metric: str | None = None) -> Board:
    """Make the board of the folders' finished trials; ``metric``: none, the first folder's own.

    Raises :class:`RunFolderError` for two runs of one experiment and one code whose weights differ, and
    :class:`ConfigError` for a seed that a cell would have twice.
    """
    first = next(iter(folders.values()))
    metric = metric or first.metric
    for results in folders.values():
        check_metric(results, metric)
    placed, left_out = _trials(folders, metric)
    require(bool(placed), "folders", ", ".join(folders), f"have no finished trial with a {metric}", "name others")
    halves = [
        [
            {name: run.keys[name] for name in run.keys if (name.partition(".")[0] in METHOD) is of_method}
            for run in placed
        ]
        for of_method in (True, False)
    ]
    rows, columns = _grouped(halves[0], _method_label), _grouped(halves[1], _task_label)
    row_of, column_of = ({one: number for number, one in enumerate(each)} for each in (rows, columns))
    places: dict[tuple[int, int], list[Trial]] = {}
    for method, task, run in zip(*halves, placed, strict=True):
        places.setdefault((row_of[key(method)], column_of[key(task)]), []).append(run)
    larger, cells = larger_is_better(first, metric), dict[tuple[int, int], Cell]()
    for place, several in places.items():
        runs = tuple(sorted(several, key=lambda run: run.row["seed"]))
        seeds = [run.row["seed"] for run in runs]
        twice = [f"{run.source}:{run.name}" for run in runs if seeds.count(run.row["seed"]) > 1]
        rule = "are one method and task on one seed, by other partitions, test rows or data.root"
        require(not twice, "folders", ", ".join(twice), rule, "leave some away")
        values = tuple(float(run.row[metric]) for run in runs)
        cells[place] = Cell(runs, values, *interval(values, LEVEL), best=False)
    for column in range(len(columns)):
        within = {place: cell.by_seed for place, cell in cells.items() if place[1] == column}
        best = within[(max if larger else min)(within, key=lambda place: cells[place].mean)]
        level = [place for place, seeds in within.items() if level_with(best, seeds, len(within))]
        cells |= {place: replace(cells[place], best=True) for place in level}
    methods, tasks = tuple(rows.values()), tuple(columns.values())
    means = [
        [cells[row, column].mean if (row, column) in cells else math.nan for row in range(len(methods))]
        for column in range(len(tasks))
    ]
    return Board(metric, methods, tasks, cells, tuple(left_out), ranked(methods, tasks, means, larger, FEWEST_TASKS))


def _trials(folders: Mapping[str, Results], metric: str) -> tuple[list[Trial], list[str]]:
    """Return the finished trials that have the metric, every computation once, and what is left out."""
    known, left_out = dict[str, Trial](), list[str]()
    for source, results in folders.items():
        others = len(results.trials)
        for run in trials_of(source, results):
            if not run.finished or run.facts.experiment is None or not math.isfinite(run.row[metric]):
                continue
            others -= 1
            same = known.setdefault(run.facts.experiment, run)
            if same is not run:
                left_out += _of_double(same, run)
        if others:
            count = f"{others} of {len(results.trials)} trials"
            left_out.append(f"{count} of {source} have not finished, or have no {metric}")
    return list(known.values()), left_out


def _of_double(first: Trial, second: Trial) -> list[str]:
    """Say that an experiment was computed twice with other bits; :class:`RunFolderError` if by one code."""
    places = f"{first.source}:{first.name} and {second.source}:{second.name}"
    if first.row["weights_sha256"] == second.row["weights_sha256"]:
        return []
    if first.facts.code == second.facts.code:
        rule = "are one experiment by one code with other bits; find out which is right, and leave the other away"
        raise RunFolderError(f"{places} {rule}")
    return [f"{places} are one experiment by two codes with other bits; the first is in the table"]


# --- labels ---------------------------------------------------------------------------------------------


def _grouped(groups: Iterable[Mapping[str, Any]], name: Any) -> dict[Hashable, str]:
    """Return each group once, by its key, with its label; in the order of the labels."""
    once = {key(group): group for group in groups}
    keys = dict.fromkeys(field for group in once.values() for field in group)
    # Only what differs among the groups that have a field is said of them.
    said = [field for field in keys if len({key(group[field]) for group in once.values() if field in group}) > 1]
    labels = {place: name(group, [field for field in said if field in group]) for place, group in once.items()}
    return dict(sorted(labels.items(), key=lambda pair: pair[1]))


def _method_label(group: Mapping[str, Any], said: Sequence[str]) -> str:
    """Return ``fedavg → ccvr(lr=0.01), local.epochs=5``: the algorithms of the stages, then what else is said."""
    names = [field for field in group if field.endswith("algorithm.name")]
    algorithms = []
    for field in names:
        prefix = field.removesuffix("name")
        inner = {name.removeprefix(prefix): group[name] for name in said if name.startswith(prefix) and name != field}
        algorithms.append(label({"name": group[field], **inner}))
    spoken = {name for field in names for name in said if name.startswith(field.removesuffix("name"))}
    rest = [f"{name}={label(group[name])}" for name in said if name not in spoken]
    return ", ".join([" → ".join(algorithms), *rest])


def _task_label(group: Mapping[str, Any], said: Sequence[str]) -> str:
    """Return ``fashion_mnist, partition.alpha=0.1``."""
    rest = [f"{name}={label(group[name])}" for name in said if name != "data.name"]
    return ", ".join([str(group["data.name"]), *rest])
