"""Search spaces in Ray Tune's words: what is a grid, what is drawn, and an axis as data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ray.tune.search.sample import Categorical, Domain, Float, Function, Integer, LogUniform, choice

from engine.results.settings import plain


def is_grid(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"grid_search"}


def is_drawn(value: Any) -> bool:
    return isinstance(value, Domain) and not isinstance(value, Function)  # a Function is Tune's sample_from


def is_called(value: Any) -> bool:
    return isinstance(value, Function)


def options(value: Any) -> list[Any] | None:
    """Return the values that there are to choose from; None where they come from a range or a function."""
    if is_grid(value):
        return list(value["grid_search"])
    if isinstance(value, Categorical):
        return list(value.categories)
    return None if isinstance(value, Domain) else [value]


def as_data(value: Any) -> Any:
    """Return what a name stands for in a space with instances of choices as data."""
    if is_grid(value):
        return {"grid_search": [plain(one) for one in value["grid_search"]]}
    if isinstance(value, Categorical):
        value = copy.copy(value)
        value.categories = [plain(one) for one in value.categories]
    return plain(value)


def is_open(value: Any) -> bool:
    """Return whether a grid or a domain stands anywhere in ``value``."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, Domain) or is_grid(value) or any(map(is_open, parts))


def drawn_from(values: Any) -> Any:
    """Return a mutation of population-based training as a domain: a list is a choice."""
    return choice(list(values)) if isinstance(values, list | tuple) else values


def plain_grids(space: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of a space of grids alone, by name."""
    return {name: [plain(one) for one in value["grid_search"]] for name, value in space.items()}


def axis(name: str, key: str, value: Any) -> dict[str, Any]:
    """Describe a grid or a domain as data: all that decides what may be drawn, and whether it is drawn by ratio."""
    if isinstance(value, Float | Integer):
        sampler = value.get_sampler()
        inner = getattr(sampler, "sampler", sampler)  # of a quantised one
        drawn = {
            "type": type(value).__name__.lower(),
            "lower": plain(value.lower),
            "upper": plain(value.upper),
            "sampler": str(inner),
            "step": plain(getattr(sampler, "q", None)),
            **{field: plain(one) for field, one in vars(inner).items()},  # mean and deviation of a normal one
        }
        log = isinstance(inner, LogUniform)
        return {"name": name, "key": key, "kind": "sampled", "values": None, "log": log, "range": drawn}
    if is_grid(value):
        values = [plain(one) for one in value["grid_search"]]
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        positive = sorted(one for one in values if numbers and one > 0)
        # Values that span a decade or more were chosen by ratio.
        log = bool(positive) and positive[-1] >= 10 * positive[0]
        return {"name": name, "key": key, "kind": "grid", "values": values, "log": log}
    return {"name": name, "key": key, "kind": "sampled", "values": list(map(plain, value.categories)), "log": False}
