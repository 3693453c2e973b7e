"""What a field says of itself in its annotation: its range, its meaning, and the value at which it changes nothing.

    mu: Annotated[float, Ge(0), Doc("weight of the proximal term"), Neutral(0, "is FedAvg")] = 0.01

The sentence that refuses other values, the tables of docs/config.md, the JSON schema, the Tab key, the pages of
algorithms and the tables of tests follow from it. A plain ``mu: float = 0.01`` takes every number. A field that a
subclass declares again, for another default, and says nothing of, is what it was but for its default.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typing_extensions import Doc

__all__ = ["Declared", "Doc", "Ge", "Gt", "Le", "Lt", "MinLen", "Neutral", "declared", "in_yaml", "reductions_of"]

IS_FEDAVG = "is FedAvg"
BOUNDS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}  # class -> its field, which is pydantic's name as well
IN_WORDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "below"}
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
KINDS: Mapping[Any, str] = {
    int: "int",
    float: "number",
    bool: "bool",
    str: "text",
    Path: "path",
    dict: "mapping",
    Any: "any",
}


@dataclass(frozen=True)
class Neutral:
    """The value at which a field changes nothing, and what that comes to: ``Neutral(0, "is none")``.

    ``Neutral(0, "is FedAvg")`` in an algorithm's class is a promise that the conformance suite tries: with this value,
    and defaults besides, its weights are FedAvg's to the bit, under every executor. Classes below do not inherit it.
    """

    value: Any
    comes_to: str = ""

    def __str__(self) -> str:
        return f"{in_yaml(self.value)} {self.comes_to}".strip()


@dataclass(frozen=True)
class Declared:
    """A field of a section or of a choice; ``owner``: the class that says what it is."""

    name: str
    hint: Any  # its type, with all that is said of it
    default: Any  # MISSING where it is required
    owner: type

    @cached_property
    def meaning(self) -> str:
        """What it is, in words; "" if nothing is said."""
        return next((one.documentation for one in _says(self.hint) if isinstance(one, Doc)), "")

    @cached_property
    def neutral(self) -> Neutral | None:
        """The value at which it changes nothing; None if there is none."""
        return next((one for one in _says(self.hint) if isinstance(one, Neutral)), None)

    @cached_property
    def kind(self) -> str:
        """Its type and range, in words: ``number >= 0``, ``int in [1, 32] or null``, ``sgd, adam``."""
        return _kind(self.hint, {})

    @cached_property
    def rule(self) -> str:
        """The rule of its numbers: ``must be at least 0 and below 1``; "" if any will do, or each kind has its own."""
        rules = {
            " and ".join(f"{IN_WORDS[name]} {_number(limit)}" for name, limit in limits.items())
            for limits in _limits(self.hint, {})
            if limits
        }
        return f"must be {rules.pop()}" if len(rules) == 1 else ""

    @property
    def is_limited(self) -> bool:
        """True if it takes certain words or a range, or has a check of its own."""
        words = {*self.words} - {"true", "false"}
        return (
            bool(words)
            or any(_limits(self.hint, {}))
            or not all(isinstance(one, Doc | Neutral) for one in _says(self.hint))
        )

    @property
    def words(self) -> list[str]:
        """The words that it may be set to; [] where it takes numbers or any text."""
        return list(_words(self.hint))


@cache
def declared(kind: type) -> Mapping[str, Declared]:
    """Return the fields of a dataclass or a section, in their order."""
    if issubclass(kind, BaseModel):
        defaults = {name: _default(info) for name, info in kind.model_fields.items()}
    else:
        defaults = {field.name: _default(field) for field in dataclasses.fields(kind) if field.init}
    return {name: _declared(kind, name, default) for name, default in defaults.items()}


def reductions_of(algorithm: type) -> list[dict[str, Any]]:
    """Return the settings of its fields with which an algorithm says that it is FedAvg to the bit.

    These are what its own class says: ``neutral``, and each field's ``Neutral(value, "is FedAvg")``.
    """
    together = vars(algorithm).get("neutral")
    return [*([dict(together)] if together else [])] + [
        {name: field.neutral.value}
        for name, field in declared(algorithm).items()
        if field.owner is algorithm and field.neutral is not None and field.neutral.comes_to == IS_FEDAVG
    ]


def in_yaml(value: Any) -> str:
    """Return a value as a config has it, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(in_yaml, value))}]"
    return str(value)


def _default(field: Any) -> Any:
    if field.default_factory is not None and field.default_factory is not MISSING:
        return field.default_factory()
    return MISSING if field.default is PydanticUndefined else field.default


def _declared(kind: type, name: str, default: Any) -> Declared:
    hints = [(owner, _hint(owner, name)) for owner in kind.__mro__ if name in inspect.get_annotations(owner)]
    # What the class above says holds while the type is the same, as where only the default is another one.
    same = [(owner, hint) for owner, hint in hints if hints[0][1] is Any or _plain(hint) == _plain(hints[0][1])]
    owner, hint = next(((owner, hint) for owner, hint in same if _says_something(hint)), hints[0])
    return Declared(name, hint, default, owner)


def _hint(owner: type, name: str) -> Any:
    """Return a field's type; Any where its words mean nothing outside of the function that they stand in."""
    scope = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(owner)[name]})
    try:
        module = vars(sys.modules[owner.__module__])
        return get_type_hints(scope, module, dict(vars(owner)), include_extras=True)[name]
    except (NameError, KeyError):
        return Any


def _plain(hint: Any) -> Any:
    """Return a type without what is said of it."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    members = frozenset(map(_plain, _members(hint)))
    return (get_origin(hint) in (tuple, list), members) if members else hint


def _says(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _says_something(hint: Any) -> bool:
    return bool(_says(hint)) or any(map(_says_something, _members(hint)))


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the kinds of a union, or of a list's entries."""
    is_of_several = get_origin(hint) in (Union, types.UnionType, tuple, list)
    return tuple(one for one in get_args(hint) if one is not Ellipsis) if is_of_several else ()


def _inner(hint: Any, limits: Mapping[str, float]) -> tuple[Any, dict[str, float]]:
    """Return a type without what is said of it, and its limits with those of the types around it."""
    said = {BOUNDS[type(one)]: getattr(one, BOUNDS[type(one)]) for one in _says(hint) if type(one) in BOUNDS}
    return get_args(hint)[0] if _says(hint) else hint, {**limits, **said}


def _limits(hint: Any, around: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Yield the limits of each kind of number in a type."""
    inner, limits = _inner(hint, around)
    if inner in (int, float):
        yield limits
    for one in _members(inner):
        yield from _limits(one, limits)


def _words(hint: Any) -> Iterator[str]:
    inner, _ = _inner(hint, {})
    if inner is bool:
        yield from ("true", "false")
    if get_origin(inner) is Literal:
        yield from map(in_yaml, get_args(inner))
    if get_origin(inner) in (Union, types.UnionType):
        for one in get_args(inner):
            yield from _words(one)


def _kind(hint: Any, around: Mapping[str, float]) -> str:
    inner, limits = _inner(hint, around)
    origin = get_origin(inner) or inner
    if origin is Literal:
        return ", ".join(map(in_yaml, get_args(inner)))
    if origin in (Union, types.UnionType):
        others = [_kind(one, limits) for one in get_args(inner) if one is not type(None)]
        return " or ".join([*others, *(["null"] if type(None) in get_args(inner) else [])])
    if origin in (tuple, list):
        return f"list of {_kind(get_args(inner)[0], limits)}"
    return KINDS.get(origin, getattr(origin, "__name__", "any").lower()) + _interval(
        limits if origin is not bool else {}
    )


def _interval(limits: Mapping[str, float]) -> str:
    """Return a range as a table has it: `` >= 0``, `` in (0, 1]``."""
    if len(limits) == 2 and limits.keys() & {"ge", "gt"} and limits.keys() & {"le", "lt"}:
        low, high = (limits.get("ge", limits.get("gt", 0)), limits.get("le", limits.get("lt", 0)))
        return f" in {'[' if 'ge' in limits else '('}{_number(low)}, {_number(high)}{']' if 'le' in limits else ')'}"
    return "".join(f" {SIGNS[name]} {_number(limit)}" for name, limit in limits.items())


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
