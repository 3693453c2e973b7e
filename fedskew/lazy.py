"""Names that are loaded when they are first used; which and from where, a module's stub (``.pyi``) says.

The stub is what type checkers and editors read; it is read here too, so that each name is written once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def places(file: str) -> dict[str, str]:
    """Return name -> module of every ``from module import name as name`` in the stub beside ``file``."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: node.module for node in imports for alias in node.names if alias.asname and node.module}


def offered(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a module that offers what its stub names."""
    place_of = places(file)

    def load(name: str) -> Any:
        if name not in place_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(place_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load, lambda: sorted(place_of), sorted(place_of)
