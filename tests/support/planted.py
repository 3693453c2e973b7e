"""Wrong code in the place of right code, within this process: for tests that must notice many faults in little time.

``tests/mutants`` tries whole test files on a copy of the tree, in a process each. Here a function that is loaded
already goes on with other code for as long as a test looks.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.support.house import ROOT

SOURCES = ("engine", "algorithms", "fedskew")


@contextmanager
def planted(right: str, wrong: str) -> Iterator[None]:
    """Let the sources have ``wrong`` where they have ``right``, which they have exactly once, inside a function.

    Raises LookupError if they have it elsewhere, or not once.
    """
    path, text = place(right)
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    before, after = (_functions(compile(source, str(path), "exec")) for source in (text, text.replace(right, wrong)))
    changed = [name for name, code in after.items() if name in before and not _same(code, before[name])]
    if not changed:
        raise LookupError(f"{right!r} is in no function of {path.name}")
    swapped = [(_live(module, name), after[name]) for name in changed]
    kept = [function.__code__ for function, _ in swapped]
    for function, code in swapped:
        function.__code__ = code
    try:
        yield
    finally:
        for (function, _), code in zip(swapped, kept, strict=True):
            function.__code__ = code


def place(code: str) -> tuple[Path, str]:
    """The file that has the code, and its text."""
    found = [(path, text) for path, text in _texts().items() if code in text]
    if sum(text.count(code) for _, text in found) != 1:
        raise LookupError(f"{code!r} is not once in the sources; write the fault anew, or drop it")
    return found[0]


@cache
def _texts() -> dict[Path, str]:
    return {path: path.read_text() for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))}


def _functions(code: CodeType) -> dict[str, CodeType]:
    """The code of each function of a module that is not inside another one, by its qualified name."""
    found = {}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & inspect.CO_OPTIMIZED:  # of a function, and not of a class's body
                found[inner.co_qualname] = inner
            else:
                found |= _functions(inner)
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    """Return whether they do the same, wherever in the file they stand."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=False)
    same = (_same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a == b for a, b in pairs)
    return len(one.co_consts) == len(other.co_consts) and all(same)


def _live(module: Any, name: str) -> FunctionType:
    """The function of that qualified name, below its decorators."""
    found = functools.reduce(lambda owner, part: inspect.getattr_static(owner, part), name.split("."), module)
    found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    function: Callable[..., Any] = inspect.unwrap(found)
    if not isinstance(function, FunctionType):
        raise LookupError(f"{name} of {module.__name__} is no function")
    return function
