"""Hashes of what sources compute: of their syntax trees, without words about them."""

from __future__ import annotations

import ast
import hashlib

LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")  # methods of a logger


def digest_of(source: str) -> str:
    """Hash a source's syntax tree with SHA-256, without comments, docstrings, layout and statements that only log."""
    parts: list[str] = []
    _write(ast.parse(source), parts)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write(node: object, parts: list[str], docstring: bool = False) -> None:
    """Append a tree as words, of which none has a line break; a third of ``ast.dump``'s time.

    ``docstring``: a text at the beginning is one.
    """
    if isinstance(node, ast.AST):
        parts.append(type(node).__name__)
        for name in node._fields:
            _write(getattr(node, name, None), parts, docstring=name == "body")
    elif isinstance(node, list):
        if node and isinstance(node[0], ast.stmt):
            node = [one for one in node[1 if docstring and _is_text(node[0]) else 0 :] if not _only_logs(one)]
        parts.append("[")
        for one in node:
            _write(one, parts)
        parts.append("]")
    else:
        parts.append(repr(node))


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _only_logs(statement: ast.stmt) -> bool:
    """Tell ``log.info(...)``, ``log = logging.getLogger(...)`` and ``import logging`` from statements that compute."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names] == ["logging"]
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement).startswith("log = logging.getLogger(")
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = ast.unparse(statement.value.func)
    assigns = any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement))
    return called.startswith("log.") and called.removeprefix("log.") in LEVELS and not assigns
