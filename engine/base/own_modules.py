"""A user's own modules: files that were named, the modules beside them, and sources that another process has sent.

A file is loaded under the name that ``import`` would give it, with its folder on the path as for a script, so that the
modules beside it find each other. A process that was sent modules as sources (a Ray actor, a trial, on whatever node)
imports those, whatever files it has itself.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.base.errors import ConfigError, FedskewError, RunError, needed_files, require
from engine.base.opening import read_bytes, read_text

OURS = ("engine", "algorithms", "tune_configs", "fedskew")


def is_ours(choice: type) -> bool:
    """Return whether a class ships with fedskew."""
    return choice.__module__.partition(".")[0] in OURS


def name_of(part: object) -> str:
    """Return what a part is called in sentences: the name that it was registered by, or that of its class."""
    return getattr(part, "own_name", type(part).__name__)


@dataclass(frozen=True)
class Source:
    """The text of a module; ``file``: where it was read, which another machine may not have."""

    text: str
    file: str
    is_package: bool = False


# --- modules that are imported from their texts ---------------------------------------------------------------


class _Texts(MetaPathFinder, ExecutionLoader):
    """Finds and loads the modules whose texts this process was given, before those of files are looked for."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.running: list[str] = []  # the files of those that are under way

    def exec_module(self, module: ModuleType) -> None:
        self.running.append(self.get_filename(module.__name__))
        try:
            super().exec_module(module)
        finally:
            self.running.pop()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in self.sources else None

    def get_source(self, fullname: str) -> str:
        return self._of(fullname).text

    def get_filename(self, fullname: str) -> str:
        return self._of(fullname).file

    def is_package(self, fullname: str) -> bool:
        return self._of(fullname).is_package

    def _of(self, name: str) -> Source:
        if name not in self.sources:
            raise ImportError(f"no text of {name} was given", name=name)
        return self.sources[name]


_TEXTS = _Texts()


def install(sources: Mapping[str, Source]) -> None:
    """Let modules be imported from their texts in this process; raises :class:`RunError` if it has another one already.

    ``sources``: module -> its text. One that was imported from its file stays, if its text is the same.
    """
    for name, source in sources.items():
        there = sys.modules.get(name)
        if there is not None and text_of(there) != source.text:
            place = getattr(there, "__file__", None)
            raise RunError(f"this process has another module {name} ({place}) than the one that was sent; rename one")
        if there is None:
            _TEXTS.sources[name] = source
    if _TEXTS not in sys.meta_path:
        sys.meta_path.insert(0, _TEXTS)


def check_not_importing(what: str) -> None:
    """Refuse ``what`` a file does while it is imported: every process that imports it would do it again."""
    if _TEXTS.running:
        rule = f"starts {what} while it is imported, and other processes import it again"
        raise ConfigError("file", _TEXTS.running[-1], rule, 'put that under if __name__ == "__main__":')


_read: dict[str, tuple[object, str | None]] = {}  # module -> its spec, which is new when it is loaded anew; its text


def text_of(module: ModuleType) -> str | None:
    """Return the source that a module was loaded from, as it was when it was first asked for; None if it has none."""
    spec = getattr(module, "__spec__", None)
    known = _read.get(module.__name__)
    if known is None or known[0] is not spec:
        known = _read[module.__name__] = (spec, _text(module))
    return known[1]


def _text(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    loader = getattr(module, "__loader__", None)
    if loader is _TEXTS:
        return _TEXTS.get_source(module.__name__)
    return read_text(Path(file)) if file is not None and Path(file).suffix == ".py" and Path(file).is_file() else None


# --- files that were named --------------------------------------------------------------------------------------

_named: dict[str, Path] = {}  # module -> the file that was named for it


def named_files() -> list[Path]:
    """List the files that were named in this process, in that order."""
    return list(_named.values())


def import_file(path: Path, field: str) -> ModuleType:
    """Run the file at ``path`` and return its module; a file that was loaded before is not run again.

    Raises :class:`ConfigError`, of ``field``, for a file that is none or cannot be run (with the line), and where its
    name, or that of a module beside it which it imports, is another module's.
    """
    path = path.expanduser().resolve()
    require(path.is_file(), field, path, "is not a file", "name a Python file")
    require(path.suffix == ".py" and path.stem.isidentifier(), field, path, "is not named as a module", "name it x.py")
    name = path.stem
    there = sys.modules.get(name)
    if there is not None and Path(getattr(there, "__file__", None) or "/").resolve() == path:
        _is_named(name, path)
        return there
    taken = _taken_by(name, path)
    require(taken is None, field, path, f"has the name of another module ({taken})", "rename the file")
    try:
        source = Source(read_text(path), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(field, path, f"cannot be imported: {told(error, path)}") from error
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    install({name: source})
    try:
        module = import_module(name)
    except FedskewError:
        _forget(name)
        raise
    except (Exception, SystemExit) as error:
        _forget(name)
        raise ConfigError(field, path, f"cannot be imported: {told(error, path)}") from error
    try:
        check_beside(source, field)
    except FedskewError:
        _forget(name)
        raise
    for other in list(sys.modules.values()):  # as they are now, should a file be edited while it is in use
        file = getattr(other, "__file__", None)
        if file is not None and Path(file).is_relative_to(path.parent) and "site-packages" not in file:
            text_of(other)
    _is_named(name, path)
    return module


def _is_named(name: str, path: Path) -> None:
    if _named.get(name) != path:
        _named[name] = path
        needed_files.append(str(path))


def _forget(name: str) -> None:
    sys.modules.pop(name, None)
    del _TEXTS.sources[name]


def _taken_by(name: str, path: Path) -> str | None:
    """Return what has the name of a module that is to be loaded from ``path``; None if nothing has."""
    there = sys.modules.get(name)
    if name in sys.stdlib_module_names:
        return "of Python"
    if there is not None:
        return str(getattr(there, "__file__", None) or "built in")
    spec = find_spec(name)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() == path:
        return None
    return spec.origin


def check_beside(source: Source, field: str) -> None:
    """Refuse a file that imports a module beside it and was given another one of that name.

    Raises :class:`ConfigError`, of ``field``.
    """
    folder = Path(source.file).parent
    for node in ast.walk(ast.parse(source.text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for top in {name.partition(".")[0] for name in names}:
            beside = next((one for one in (folder / f"{top}.py", folder / top / "__init__.py") if one.is_file()), None)
            file = getattr(sys.modules.get(top), "__file__", None)
            if beside is not None and file is not None and Path(file).resolve() != beside.resolve():
                rule = f"imports {top}, which is {file} and not {beside}"
                raise ConfigError(field, source.file, rule, f"rename {beside.name if beside.stem == top else top}")


def check_hides_nothing(folder: Path) -> None:
    """Refuse a folder that other processes put before ours on their path, and that has another package of our name.

    A checkout of the code that is installed has the same packages, and hides nothing. Raises :class:`ConfigError`.
    """
    ours = Path(__file__).resolve().parents[2]
    for name in OURS:
        for place in (folder / name / "__init__.py", folder / f"{name}.py"):
            if place.is_file() and folder.resolve() != ours and _sources(folder / name) != _sources(ours / name):
                rule = f"would hide fedskew's own package {name!r} in Ray's processes, which begin in this folder"
                raise ConfigError("module", place, rule, "rename it, or start the command in another folder")


def _sources(package: Path) -> dict[Path, bytes]:
    """Return the content of each Python file of a package, by its place in it."""
    return {file.relative_to(package): read_bytes(file) for file in package.rglob("*.py")}


def told(error: BaseException, path: Path) -> str:
    """``ZeroDivisionError: division by zero (mine.py, line 3)``: the last line of ``path`` on the way to the error."""
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return f"SyntaxError: it is no text in UTF-8 ({path.name}, line 1)"
    if isinstance(error, SyntaxError):
        file, line, text = error.filename, error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if Path(frame.filename) == path), frames[-1])
        file, line = last.filename, last.lineno
    return f"{type(error).__name__}: {text} ({Path(file or path).name}, line {line})"


# --- what is sent -----------------------------------------------------------------------------------------------


def sendable(modules: Iterable[str]) -> dict[str, Source]:
    """Return the texts of modules and of the packages that they are in; raises :class:`ConfigError` for one without.

    Every one of them has been imported here.
    """
    names = set[str]()
    for module in modules:
        parts = module.split(".")
        names |= {".".join(parts[: end + 1]) for end in range(len(parts))}
    found = {}
    for name in sorted(names):
        module = sys.modules[name]
        is_package = hasattr(module, "__path__")
        file = getattr(module, "__file__", None)
        text = text_of(module)
        if text is None and is_package and file is None:
            text, file = "", f"{name}/__init__.py"  # a folder without one
        if text is None or file is None:
            rule = f"is not Python source ({file}), so it cannot be sent to other processes"
            raise ConfigError("module", name, rule, "install it as a package wherever it is to run")
        found[name] = Source(text, str(file), is_package)
    return found
