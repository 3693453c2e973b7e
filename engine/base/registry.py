"""Named choices with fields: algorithms, data sets, partitions, models.

Each choice is a frozen dataclass; a registry maps its name to the class. ``{"name": "fedprox", "mu": 0.1}`` in a
config becomes ``FedProx(mu=0.1)`` here, with one-sentence errors for unknown names, unknown fields and wrong types.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pydantic
from pydantic_core import ErrorDetails

from engine.base.errors import ConfigError, nearest


class Registry(dict[str, type]):
    """The choices of one section of an experiment (``algorithm``, ``data``, ...): name -> frozen dataclass."""

    def __init__(self, section: str, choices: Mapping[str, type]) -> None:
        super().__init__(choices)
        self.section = section

    def fields(self, name: object) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields of the choice ``name``; raises :class:`ConfigError` for an unknown name."""
        if not isinstance(name, str) or name not in self:
            raise ConfigError(f"{self.section}.name", name, f"is not a known {self.section}", nearest(name, self))
        return {field.name: field for field in dataclasses.fields(self[name])}

    def no_such_field(self, name: str, field: str, value: object) -> ConfigError:
        """Return the error of a field that the choice ``name`` does not have; its repair names the choices that do."""
        known = self.fields(name)
        repair = self.having(field) or (nearest(field, known) if known else f"{name} has no fields")
        return ConfigError(f"{self.section}.{field}", value, f"is not a field of {self.section} {name!r}", repair)

    def having(self, field: str) -> str:
        """Return which choices have that field, in words: ``fedprox, moon have it``; "" if none has."""
        names = [name for name in self if field in self.fields(name)]
        return f"{', '.join(names)} {'have' if len(names) > 1 else 'has'} it" if names else ""

    def name_of(self, choice: object) -> str:
        """Return the name under which the class of ``choice`` is registered; raises KeyError if it is not."""
        for name, cls in self.items():
            if type(choice) is cls:
                return name
        raise KeyError(f"{type(choice).__name__} is not registered as a {self.section}")

    def build(self, values: Mapping[str, Any]) -> Any:
        """Make an instance of ``{"name": ..., field: value, ...}``; raises :class:`ConfigError` for wrong ones."""
        values = dict(values)
        name = values.pop("name", None)
        if name is None:
            raise ConfigError(f"{self.section}.name", None, "is required", nearest("", self))
        known = self.fields(name)
        for field, value in values.items():
            if field not in known:
                raise self.no_such_field(name, field, value)
        try:
            return _adapter(self[name]).validate_python(values)
        except pydantic.ValidationError as error:
            raise config_error(error, self.section, known) from None

    def dump(self, choice: Any) -> dict[str, Any]:
        """Return the mapping that :meth:`build` makes ``choice`` of, with every field present."""
        return {"name": self.name_of(choice), **dataclasses.asdict(choice)}


@cache
def _adapter(choice: type) -> pydantic.TypeAdapter[Any]:
    """Return the validator of a class, made once: making it costs more than all uses of it."""
    return pydantic.TypeAdapter(choice)


def field_path(error: ErrorDetails) -> str:
    """Return the dotted place of one of pydantic's errors, without the branches of a union that it names there."""
    return ".".join(str(part) for part in error["loc"] if not _BRANCH.fullmatch(str(part)))


_BRANCH = re.compile(r"(literal|tuple)\[.*\]|constrained-\w+|int|float|function-before")


def _is_of_its_type(error: ErrorDetails) -> bool:
    """Return whether the error's branch of a union is the one that was meant: words are for literals alone, but for
    those in a list.
    """
    is_literal = any(str(part).startswith("literal[") for part in error["loc"])
    is_word = isinstance(error["input"], str) and _whole(error["input"]) is None
    return is_word if is_literal else not is_word or any(isinstance(part, int) for part in error["loc"])


def _whole(text: object) -> int | None:
    """Return the whole number that a text stands for in the notation of floats, which YAML 1.1 reads as text: 1e9."""
    if not isinstance(text, str) or not _FLOAT.fullmatch(text):
        return None
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= 2**53 else None


_FLOAT = re.compile(r"[-+]?[0-9]{1,30}(\.[0-9]{0,30})?[eE][-+]?[0-9]{1,3}")

# Of fields with a pattern, which nobody is asked to read.
NAME, STAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
_PATTERNS = {
    NAME: "must be 1 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-', and begin with a letter or a digit",
    STAGE_NAME: "must be 1 to 64 of the characters A-Z, a-z, 0-9, '_' and '-', and begin with a letter or a digit",
}


def _rule(error: ErrorDetails) -> str:
    """Return the rule that a value breaks, in words."""
    words = _PATTERNS.get(error.get("ctx", {}).get("pattern", ""))
    if words is not None:
        return words
    rule = error["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return re.sub(", unable to parse string as an? \\w+$", "", rule)


def config_error(
    error: pydantic.ValidationError, section: str = "", defaults: Mapping[str, Any] | None = None
) -> ConfigError:
    """Return the first of pydantic's errors as one sentence, with its field named below ``section``."""
    errors = error.errors(include_url=False)
    path = field_path(errors[0])
    same = [one for one in errors if f"{field_path(one)}.".startswith(f"{path}.")]  # a branch may go deeper
    first = max(same, key=_is_of_its_type)  # of equal ones the first
    path = field_path(first)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        prefix = ".".join(part for part in (section, path) if part and not cause.field.startswith(f"{part}."))
        return cause.under(prefix) if prefix and not cause.field.startswith(prefix) else cause
    field = ".".join(part for part in (section, path) if part)
    if first["type"] == "missing":
        return ConfigError(field, None, "is required", f"give {field} a value")
    rule, whole = _rule(first), _whole(first.get("input"))
    if whole is not None and first["type"].startswith("int_"):
        return ConfigError(field, first["input"], rule, f"write {field}={whole}")
    known = defaults or {}
    value = getattr(known.get(field, known.get(path)), "default", None)
    repair = f"for example {field}={value}" if isinstance(value, bool | int | float | str) else ""
    return ConfigError(field, first.get("input"), rule, repair)
