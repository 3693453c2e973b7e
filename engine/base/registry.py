"""Named choices with fields: algorithms, data sets, partitions, models.

Each choice is a frozen dataclass; a registry maps its name to the class. ``{"name": "fedprox", "mu": 0.1}`` in a
config becomes ``FedProx(mu=0.1)`` here, with one-sentence errors for unknown names, unknown fields and wrong types.

What ships with fedskew and what a user brings come in alike: :meth:`Registry.add`. An installed package's choices come
in when one of their names is asked for (``plugins.py``).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

import pydantic
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from engine.base import plugins
from engine.base.declared import IN_WORDS, Declared, declared, in_yaml
from engine.base.errors import ConfigError, nearest, require

Choice = TypeVar("Choice", bound=type)


class Registry(dict[str, type]):
    """The choices of one section of an experiment (``algorithm``, ``data``, ...): name -> frozen dataclass."""

    def __init__(self, section: str, kind: type, choices: Mapping[str, type], defaults: bool = False) -> None:
        """``kind``: what each choice is a subclass of; ``defaults``: every field of one must have a default."""
        super().__init__(choices)
        self.section = section
        self.kind = kind
        self.defaults = defaults

    # --- what there is ---------------------------------------------------------------------------------

    def add(self, name: str, choice: type) -> None:
        """Let ``choice`` be known as ``name``; the same class again, as of a module that was loaded anew, replaces it.

        Raises :class:`ConfigError` for what is no choice of this section, and for a name that another one has.
        """
        self._check(name, choice)
        there = self.get(name)
        require(
            there is None or _place(there) == _place(choice),
            f"{self.section}.name",
            name,
            f"is the name of {_place(there)} already" if there else "",
            "take another name",
        )
        offer = plugins.offered(self.section).get(name)
        require(
            offer is None or offer.value == _place(choice),
            f"{self.section}.name",
            name,
            f"is the name of {offer.value} in the package {plugins.told(offer)} already" if offer else "",
            "take another name",
        )
        if choice.__module__ == "__main__":  # its type hints have no meaning in a process that has another __main__
            hints = get_type_hints(choice, include_extras=True)
            for field in dataclasses.fields(choice):
                field.type = hints[field.name]
                if field.name in inspect.get_annotations(choice):
                    choice.__annotations__[field.name] = hints[field.name]
        self[name] = choice

    def register(self, name: str) -> Callable[[Choice], Choice]:
        """Return a decorator of a class that :meth:`add` is called with."""

        def add(choice: Choice) -> Choice:
            self.add(name, choice)
            return choice

        return add

    def _check(self, name: str, choice: type) -> None:
        field, place = f"{self.section}.name", _place(choice)
        require(isinstance(name, str) and bool(re.fullmatch(NAME, name)), field, name, _PATTERNS[NAME])
        own = [one for one in inspect.get_annotations(choice) if not _is_class_var(choice, one)]
        made = "__dataclass_fields__" in choice.__dict__
        require(
            issubclass(choice, self.kind),
            field,
            name,
            f"{place} is no {self.kind.__name__}",
            f"write class {choice.__name__}({self.kind.__name__}), or a subclass of one that is there",
        )
        require(
            made or not own,
            field,
            name,
            f"{place} has fields ({', '.join(own)}) and is no dataclass",
            "write @dataclass(frozen=True) above the class",
        )
        frozen = all(one.__dataclass_params__.frozen for one in choice.__mro__ if "__dataclass_params__" in vars(one))
        require(frozen, field, name, f"{place} is not frozen", "write @dataclass(frozen=True)")
        bare = [one.name for one in dataclasses.fields(choice) if one.init and not _has_default(one)]
        require(
            not bare or not self.defaults,
            field,
            name,
            f"{place} has no default for {', '.join(bare)}",
            f"give it one, its neutral value where there is one: {bare[0]}: ... = ..." if bare else "",
        )
        left = sorted(getattr(choice, "__abstractmethods__", ()))
        require(not left, field, name, f"{place} does not define {', '.join(left)}", "write it")

    def names(self) -> list[str]:
        """List the names of all that can be chosen, those of installed packages included."""
        return [*self, *self.offered()]

    def offered(self) -> dict[str, str]:
        """Return the names that installed packages offer and nobody has asked for yet, each with its package."""
        found = plugins.offered(self.section)
        return {name: plugins.told(entry) for name, entry in found.items() if name not in self}

    def find(self, name: object) -> type:
        """Return the class of that name; raises :class:`ConfigError` for an unknown one.

        One that an installed package offers is imported now.
        """
        if isinstance(name, str) and name in self:
            return self[name]
        offer = plugins.offered(self.section).get(name) if isinstance(name, str) else None
        if offer is None:
            repair = f"{nearest(name, self.names())}; a part of your own comes in by --with FILE.py"
            raise ConfigError(f"{self.section}.name", name, f"is not a known {self.section}", repair)
        found = plugins.load(offer, f"{self.section}.name")
        if name not in self:  # its module may have added it itself
            self.add(str(name), found)
        return self[str(name)]

    def fields(self, name: object) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields of the choice ``name``; raises :class:`ConfigError` for an unknown name."""
        return {field.name: field for field in dataclasses.fields(self.find(name))}

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

    # --- instances -------------------------------------------------------------------------------------

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
            raise config_error(error, self.section, declared(self[name])) from None

    def taken(self, value: object) -> Any:
        """Return an instance as it is, if its class is known here; raises :class:`ConfigError` with what would be."""
        if type(value) in self.values():
            return value
        for name, offer in plugins.offered(self.section).items():
            if offer.value == _place(type(value)):  # of an installed package, by a name that nobody has asked for yet
                self.find(name)
                return value
        section, repair = self.section, f"{self.section}.name=..."
        rule = "must be a name with fields"
        if isinstance(value, self.kind):
            rule = f"{_place(type(value))} is not registered"
            repair = f'write @fedskew.{_DECORATORS.get(section, section)}("a_name") above the class'
        raise ConfigError(section, value, rule, repair)

    def dump(self, choice: Any) -> dict[str, Any]:
        """Return the mapping that :meth:`build` makes ``choice`` of, with every field present."""
        return {"name": self.name_of(choice), **dataclasses.asdict(choice)}


_DECORATORS = {"data": "dataset"}  # named otherwise than its section


def _place(choice: type) -> str:
    return f"{choice.__module__}:{choice.__qualname__}"


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _is_class_var(choice: type, name: str) -> bool:
    return "ClassVar" in str(inspect.get_annotations(choice)[name])


@cache
def _adapter(choice: type) -> pydantic.TypeAdapter[Any]:
    """Return the validator of a class, made once: making it costs more than all uses of it."""
    return pydantic.TypeAdapter(choice)


def field_path(error: ErrorDetails) -> str:
    """Return the dotted place of one of pydantic's errors, without the branches of a union that it names there."""
    return ".".join(str(part) for part in error["loc"] if not _BRANCH.fullmatch(str(part)))


_BRANCH = re.compile(r"(literal|tuple)\[.*\]|constrained-\w+|int|float|function-before")


def _fits(error: ErrorDetails) -> tuple[bool, bool]:
    """Return how well the error's branch of a union fits what was written: words are for literals alone, but for those
    in a list, and a branch that takes lists is the one that was meant by a list.
    """
    is_literal = any(str(part).startswith("literal[") for part in error["loc"])
    is_word = isinstance(error["input"], str) and _whole(error["input"]) is None
    of_its_kind = is_word if is_literal else not is_word or any(isinstance(part, int) for part in error["loc"])
    return of_its_kind, not error["type"].endswith("_type")


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


def _rule(error: ErrorDetails, field: Declared | None) -> str:
    """Return the rule that a value breaks, in words: of a number the whole range of its field."""
    context = error.get("ctx", {})
    limits = [f"must be {words} {context[name]:g}" for name, words in IN_WORDS.items() if name in context]
    if limits:
        return (field.rule if field else "") or limits[0]
    if error["type"] == "too_short":
        return f"must have at least {context['min_length']}"
    words = _PATTERNS.get(context.get("pattern", ""))
    if words is not None:
        return words
    rule = error["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return re.sub(", unable to parse string as an? \\w+$", "", rule)


def config_error(
    error: pydantic.ValidationError, section: str = "", fields: Mapping[str, Declared] | None = None
) -> ConfigError:
    """Return the first of pydantic's errors as one sentence, with its field named below ``section``.

    fields: what is declared there, by the name or by the whole dotted key.
    """
    errors = error.errors(include_url=False)
    path = field_path(errors[0])
    same = [one for one in errors if f"{field_path(one)}.".startswith(f"{path}.")]  # a branch may go deeper
    first = max(same, key=_fits)  # of equal ones the first
    path = field_path(first)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        prefix = ".".join(part for part in (section, path) if part and not cause.field.startswith(f"{part}."))
        return cause.under(prefix) if prefix and not cause.field.startswith(prefix) else cause
    field = ".".join(part for part in (section, path) if part)
    if first["type"] == "missing":
        return ConfigError(field, None, "is required", f"give {field} a value")
    known = fields or {}
    whole_field, whole_path = (re.sub(r"(\.\d+)+$", "", one) for one in (field, path))  # of an entry of a list
    found = known.get(whole_field) or known.get(whole_path)
    rule, whole = _rule(first, found), _whole(first.get("input"))
    if whole is not None and first["type"].startswith("int_"):
        return ConfigError(field, first["input"], rule, f"write {field}={whole}")
    if found is None:
        return ConfigError(field, first.get("input"), rule)
    repair = f"for example {whole_field}={in_yaml(found.default)}"
    if found.neutral is not None and rule == found.rule:
        repair = str(found.neutral)
    elif found.default == () or not isinstance(found.default, bool | int | float | str | tuple):
        repair = ""
    return ConfigError(field, first.get("input"), rule, repair)


class Checked:
    """The base of every kind of choice: refuses values out of the range that their fields' annotations declare.

    A rule across fields is a class's own ``__post_init__``, which calls this one first.
    """

    def __post_init__(self) -> None:
        kind = type(self)
        names, adapter = _checked(kind)
        try:
            values = adapter.validate_python({name: getattr(self, name) for name in names})
        except pydantic.ValidationError as error:
            raise config_error(error, fields=declared(kind)) from None
        for name, value in values.items():
            if isinstance(getattr(self, name), str) and not isinstance(value, str):  # "0.1" for a number
                object.__setattr__(self, name, value)


@cache
def _checked(kind: type) -> tuple[list[str], pydantic.TypeAdapter[Any]]:
    """Return the fields of a choice that have a range or a list of words, and their validator."""
    hints = {name: field.hint for name, field in declared(kind).items() if field.is_limited}
    values: Any = TypedDict(kind.__name__, hints)  # pyright: ignore[reportArgumentType]
    values.__pydantic_config__ = pydantic.ConfigDict(allow_inf_nan=False)
    return list(hints), pydantic.TypeAdapter(values)
