"""An experiment as dotted keys with their values, as far as they decide what is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.experiment.execution import IDENTITY

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
    found["stages"] = {stage["name"]: {key: stage[key] for key in stage if key != "name"} for stage in stages}
    return {key: value for key, value in _leaves(found, "") if _counts(key)}


def _counts(key: str) -> bool:
    section, _, field = key.partition(".")
    placed = key in (*SEEDS, *_PLACES) or section in _PLACES
    return not placed and (section != "execution" or field in IDENTITY)


def _leaves(values: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{place}.{name}" if place else name
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value
