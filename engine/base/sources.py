"""The sources that a result's bits go through, and their hashes.

Of the engine these are whole rooms. Of what is chosen by name (an algorithm, a model, a data source, a partition) they
are the modules of its classes and all that those take something from, as far as that is not the standard library or a
package that was installed: of those it is the version.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from engine.base import own_modules
from engine.base.definitions import SCRIPT, reached
from engine.base.digests import digest_of, portable_digest_of
from engine.base.errors import ConfigError
from engine.base.opening import read_bytes, read_text
from engine.base.own_modules import OURS

# The rooms that a result's bits go through, whole. The others compute none: an experiment's values are hashed as its
# identity, and records, workers and the loop of a run carry numbers and change none.
ROOMS = ("engine.algorithm", "engine.models", "engine.data", "engine.client", "engine.server")
ALSO = "engine.experiment.work"  # between which numbers of steps stragglers draw
INSTALLED = ("site-packages", "dist-packages")  # the folders of packages that were installed
ENGINES = ("engine", "fedskew")  # whose modules are in ROOMS, or compute nothing
SHIPPED = "algorithms"  # the package that comes with it, and is followed where both have been installed, too
IN_NUMERICS = ("torch", "numpy")  # whose versions are there
FIXED = tuple(f"{package}." for package in OURS)  # nobody loads a module of these anew


# --- which modules --------------------------------------------------------------------------------------


@cache
def numeric_path() -> tuple[str, ...]:
    """List the modules of :data:`ROOMS`, their ``__init__`` included, and :data:`ALSO`."""
    found = [ALSO]
    for room in ROOMS:
        folder = file_of(room).parent
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found.append(".".join((room, *parts)).removesuffix(".__init__"))
    return tuple(sorted(found))


def behind(choice: type) -> frozenset[str]:
    """Find the modules behind a class that is chosen by name, beside the engine's.

    These are the modules of its classes, and what they import or hold something of, and so on. A package that was
    installed is followed only if it is the class's own, or :data:`SHIPPED`. Of a script these are the modules that the
    class takes something from there, see ``definitions.py``. Raises :class:`ConfigError` for a module without a source.
    """
    first = {cls.__module__ for cls in choice.__mro__} | reached(choice).modules
    return _closure(frozenset(first), choice.__module__.partition(".")[0])


@cache
def _closure(first: frozenset[str], home: str) -> frozenset[str]:
    found, new = set[str](), {module for module in first if _counts(module, home)}
    while new:
        found |= new
        new = {name for one in new for name in _taken(one) if _counts(name, home)} - found
    return frozenset(found)


def packages_behind(choice: type) -> frozenset[str]:
    """Find the packages, installed and not followed, that the modules behind a class import something from."""
    home = choice.__module__.partition(".")[0]
    named = {name for module in behind(choice) for name in _imported(module)} | reached(choice).modules
    tops = {name.partition(".")[0] for name in named}
    others = tops - {home, *OURS, *IN_NUMERICS, *sys.stdlib_module_names}
    return frozenset(top for top in others if is_installed(top))


def _counts(module: str, home: str) -> bool:
    """Return whether ``module`` is followed for a class of the top-level package ``home``."""
    top = module.partition(".")[0]
    if top in (*ENGINES, SCRIPT) or top in sys.stdlib_module_names:
        return False
    return (top in (home, SHIPPED) or not is_installed(top)) and not _is_bare_package(module)


@cache
def is_installed(top: str) -> bool:
    """Return whether a top-level package lies where packages are installed."""
    there = sys.modules.get(top) or importlib.util.find_spec(top)
    found = [getattr(there, name, None) for name in ("__file__", "origin")]
    inner = getattr(there, "__path__", None) or getattr(there, "submodule_search_locations", None)
    places = [place for place in (*found, *(inner or ())) if isinstance(place, str)]
    return any(set(INSTALLED) & set(Path(place).parts) for place in places)


def _is_bare_package(module: str) -> bool:
    """Return whether a module is a folder without an ``__init__.py``, which holds nothing of its own."""
    there = sys.modules.get(module)
    if there is not None:
        return hasattr(there, "__path__") and getattr(there, "__file__", None) is None
    spec = importlib.util.find_spec(module)
    return spec is not None and not spec.has_location and spec.submodule_search_locations is not None


def _taken(module: str) -> set[str]:
    """The modules that a module imports, anywhere in it, and those of the values that it holds."""
    there = sys.modules.get(module)
    values = [] if there is None else list(vars(there).values())
    held = {value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) for value in values}
    return {name for name in held | _imported(module) if isinstance(name, str) and _is_module(name)}


def _imported(module: str) -> frozenset[str]:
    """Find the modules that a source imports or takes a name from, inside functions as well."""
    text, is_package = _source(module)
    return (
        frozenset() if text is None else _import_statements(text, module if is_package else module.rpartition(".")[0])
    )


@cache
def _import_statements(text: str, package: str) -> frozenset[str]:
    """``package``: the one that relative names begin at."""
    return frozenset(_named(ast.parse(text), package))


def _named(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            inner = [f"{origin}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if _is_module(name)]
            yield from modules
            if len(modules) < len(inner):  # the package's own names
                yield origin


@cache
def _is_module(name: str) -> bool:
    if name in sys.modules:
        return isinstance(sys.modules[name], ModuleType)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # its package is none, or is not here
        return False


# --- their hashes ---------------------------------------------------------------------------------------


def file_of(module: str) -> Path:
    """Find the file of a module, of a package its ``__init__.py``; raises :class:`ConfigError` where there is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None and module not in sys.modules:
        spec = importlib.util.find_spec(module)
        file = spec.origin if spec is not None and spec.has_location else None
    if file is None or not Path(file).is_file():
        rule = "has no source file, so results could not be told from those of other code"
        raise ConfigError("module", module, rule, "write what it holds into a .py file")
    return Path(file)


def _source(module: str) -> tuple[str | None, bool]:
    """Return a module's text, None if it is compiled, and whether it is a package."""
    there = sys.modules.get(module)
    if there is not None and not module.startswith(FIXED):  # a user may load it anew
        text = own_modules.text_of(there)
        if text is not None:
            return text, hasattr(there, "__path__")
    path = file_of(module)
    return (read_text(path) if path.suffix == ".py" else None), path.name == "__init__.py"


def all_behind(choice: type) -> dict[str, str]:
    """Return what is behind a class: module or definition of a script -> digest, installed package -> version."""
    modules = {module: source_digest(module) for module in sorted(behind(choice))}
    return modules | reached(choice).digests | {name: version_of(name) for name in sorted(packages_behind(choice))}


def source_digest(module: str) -> str:
    """Hash what a module computes, see ``digests.py``; one that is compiled by the bytes of its file."""
    if module.startswith(FIXED):
        return _file_digest(module)
    text, _ = _source(module)
    return _file_digest(module) if text is None else _text_digest(text)


@cache
def _text_digest(text: str) -> str:
    return digest_of(text)


@cache
def _file_digest(module: str) -> str:
    path = file_of(module)
    if path.suffix != ".py":
        return hashlib.sha256(read_bytes(path)).hexdigest()
    return digest_of(read_text(path))


@cache
def portable_digest(module: str) -> str:
    """Hash what a module of ours computes, equal under every version of Python; see ``digests.py``."""
    return portable_digest_of(read_text(file_of(module)))


@cache
def version_of(package: str) -> str:
    """Return the version of an installed package, by the name that it is imported under."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # it was installed under other names, which takes a second to find out
        names = sorted(set(metadata.packages_distributions().get(package, ())))
        return ", ".join(f"{name} {metadata.version(name)}" for name in names) or "unknown"
