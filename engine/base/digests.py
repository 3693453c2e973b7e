"""Hashes of what sources compute: of their syntax trees, without words about them.

What a field's annotation says, its range, meaning and neutral value, decides which values are refused and how they are
told of, and computes nothing: a value that passes is hashed with the experiment. So ``mu: float = 0.01`` and
``mu: Annotated[float, Ge(0), Doc("...")] = 0.01`` are alike, and a meaning can be put better without making all results
those of an earlier version.
"""

from __future__ import annotations

import ast
import hashlib
from typing import Any

# Names of these say what a field takes and means, in annotations; they compute nothing.
WORDS_OF_FIELDS = ("annotated_types", "engine.base.declared", "typing", "typing_extensions")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")  # methods of a logger


def digest_of(source: str) -> str:
    """Hash a source's syntax tree with SHA-256, without comments, docstrings, layout and statements that only log."""
    parts: list[str] = []
    _write(ast.parse(source), parts)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write(node: ast.AST, parts: list[str]) -> None:
    """Append a tree as words, of which none has a line break; half of ``ast.dump``'s time.

    Every run does so with some hundred sources before its first round.
    """
    parts.append(type(node).__name__)
    for name in node._fields:
        if name == "annotation" and isinstance(node, ast.AnnAssign) and not _is_no_field(node):
            continue
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            _write(value, parts)
        elif isinstance(value, list):
            parts.append("[")
            for one in _that_count(value, docstring=name == "body"):
                if isinstance(one, ast.AST):
                    _write(one, parts)
                else:
                    parts.append(repr(one))
            parts.append("]")
        else:
            parts.append(repr(value))


def portable_digest_of(source: str) -> str:
    """Hash what :func:`digest_of` hashes, equal under every version of Python.

    Later versions give the nodes of a syntax tree more fields, which are empty where a source makes no use of them:
    what is empty is left out, and each field is named.
    """
    parts: list[str] = []
    _write_named(ast.parse(source), parts)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write_named(node: Any, parts: list[str]) -> None:
    if not isinstance(node, ast.AST):
        parts.append(repr(node))
        return
    parts.append(f"({type(node).__name__}")
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "annotation" and isinstance(node, ast.AnnAssign) and not _is_no_field(node):
            continue
        if value is None and not isinstance(node, ast.Constant):
            continue
        for one in _that_count(value, docstring=name == "body") if isinstance(value, list) else [value]:
            parts.append(name)
            _write_named(one, parts)
    parts.append(")")


def _is_no_field(node: ast.AnnAssign) -> bool:
    """Return whether an annotation decides what a dataclass makes of it: ``ClassVar`` is no field of its instances."""
    return ast.unparse(node.annotation).partition("[")[0].rpartition(".")[2] in ("ClassVar", "InitVar")


def _that_count(nodes: list[Any], docstring: bool) -> list[Any]:
    """Leave out statements that only log, and with ``docstring`` a text at the beginning."""
    if not nodes or not isinstance(nodes[0], ast.stmt):
        return nodes
    return [one for one in nodes[1 if docstring and _is_text(nodes[0]) else 0 :] if not _computes_nothing(one)]


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _computes_nothing(statement: ast.stmt) -> bool:
    """Tell ``log.info(...)``, ``log = logging.getLogger(...)`` and ``import logging`` from statements that compute."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module in WORDS_OF_FIELDS and not statement.level
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names] == ["logging"]
    if isinstance(statement, ast.Assign):
        return _is_log(statement.targets[0]) and ast.unparse(statement).startswith("log = logging.getLogger(")
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = statement.value.func
    if not isinstance(called, ast.Attribute) or not _is_log(called.value) or called.attr not in LEVELS:
        return False
    return not any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement))


def _is_log(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "log"
