"""What a class takes from a script or a notebook: the definitions that it reaches there, and their hashes.

A script is no module that another process could import, so its classes travel by value. Of its text only that counts
which the class reaches by name: other lines may change. Values that are reached count by what they are.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import hashlib
import inspect
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from engine.base.digests import digest_of
from engine.base.errors import ConfigError
from engine.base.opening import read_text

SCRIPT = "__main__"  # the module of a script, a notebook, a console
Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Reached:
    """Name in the script -> digest, and the modules that those take something from."""

    digests: dict[str, str]
    modules: frozenset[str]


_arrived: dict[type, Reached] = {}  # of classes that came from another process's script


def arrived(choice: type, found: Reached) -> None:
    """Remember what a class that was sent here by value reaches in the script that it is from."""
    _arrived[choice] = found


def reached(choice: type) -> Reached:
    """Find what ``choice`` takes from the script; nothing where none of its classes is from there.

    Raises :class:`ConfigError` for a definition without a source, and for a value that cannot be told from others.
    """
    if choice in _arrived:
        return _arrived[choice]
    space = vars(sys.modules[SCRIPT])
    digests, modules = dict[str, str](), set[str]()
    left: list[Any] = [cls for cls in choice.__mro__ if cls.__module__ == SCRIPT]
    while left:
        definition = left.pop()
        name = f"{SCRIPT}.{definition.__qualname__}"
        if name in digests:
            continue
        node = _node(definition)
        digests[name] = digest_of(ast.unparse(node))
        for used in sorted(_names(node)):
            if used not in space or (hasattr(builtins, used) and space[used] is getattr(builtins, used)):
                continue
            value = space[used]
            several = [value]
            if isinstance(value, list | tuple) and not _is_plain(value):  # classes and functions count as if named
                several, value = value, [getattr(one, "__qualname__", one) for one in value]
            for one in (one for one in several if _is_named(one)):
                if isinstance(one, type | FunctionType) and one.__module__ == SCRIPT:
                    left.append(one)
                else:
                    modules.add(one.__name__ if isinstance(one, ModuleType) else str(one.__module__))
            if not _is_named(value):
                digests[f"{SCRIPT}.{used}"] = _digest_of_value(used, value)
    return Reached(digests, frozenset(modules))


def _is_named(one: Any) -> bool:
    """Whether it is known by where it was written, as a function is, and has no values of its own."""
    if isinstance(one, ModuleType | type):
        return True
    has_values = isinstance(one, MethodType | partial | nn.Module) or type(one).__module__ == SCRIPT
    return callable(one) and not has_values


def _names(node: Definition) -> set[str]:
    """The names that a definition uses; those of its decorators made it what it is, and are used no more."""
    inner = [child for child in ast.iter_child_nodes(node) if child not in node.decorator_list]
    names = (one for child in inner for one in ast.walk(child) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)}


def _node(definition: Any) -> Definition:
    """Find a class or a function in the text that it was made of."""
    name, codes = definition.__name__, list(_codes(definition))
    files = {code.co_filename for code in codes} or {str(getattr(sys.modules[SCRIPT], "__file__", ""))}
    for file in sorted(files):
        text = _text(file)
        found = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, Definition) and node.name == name and _holds(node, codes)
        ]
        if found:
            return found[-1]
    rule = "has no source here, so results could not be told from those of other code"
    raise ConfigError("class", definition.__qualname__, rule, "write it into a .py file")


def _holds(node: Definition, codes: list[Any]) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return not codes or any(first <= code.co_firstlineno <= (node.end_lineno or first) for code in codes)


def _codes(definition: Any) -> Iterator[Any]:
    """The code objects of a function, or of the functions of a class which were written in it."""
    values = [definition] if inspect.isfunction(definition) else list(vars(definition).values())
    for value in values:
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if not inspect.isfunction(function) or function.__module__ != SCRIPT:
            continue
        if not function.__code__.co_filename.startswith("<string>"):  # as a dataclass makes them
            yield function.__code__


def _text(file: str) -> str:
    lines = linecache.getlines(file)  # of cells as well
    return "".join(lines) if lines else (read_text(Path(file)) if Path(file).is_file() else "")


def _digest_of_value(name: str, value: Any) -> str:
    if _is_plain(value) or type(value).__module__ == "typing":
        return hashlib.sha256(repr(value).encode()).hexdigest()
    if isinstance(value, nn.Module):
        tensors = [own.detach().cpu().numpy().tobytes() for own in value.state_dict().values()]
        return hashlib.sha256(b"".join([repr(value).encode(), *tensors])).hexdigest()
    named = isinstance(value, partial) and _is_named(value.func) and value.func.__module__ != SCRIPT
    if named and _is_plain((value.args, value.keywords)):
        called = value.func.__module__, value.func.__qualname__
        return hashlib.sha256(repr((called, value.args, value.keywords)).encode()).hexdigest()
    rule = f"is a {type(value).__name__} of the script, which cannot be told from another one"
    raise ConfigError(
        "script", name, rule, "make it a field of the class, a parameter of the function, or write both into a .py file"
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and type(value).__module__ != SCRIPT:
        return all(_is_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)
