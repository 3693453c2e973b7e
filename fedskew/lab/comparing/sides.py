"""Runs and sweeps beside each other: in which keys of their configs they differ, and their results paired by seed.

A side is a sweep, or a run; runs that differ in nothing but their seeds are one side. A *cell* of a side are its trials
of equal config. Cells of two sides are paired where they agree in every key that varies within a side; a key that
differs between whole sides is what is compared. Within a pair of cells trials are paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.base.errors import DataError, RunFolderError, require
from engine.data import Assignment
from engine.experiment.execution import IDENTITY
from engine.record.metrics import REPORTED
from engine.results.completeness import named
from engine.results.facts import Facts
from engine.results.results import Results, check_metric
from engine.results.settings import key, label, setting_label
from engine.results.statistics import CONFIDENCE, finite, mean
from fedskew.lab.comparing.intervals import INTERVAL_RULES, INTERVALS, difference, holm
from fedskew.lab.wording import counted, numbered

NONE = "none"  # the value of a key that a config does not have
OF_RUNS = (*REPORTED, "rounds", "floats_up", "floats_down", "seconds")  # compared of single runs, where they have them
TEST_PART = "data.test_part"  # a sweep's seeds have parts of their own, or share one: that is a key, and no number
# Names, paths and cadences move no result, and seeds tell the repetitions of a setting apart.
_PLACES = ("name", "checkpoint", "data.root", "seed", "partition.seed")


# --- configs ------------------------------------------------------------------------------------------------


def config_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of an experiment as data, without seeds, names, paths and placement.

    A stage's keys begin with ``stages.NAME``. Where stages say what is run, the experiment's own number of rounds, and
    its own algorithm if every stage has one, are left out: nothing follows from them.
    """
    stages = values.get("stages") or []
    unused = {"rounds"} if stages else set[str]()
    if stages and all(stage.get("algorithm") for stage in stages):
        unused.add("algorithm")
    used = {name: value for name, value in values.items() if name not in {*unused, "stages"}}
    used["stages"] = {stage["name"]: {field: stage[field] for field in stage if field != "name"} for stage in stages}
    found = {name: value for name, value in leaves(used) if _counts(name)}
    return found | {TEST_PART: "by seed" if found.get(TEST_PART) is not None else NONE}


def keys_of_trials(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the keys of each trial of a folder, by its name.

    A seed of the partition, or a part of the test rows, is one of them where it is a setting: neither the same for all
    trials that agree in all else, nor their seed plus a number.
    """
    found = keys = {name: config_keys(values) for name, values in trials.items()}
    for dotted in ("partition.seed", TEST_PART):
        section, field = dotted.split(".")
        drawn = dict[Hashable, set[tuple[int, int]]]()
        for name, values in trials.items():
            drawn.setdefault(key(keys[name]), set()).add((values[section].get(field) or 0, values["seed"]))
        if any(
            len({own for own, _ in each}) > 1 and len({own - seed for own, seed in each}) > 1 for each in drawn.values()
        ):
            found = {name: one | {dotted: trials[name][section].get(field)} for name, one in found.items()}
    return found


def _counts(name: str) -> bool:
    section, _, field = name.partition(".")
    placed = name in _PLACES or section in _PLACES
    return not placed and (section != "execution" or field in IDENTITY)


def leaves(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by their dotted keys; a list is one value."""
    for name, value in values.items():
        dotted = f"{place}.{name}" if place else name
        if isinstance(value, Mapping):
            yield from leaves(value, dotted)
        else:
            yield dotted, value


# --- what is compared ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A trial that has an experiment."""

    source: str  # the folder that it is of, as it was named
    name: str
    row: Mapping[str, Any]  # of the trials table
    keys: Mapping[str, Any]
    facts: Facts
    setting: str  # readable
    folder: Path

    @property
    def finished(self) -> bool:
        return self.row["status"] == "finished"

    @cached_property
    def partition(self) -> str:
        """A hash of which client has which rows; "" where that cannot be read."""
        try:
            return Assignment.load(self.folder / "partition.parquet").digest
        except DataError:
            return ""


@dataclass(frozen=True)
class Side:
    """A sweep, a run, or runs that differ in seeds alone."""

    name: str
    trials: tuple[Trial, ...]
    metric: str
    looks: str
    lost: tuple[str, ...]  # sentences on trials without an experiment or a figure

    def values(self, name: str) -> dict[Hashable, Any]:
        """The values of a key among the trials, each once."""
        return {key(trial.keys.get(name, NONE)): trial.keys.get(name, NONE) for trial in self.trials}

    def cells(self, names: Sequence[str]) -> dict[Hashable, list[Trial]]:
        """The trials by their values of the keys ``names``."""
        found: dict[Hashable, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(key([trial.keys.get(name, NONE) for name in names]), []).append(trial)
        return found


@dataclass(frozen=True)
class Pair:
    """A cell of two sides: the second less the first, seed by seed; means are over the seeds that both have."""

    first: str
    second: str
    cell: str  # readable; "" where there is one
    metric: str
    mean_first: float
    mean_second: float
    difference: float
    low: float  # of its 95 % interval
    high: float
    p: float  # exact sign-flip; NaN after many looks
    p_holm: float  # over all cells of the two sides
    seeds: tuple[int, ...]  # those that both have finished
    equal_weights: int  # of the pairs
    equal_partitions: int


Values = tuple[tuple[str, ...], ...]  # readable; of each side, which may have several


@dataclass(frozen=True)
class Comparison:
    """What several sides differ in, and by how much."""

    sides: tuple[Side, ...]
    config: Mapping[str, Values]  # of the dotted keys that differ
    versions: Mapping[str, Values]  # of libraries, machine and code
    pairs: tuple[Pair, ...]
    unpaired: tuple[str, ...]  # why what is not paired is not, in sentences
    interval: str  # the kind of the intervals

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = [side.name for side in self.sides]
        return {
            "sides": {side.name: [trial.name for trial in side.trials] for side in self.sides},
            "config": {one: dict(zip(names, values, strict=True)) for one, values in self.config.items()},
            "versions": {one: dict(zip(names, values, strict=True)) for one, values in self.versions.items()},
            "interval": self.interval,
            "pairs": list(map(asdict, self.pairs)),
            "unpaired": list(self.unpaired),
        }


def compare(folders: Mapping[str, Results], metrics: Sequence[str] = ()) -> Comparison:
    """Compare the folders with the first of them.

    metrics: columns of the trials; none: the first side's own, or a run's figures where every side is a single run.
    """
    sides = _sides(folders)
    count = "are one side" if len(folders) > 1 else "is one folder"
    require(len(sides) > 1, "folders", ", ".join(folders), count, "name two or more that are not the same")
    for results in folders.values():
        for metric in metrics:
            check_metric(results, metric)
    first, *others = sides
    single = all(len(side.trials) == 1 for side in sides)
    chosen = tuple(metrics) or (_had(sides) if single else (first.metric,))
    names = sorted({name for side in sides for trial in side.trials for name in trial.keys})
    within = [name for name in names if any(len(side.values(name)) > 1 for side in sides)]
    looks = "repeatedly" if any(side.looks == "repeatedly" for side in sides) else "once"
    pairs, unpaired = list[Pair](), [told for side in sides for told in side.lost]
    for side in others:
        made, told = _pairs(first, side, within, chosen, looks)
        pairs += made
        unpaired += told
    versions = sorted({name for side in sides for trial in side.trials for name in trial.facts.versions})
    return Comparison(
        sides=tuple(sides),
        config=_differing(names, [[trial.keys for trial in side.trials] for side in sides]),
        versions=_differing(versions, [[trial.facts.versions for trial in side.trials] for side in sides]),
        pairs=tuple(pairs),
        unpaired=tuple(dict.fromkeys(unpaired)),
        interval=INTERVALS[looks],
    )


def _had(sides: Iterable[Side]) -> tuple[str, ...]:
    """Return the figures of a run that some trial has."""
    rows = [trial.row for side in sides for trial in side.trials]
    return tuple(name for name in OF_RUNS if any(math.isfinite(row.get(name, math.nan)) for row in rows))


# --- sides --------------------------------------------------------------------------------------------------


def _sides(folders: Mapping[str, Results]) -> list[Side]:
    """Make the sides; runs are put together if that leaves two sides or more, and no seed stands twice."""
    alone = [_side(source, results) for source, results in folders.items()]
    together: dict[Hashable, list[Side]] = {}
    for number, side in enumerate(alone):
        is_run = folders[side.name].profile is None and len(side.trials) == 1
        together.setdefault(key(side.trials[0].keys) if is_run else number, []).append(side)
    twice = any(
        len({side.trials[0].row["seed"] for side in group}) < len(group)
        for group in together.values()
        if len(group) > 1
    )
    return alone if twice or len(together) < 2 else [_joined(group) for group in together.values()]


def _joined(group: Sequence[Side]) -> Side:
    if len(group) == 1:
        return group[0]
    trials = tuple(trial for side in group for trial in side.trials)
    name = f"{group[0].name} and {len(group) - 1} more"
    return Side(name, trials, group[0].metric, group[0].looks, tuple(told for side in group for told in side.lost))


def trials_of(source: str, results: Results) -> list[Trial]:
    """Return the trials of a folder whose experiments can be read."""
    rows = results.trials.to_dict("records")
    whole = {row["trial"] for row in rows if row["status"] != "damaged"}
    keys_of = keys_of_trials({name: one.values for name, one in results.facts.items() if name in whole})
    found = []
    for row in rows:
        if (name := row["trial"]) in keys_of:
            setting = setting_label({axis.name: row[axis.name] for axis in results.axes})
            folder = results.path / row["folder"]
            found.append(Trial(source, name, row, keys_of[name], results.facts[name], setting, folder))
    return found


def _side(source: str, results: Results) -> Side:
    trials, lost = trials_of(source, results), []
    rows = results.trials.to_dict("records")
    for row in rows:
        if row["status"] in ("failed", "stopped", "damaged"):
            lost.append(f"trial {row['trial']} of {source} is {row['status']} ({row['reason']})")
    for status in ("running", "missing"):
        names = [row["trial"] for row in rows if row["status"] == status]
        if names:
            lost.append(f"{counted(len(names), 'trial')} of {source}: {status} ({named(names)})")
    if not trials:
        raise RunFolderError(f"{results.path} has no trial that has begun, so there is nothing to compare")
    return Side(source, tuple(trials), results.metric, results.looks, tuple(lost))


def _differing(names: Iterable[str], sides: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Values]:
    """Return the names whose values differ between sides; what a trial without any values has does not count."""
    found = dict[str, Values]()
    for name in names:
        values = [{key(one.get(name, NONE)): one.get(name, NONE) for one in side if one} for side in sides]
        if any(set(one) != set(values[0]) for one in values):
            found[name] = tuple(tuple(map(label, one.values())) for one in values)
    return found


# --- pairs --------------------------------------------------------------------------------------------------


def _pairs(
    first: Side, second: Side, within: Sequence[str], metrics: Iterable[str], looks: str
) -> tuple[list[Pair], list[str]]:
    """Pair the cells of two sides, and say why others are not."""
    mine, theirs = first.cells(within), second.cells(within)
    common = [place for place in mine if place in theirs]
    told = [*_alone(first, second, mine, theirs), *_alone(second, first, theirs, mine)]
    if not common:
        varied = ", ".join(
            f"{name} ({_told(first, name)}; {_told(second, name)})" for name in _apart(first, second, within)
        )
        return [], [f"no cell of {second.name} is one of {first.name}: they have no common values of {varied}"]
    finished = {place: _by_seed(mine[place]).keys() & _by_seed(theirs[place]).keys() for place in common}
    told += [_no_seed(first, second, mine[place], theirs[place]) for place in common if not finished[place]]
    pairs: list[Pair] = []
    lacking: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}  # side, cell, seeds -> what these have not
    for metric in metrics:
        made = []
        for place in common:
            one = _pair(first, second, mine[place], theirs[place], metric, looks)
            made += [one] if one.seeds else []
            for side, trials in ((first, mine[place]), (second, theirs[place])):
                if seeds := tuple(sorted(finished[place] - _by_seed(trials, metric).keys())):
                    lacking.setdefault((side.name, one.cell, seeds), []).append(metric)
        adjusted = holm([one.p for one in made])
        pairs += [replace(one, p_holm=float(p)) for one, p in zip(made, adjusted, strict=True)]
    for (side, cell, seeds), metrics in lacking.items():
        where = f"{numbered('seed', seeds)}{f' at {cell}' if cell else ''}"
        told.append(f"{side} has no {named(metrics)} on {where}, and is left out there")
    return pairs, told


def _apart(first: Side, second: Side, within: Sequence[str]) -> list[str]:
    """Name the keys of which the sides have no value in common; all of them if there is none."""
    found = [name for name in within if not set(first.values(name)) & set(second.values(name))]
    return found or list(within)


def _told(side: Side, name: str) -> str:
    return f"{side.name}: {', '.join(map(label, side.values(name).values()))}"


def _alone(
    side: Side, other: Side, mine: Mapping[Hashable, list[Trial]], theirs: Mapping[Hashable, list[Trial]]
) -> list[str]:
    cells = [trials[0].setting or "its trials" for place, trials in mine.items() if place not in theirs]
    many = f"{len(cells)} cells are" if len(cells) > 1 else "1 cell is"
    return [f"{many} in {side.name} and not in {other.name}: {named(cells)}"] if cells else []


def _no_seed(first: Side, second: Side, mine: Sequence[Trial], theirs: Sequence[Trial]) -> str:
    seeds = [sorted({int(trial.row["seed"]) for trial in trials if trial.finished}) for trials in (mine, theirs)]
    cell = f" at {mine[0].setting}" if mine[0].setting else ""
    told = ", ".join(f"{side.name}: {seeds or 'none'}" for side, seeds in zip((first, second), seeds, strict=True))
    return f"no seed has finished in both{cell} ({told})"


def _pair(first: Side, second: Side, mine: Sequence[Trial], theirs: Sequence[Trial], metric: str, looks: str) -> Pair:
    one, two = _by_seed(mine, metric), _by_seed(theirs, metric)
    seeds = tuple(sorted(one.keys() & two.keys()))
    both = [(one[seed], two[seed]) for seed in seeds]
    values = [(float(a.row[metric]), float(b.row[metric])) for a, b in both]
    figures = difference([b - a for a, b in values], CONFIDENCE, INTERVAL_RULES[looks])
    same = [(a.row["weights_sha256"], b.row["weights_sha256"]) for a, b in both]
    return Pair(
        first=first.name,
        second=second.name,
        cell=mine[0].setting or theirs[0].setting,
        metric=metric,
        mean_first=mean(finite([a for a, _ in values])),
        mean_second=mean(finite([b for _, b in values])),
        difference=figures.mean,
        low=figures.low,
        high=figures.high,
        p=figures.p,
        p_holm=math.nan,
        seeds=seeds,
        equal_weights=sum(a == b and isinstance(a, str) for a, b in same),
        equal_partitions=sum(a.partition == b.partition != "" for a, b in both),
    )


def _by_seed(trials: Iterable[Trial], metric: str = "") -> dict[int, Trial]:
    """The finished trials that have the metric, if one is named; of a seed that was drawn twice the first."""
    found: dict[int, Trial] = {}
    for trial in trials:
        if trial.finished and (not metric or math.isfinite(trial.row.get(metric, math.nan))):
            found.setdefault(int(trial.row["seed"]), trial)
    return found
