"""Labels and owners as users have them (whole numbers, texts, booleans, file by file) as numbers.

Nothing is cast that would become something else: a real number is no class, and 7 and "7" are not one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.base.errors import ConfigError, DataError
from engine.data.samples.notes import listed, warn

KINDS = ((str,), (bool, np.bool_), (int, float, np.integer, np.floating))  # of values, one of which a list may have
MOST_CLASSES = 1_000_000  # a label beyond it is no class number: there would be a weight for each class below it


class Part(NamedTuple):
    """The values of one file or split; names: of the classes whose numbers they are."""

    place: str
    values: np.ndarray
    names: tuple[str, ...] = ()


def class_numbers(where: tuple[str, str], parts: Sequence[Part]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the class numbers int64 of each part, and the names of all classes; where: the user's key and value."""
    values = plain(where, parts)
    named = {part.names: part.place for part in reversed(parts) if part.names}
    if len(named) > 1:
        (one, here), (other, there) = list(named.items())[:2]
        at = next(at for at in range(len(one) + 1) if one[at : at + 1] != other[at : at + 1])
        rule = f"has from {at} on the classes {listed(one[at:], 3)} in {here}, and {listed(other[at:], 3)} in {there}"
        raise ConfigError(*where, rule, "give them the same classes, in one order")
    if values[0].dtype.kind == "U":
        numbers, names = places(values)
        return numbers, tuple(names.tolist())
    highest = max(int(own.max()) for own in values)
    if highest >= MOST_CLASSES:
        raise ConfigError(*where, f"has the label {highest}, which is no class number", "number classes from 0 on")
    if named and not all(part.names for part in parts):
        warn(f"not all files name the classes of {where[1]}; their numbers are taken as those of the others")
    return values, next(iter(named), tuple(map(str, range(highest + 1))))


def plain(where: tuple[str, str], parts: Sequence[Part]) -> list[np.ndarray]:
    """Return the values of each part, all as int64 or all as texts."""
    values = [_plain(where, part) for part in parts]
    first = {own.dtype.kind: part.place for part, own in zip(parts, values, strict=True)}
    if len(first) > 1:
        raise ConfigError(*where, f"has numbers in {first['i']} and texts in {first['U']}", "store them alike")
    return values


def places(values: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return values as int64 places in their sorted union, so that one user, or one class, has one number; and it."""
    every = np.unique(np.concatenate(values))
    return [np.searchsorted(every, own).astype(np.int64) for own in values], every


def _of_one_kind(values: np.ndarray) -> np.ndarray:
    """The objects as an array of texts, booleans or numbers; as they are, where they are of several kinds or none."""
    kinds = {next((kind for kind in KINDS if isinstance(one, kind)), object) for one in values}
    if len(kinds) > 1 or object in kinds or any(isinstance(one, str) and "\0" in one for one in values):
        return values
    return np.array([str.__str__(one) if isinstance(one, str) else one for one in values])


def refuse_masked(values: object, where: str) -> None:
    """Raise :class:`DataError` for masked values of numpy: an array has what lies below the mask."""
    if np.ma.is_masked(values):
        raise DataError(f"{where} has masked values; fill them, or leave those rows out")


def _plain(where: tuple[str, str], part: Part) -> np.ndarray:
    """The values as int64 or texts; whole numbers may be stored as floats, and booleans become texts."""
    values, there = part.values, f"in {part.place}"
    if values.ndim != 1 or (values.dtype == object and any(isinstance(one, list | np.ndarray) for one in values)):
        rule = f"has several values a row {there}, and fedskew knows one label (no multi-label, no one-hot codes)"
        raise ConfigError(*where, rule, "give one number or name for each row")
    if values.dtype == object:
        values = _of_one_kind(values)
    kind = values.dtype.kind
    if kind not in "fiubUS":
        rule = f"has values {there} that are neither whole numbers nor texts, or some that are empty"
        raise ConfigError(*where, rule, "fill them, or drop those rows")
    if kind == "u" and values.max() >= 2**63:
        raise ConfigError(*where, f"has the number {values.max()} {there}, too large for 64 bits", "number from 0 on")
    if kind == "f" and not ((values == np.floor(values)) & (np.abs(values) < 2**53)).all():
        shown = [f"{one:g}" for one in np.unique(values)]
        rule = f"has {len(shown):,} different real numbers {there} ({listed(shown, 3)}), and fedskew does no regression"
        raise ConfigError(*where, rule, "bin them into classes, or give whole numbers or texts")
    return values.astype(np.str_ if kind in "bUS" else np.int64, copy=False)
