"""An experiment as dotted keys with their values, as far as they decide what is computed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from engine.experiment.execution import IDENTITY
from engine.results.settings import key

SEEDS = ("seed", "partition.seed")  # what tells the repetitions of a setting apart
_PLACES = ("name", "checkpoint", "data.root")  # names, paths and cadences: they move no result


def config_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of an experiment as data, without seeds, names, paths and placement.

    A stage's keys begin with ``stages.NAME``. Where stages say what is run, the experiment's own number of rounds, and
    its own algorithm if every stage has one, are left out: nothing follows from them.
    """
    stages = values.get("stages") or []
    unused = {"rounds"} if stages else set[str]()
    if stages and all(stage.get("algorithm") for stage in stages):
        unused.add("algorithm")
    found = {name: one for name, one in values.items() if name not in {*unused, "stages"}}
    found["stages"] = {stage["name"]: {field: stage[field] for field in stage if field != "name"} for stage in stages}
    return {name: value for name, value in _leaves(found, "") if _counts(name)}


def keys_of_trials(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the keys of each trial of a folder, by its name.

    ``partition.seed`` is one of them where it is a setting: neither the same for all trials that agree in all else, nor
    their seed plus a number.
    """
    keys = {name: config_keys(values) for name, values in trials.items()}
    drawn = dict[Hashable, set[tuple[int, int]]]()
    for name, values in trials.items():
        if "seed" in values["partition"]:
            drawn.setdefault(key(keys[name]), set()).add((values["seed"], values["partition"]["seed"]))
    if all(
        len({own for _, own in each}) == 1 or len({own - seed for seed, own in each}) == 1 for each in drawn.values()
    ):
        return keys
    return {name: one | {"partition.seed": trials[name]["partition"].get("seed")} for name, one in keys.items()}


def _counts(name: str) -> bool:
    section, _, field = name.partition(".")
    placed = name in (*SEEDS, *_PLACES) or section in _PLACES
    return not placed and (section != "execution" or field in IDENTITY)


def _leaves(values: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        dotted = f"{place}.{name}" if place else name
        if isinstance(value, Mapping):
            yield from _leaves(value, dotted)
        else:
            yield dotted, value
