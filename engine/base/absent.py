"""A choice whose code is not here, as a record holds it: it can be read, shown and written again, and not be run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from engine.base.errors import ConfigError


class Absent:
    """The base of every such choice; its fields are those of its ``mapping``, and nothing was checked of them."""

    section: str
    mapping: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Absent) and (self.section, self.mapping) == (other.section, other.mapping)

    def __hash__(self) -> int:
        return hash((self.section, str(self.mapping)))

    def __repr__(self) -> str:
        return f"Absent({self.section}.name={self.mapping['name']})"


def absent(kind: type, section: str, mapping: Mapping[str, Any]) -> Any:
    """Return an instance of ``kind`` that has the fields of ``mapping``, and does nothing."""
    choice = object.__new__(_absent_class(kind))
    for name, value in {**mapping, "section": section, "mapping": dict(mapping)}.items():
        object.__setattr__(choice, name, value)
    return choice


@cache
def _absent_class(kind: type) -> type:
    missing = dict.fromkeys(getattr(kind, "__abstractmethods__", ()), _not_here)
    own = {"__eq__": Absent.__eq__, "__hash__": Absent.__hash__, "__repr__": Absent.__repr__}
    return type("AbsentChoice", (Absent, kind), {**missing, **own})


def _not_here(self: Absent, *args: object, **kwargs: object) -> Any:
    raise not_here(self)


def not_here(choice: Absent, where: str = "") -> ConfigError:
    """Return the error of what cannot be done without the code; ``where`` it came from, if that is known."""
    rule = f"is not known here{f', it came from {where}' if where else ''}"
    return ConfigError(f"{choice.section}.name", choice.mapping["name"], rule, "give its file by --with FILE.py")
