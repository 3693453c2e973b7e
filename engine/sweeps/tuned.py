"""Which side of a sweep is tuned, over what: each side with as many candidates, on seeds that no claim sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base.errors import require
from engine.experiment import Experiment
from engine.results.completeness import named
from engine.results.settings import key, make_plain, matches, setting_label
from engine.sweeps.space import is_grid, plain_grids


@dataclass(frozen=True)
class Tuned:
    """A side of a sweep: the settings that ``where`` picks, and what is searched for them.

    where: axes of the sweep, or dotted keys of the experiments, with their values; a list means any of its values.
    space: dotted keys or symbols -> ``tune.grid_search``.
    """

    where: Mapping[str, Any]
    space: Mapping[str, Any]

    def __post_init__(self) -> None:
        make_plain(self, "where")

    def picks(self, experiment: Experiment, setting: Mapping[str, Any]) -> bool:
        """Return whether a setting, whose experiment is given, is of this side."""
        return all(matches(_value(experiment, setting, name), wanted) for name, wanted in self.where.items())

    def candidates(self) -> list[dict[str, Any]]:
        """All points of the space."""
        values = [value["grid_search"] for value in self.space.values()]
        return [dict(zip(self.space, point, strict=True)) for point in itertools.product(*values)]


def _value(experiment: Experiment, setting: Mapping[str, Any], name: str) -> Any:
    if name in setting:
        return setting[name]
    try:
        return experiment.value_of(name)
    except KeyError:  # a field that this algorithm has not
        return None


def check_tuned(
    sides: Sequence[Tuned],
    settings: Sequence[Mapping[str, Any]],
    base: Experiment,
    seeds: Sequence[int],
    held_out: Sequence[int],
) -> None:
    """Refuse sides that overlap, pick nothing, leave settings untuned, or are given unequal budgets; and tuning seeds
    that are the sweep's.
    """
    whole = len(held_out) > 0 and all(type(seed) is int and seed >= 0 for seed in held_out)
    require(whole, "tuning_seeds", list(held_out), "must be whole numbers from 0 on", "for example (1000, 1001)")
    common = sorted({*seeds} & {*held_out})
    require(not common, "tuning_seeds", common, "are seeds of the sweep, too", "name others, for example (1000, 1001)")
    picked: dict[Any, int] = {}
    experiments: list[Experiment] = []  # of the settings
    for number, side in enumerate(sides):
        grids = bool(side.space) and all(is_grid(value) for value in side.space.values())
        require(grids, "tuned", dict(side.space), "must be searched on a grid", "use tune.grid_search")
        for name, values in plain_grids(side.space).items():
            once = len({key(value) for value in values}) == len(values)
            require(once, name, values, "names a candidate twice, which counts in the budget", "name each once")
        count = len(side.candidates())
        require(count > 1, "tuned", dict(side.space), "has nothing to choose from", "name two candidates or more")
        budget = math.prod(len(value["grid_search"]) for value in sides[0].space.values())
        rule = f"has {count} candidates, and the first side {budget}"
        require(count == budget, "tuned", dict(side.where), rule, "give each side as many")
        experiments = experiments or [base.replace(dict(setting)) for setting in settings]
        found = [one for one, experiment in zip(settings, experiments, strict=True) if side.picks(experiment, one)]
        require(len(found) > 0, "tuned", dict(side.where), "picks no setting of the sweep", "name an axis' value")
        for setting in found:
            other = picked.setdefault(key(setting), number)
            require(other == number, "tuned", dict(side.where), "picks settings of another side", "divide them")
            _check_free(side, setting, base)
    untuned = [setting_label(setting) for setting in settings if key(setting) not in picked]
    rule = "is of no side, so that it would be compared untuned with what was tuned"
    require(not untuned, "tuned", named(untuned), rule, "name a side for it, with as many candidates")


def _check_free(side: Tuned, setting: Mapping[str, Any], base: Experiment) -> None:
    """Refuse to search for what a setting has a value for: its label would show one, and its trial have another."""
    for name in side.space:
        searched = base.key_of(name)
        for given, value in setting.items():
            given_key = base.key_of(given)
            inside = searched.removeprefix(f"{given_key}.")
            fixed = given_key == searched or (isinstance(value, Mapping) and inside in value)
            require(not fixed, "tuned", name, f"is set by the sweep's own {given}", "leave it out there")
