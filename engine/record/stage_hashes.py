"""The hash of all that a stage's result depends on.

The hash covers the experiment's identity, the stage with its ancestors, the numerics (torch and numpy versions, device
type, CPU capability or GPU name), and the sources that compute: those of whole rooms and of the stage's algorithm,
without comments, docstrings and log messages.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from engine.algorithm import Algorithm
from engine.experiment import Experiment, Stage

# The rooms that a result's bits go through, whole. The others compute none: an experiment's values are hashed as its
# identity, and records, workers and the loop of a run carry numbers and change none.
ROOMS = ("engine.algorithm", "engine.models", "engine.data", "engine.client", "engine.server")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")  # methods of a logger


def stage_hash(
    experiment: Experiment, stage: Stage, computed_by: Mapping[str, str], data: str, round: int | None = None
) -> str:
    """Return 16 hex digits that are equal for two stages only if their results are equal to the bit.

    computed_by: see :func:`engine.record.numerics.numerics`. data: the data set's fingerprint. round (global): what
    counts is the schedule up to it, None for all of it.

    The number of rounds is left out: a longer run of the same stage passes through the shorter one.
    """
    identity = experiment.identity()
    for key in ("stages", "evaluation"):
        identity.pop(key)
    identity["data"].pop("root", None)  # what was read counts, not where it was
    if not experiment.has_server_model(stage):
        identity.pop("model")
    if round is not None:
        changes = tuple(change for change in stage.changes if change.round <= round)
        stage = stage.model_copy(update={"changes": changes})
    own = stage.to_mapping()
    for key in ("name", "needs", "rounds"):
        del own[key]
    by_name = {other.name: other for other in experiment.chain}
    parents = [[stage_hash(experiment, by_name[need], computed_by, data), by_name[need].rounds] for need in stage.needs]
    modules = {*numeric_path(), *_behind(type(stage.algorithm))}
    text = json.dumps(
        {
            "experiment": identity,
            "stage": own,
            "parents": parents,
            "numerics": dict(computed_by),
            "data": data,
            "sources": {module: source_digest(module) for module in sorted(modules)},
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _behind(algorithm: type[Algorithm]) -> frozenset[str]:
    """Find the modules of an algorithm's classes, and those beside them that they take something from."""
    found, package = set[str](), algorithm.__module__.rpartition(".")[0]
    new = {cls.__module__ for cls in algorithm.__mro__ if not cls.__module__.startswith(("builtins", "abc"))}
    while new:
        found |= new
        values = [value for name in new for value in vars(sys.modules[name]).values()]
        taken = {value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "") for value in values}
        new = {name for name in taken if package and isinstance(name, str) and name.startswith(f"{package}.")} - found
    return frozenset(found)


@cache
def numeric_path() -> tuple[str, ...]:
    """List the modules of :data:`ROOMS`, their ``__init__`` included."""
    found = []
    for room in ROOMS:
        folder = file_of(room).parent
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found.append(".".join((room, *parts)).removesuffix(".__init__"))
    return tuple(sorted(found))


def file_of(module: str) -> Path:
    """Find the source of a module, of a package its ``__init__.py``."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


@cache
def source_digest(module: str) -> str:
    """Hash what a module computes, see :func:`digest_of`."""
    return digest_of(file_of(module).read_text(encoding="utf-8"))


def digest_of(source: str) -> str:
    """Hash a source's syntax tree with SHA-256, without comments, docstrings, layout and statements that only log."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name, field in ast.iter_fields(node):
            if isinstance(field, list) and field and isinstance(field[0], ast.stmt):
                first = 1 if name == "body" and _is_text(field[0]) else 0
                setattr(node, name, [statement for statement in field[first:] if not _only_logs(statement)])
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


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
