"""Checks of the values in a JSON file that the engine wrote, and that may have been damaged or edited since.

Each check raises ValueError with what is wrong in words; who reads the file says which file it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.base.opening import read_text

LARGEST = 2**63 - 1  # of a whole number: what a column of a table holds
FURTHEST = 1e150  # from 0: the square of a number is one too

Check = Callable[[str, Any], None]


def load(path: Path) -> dict[str, Any]:
    """Read the mapping in a JSON file; raises OSError or ValueError."""
    try:
        values = json.loads(read_text(path))
    except RecursionError:
        raise ValueError("it is too deep") from None
    if not isinstance(values, dict):
        raise ValueError("it holds no mapping")
    return values


def check(values: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Check each value that has a check; a value that is not there is for others to miss."""
    for name, one in checks.items():
        if name in values:
            one(name, values[name])


def text(name: str, value: Any) -> None:
    _require(isinstance(value, str), name, value, "is no text")


def truth(name: str, value: Any) -> None:
    _require(isinstance(value, bool), name, value, "is neither true nor false")


def whole(name: str, value: Any) -> None:
    """Pass whole numbers from 0 to :data:`LARGEST`."""
    _require(type(value) is int and 0 <= value <= LARGEST, name, value, "is no whole number of its kind")


def number(name: str, value: Any) -> None:
    """Pass numbers up to :data:`FURTHEST` from 0; True is none."""
    ok = type(value) in (int, float) and abs(value) <= FURTHEST
    _require(ok, name, value, "is no number of its kind")


def share(name: str, value: Any) -> None:
    """Pass numbers from 0 to 1, but for rounding."""
    number(name, value)
    _require(-1e-9 <= value <= 1 + 1e-9, name, value, "is no fraction")


def optional(one: Check) -> Check:
    """Return a check that passes null too."""
    return lambda name, value: None if value is None else one(name, value)


def mapping(one: Check) -> Check:
    """Return a check of a mapping whose values all pass ``one``."""

    def checked(name: str, value: Any) -> None:
        _require(isinstance(value, dict), name, value, "is no mapping")
        for key, inner in value.items():
            one(f"{name}.{key}", inner)

    return checked


def sequence(one: Check) -> Check:
    """Return a check of a list whose values all pass ``one``."""

    def checked(name: str, value: Any) -> None:
        _require(isinstance(value, list), name, value, "is no list")
        for place, inner in enumerate(value):
            one(f"{name}[{place}]", inner)

    return checked


def one_of(known: Iterable[str]) -> Check:
    """Return a check that passes these words alone."""
    words = tuple(known)
    return lambda name, value: _require(isinstance(value, str) and value in words, name, value, "is not known")


def anything(name: str, value: Any) -> None:
    """Pass whatever it is."""


def _require(condition: bool, name: str, value: Any, rule: str) -> None:
    if not condition:
        shown = str(value) if not isinstance(value, int) or abs(value) <= LARGEST else "a number that is too large"
        raise ValueError(f"its {name} {rule}: {shown[:60]}")
