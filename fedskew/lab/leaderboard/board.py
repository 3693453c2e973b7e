"""Rows, columns and cells of a leaderboard, made from the finished trials of any number of folders.

A row is a method: the algorithms of a run's stages and the local work, with their fields. A column is a task: all other
keys of the config that decide what is computed. Seeds tell the runs of a cell apart. Labels name the fields in which
rows, or columns, differ from each other, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base.errors import RunFolderError, require
from engine.record import parts
from engine.results.results import Results, check_metric, larger_is_better
from engine.results.settings import key, label, names_oracle
from fedskew.lab.comparing.intervals import difference, interval, student
from fedskew.lab.comparing.ranks import Ranks, ranked
from fedskew.lab.comparing.sides import keys_of_trials

METHOD = ("algorithm", "local", "stages")  # sections of the keys of a row; all other keys are of the task
LEVEL = 0.95
FEWEST_TASKS = 2  # for ranks; with two of them none are told apart


@dataclass(frozen=True)
class Repetition:
    """One run of a cell."""

    seed: int
    value: float
    source: str
    trial: str
    experiment: str  # 12 hex digits
    code: str  # 16 hex digits, or "unknown"
    weights: str  # SHA-256
    values: Mapping[str, Any]  # the experiment as data
    needs: parts.Needs  # beside fedskew, to be computed again


@dataclass(frozen=True)
class Cell:
    """The runs of a method at a task, by seed."""

    runs: tuple[Repetition, ...]
    low: float  # t interval of the mean; NaN of a single seed
    high: float
    best: bool  # of its column, or not told from the best by the interval of their paired difference

    @property
    def mean(self) -> float:
        return math.fsum(run.value for run in self.runs) / len(self.runs)


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

    Raises :class:`RunFolderError` for two runs of one experiment and one code whose weights differ.
    """
    first = next(iter(folders.values()))
    metric = metric or first.metric
    for results in folders.values():
        check_metric(results, metric)
    placed, left_out = _trials(folders, metric)
    require(bool(placed), "folders", ", ".join(folders), f"have no finished trial with a {metric}", "name others")
    rows = _grouped((method for method, _, _ in placed), _method_label)
    columns = _grouped((task for _, task, _ in placed), _task_label)
    places: dict[tuple[int, int], list[Repetition]] = {}
    row_of, column_of = ({one: number for number, one in enumerate(each)} for each in (rows, columns))
    for method, task, run in placed:
        places.setdefault((row_of[key(method)], column_of[key(task)]), []).append(run)
    runs = {place: tuple(sorted(several, key=lambda run: run.seed)) for place, several in places.items()}
    larger = larger_is_better(first, metric)
    best = _best(runs, larger)
    cells = {place: _cell(several, place in best) for place, several in runs.items()}
    methods, tasks = tuple(rows.values()), tuple(columns.values())
    means = [
        [cells[row, column].mean if (row, column) in cells else math.nan for row in range(len(methods))]
        for column in range(len(tasks))
    ]
    return Board(metric, methods, tasks, cells, tuple(left_out), ranked(methods, tasks, means, larger, FEWEST_TASKS))


# --- trials ---------------------------------------------------------------------------------------------


def _trials(folders: Mapping[str, Results], metric: str) -> tuple[list[tuple[Any, Any, Repetition]], list[str]]:
    """Return method, task and run of each finished trial, every computation once."""
    placed, left_out = [], list[str]()
    known: dict[str, Repetition] = {}
    for source, results in folders.items():
        others = 0
        ended = set(results.trials.loc[results.trials["status"] == "finished", "trial"])
        keys_of = keys_of_trials({name: one.values for name, one in results.facts.items() if name in ended})
        for row in results.trials.to_dict("records"):
            facts, value = results.facts.get(row["trial"]), float(row[metric])
            if row["status"] != "finished" or facts is None or facts.experiment is None or not math.isfinite(value):
                others += 1
                continue
            identity = (str(row["trial"]), facts.experiment, facts.code or "unknown", str(row["weights_sha256"]))
            needs = parts.needs([results.path / row["folder"]])
            run = Repetition(int(row["seed"]), value, source, *identity, values=facts.values, needs=needs)
            same = known.setdefault(run.experiment, run)
            if same is not run:
                left_out += _of_double(same, run)
                continue
            keys = keys_of[row["trial"]]
            method = {name: one for name, one in keys.items() if name.partition(".")[0] in METHOD}
            placed.append((method, {name: one for name, one in keys.items() if name not in method}, run))
        if others:
            count = f"{others} of {len(results.trials)} trials"
            left_out.append(f"{count} of {source} have not finished, or have no {metric}")
    return placed, left_out


def _of_double(first: Repetition, second: Repetition) -> list[str]:
    """Say that an experiment was computed twice with other bits; :class:`RunFolderError` if by one code."""
    places = f"{first.source}:{first.trial} and {second.source}:{second.trial}"
    if first.weights == second.weights:
        return []
    if first.code == second.code:
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


def breaks_privacy(cell: Cell) -> bool:
    """Return whether an oracle, which no client would join, is a part of the cell's runs."""
    return any(names_oracle(run.values) for run in cell.runs)


# --- figures --------------------------------------------------------------------------------------------


def _cell(runs: tuple[Repetition, ...], best: bool) -> Cell:
    low, high = interval([run.value for run in runs], LEVEL, student)
    return Cell(runs, low, high, best)


def _best(cells: Mapping[tuple[int, int], Sequence[Repetition]], larger: bool) -> set[tuple[int, int]]:
    """Return the best cell of each column, and those whose paired interval of the difference from it contains 0."""
    best_places: set[tuple[int, int]] = set()
    for column in {column for _, column in cells}:
        places = [place for place in cells if place[1] == column]
        means = {place: math.fsum(run.value for run in cells[place]) / len(cells[place]) for place in places}
        best = (max if larger else min)(places, key=lambda place: means[place])
        values = {run.seed: run.value for run in cells[best]}
        for place in places:
            pairs = [run.value - values[run.seed] for run in cells[place] if run.seed in values]
            figures = difference(pairs)
            if place == best or figures.low <= 0 <= figures.high:
                best_places.add(place)
    return best_places
