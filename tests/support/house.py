"""The source files of the house: who imports whom, who stands where, how long things are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "algorithms", "tune_configs", "fedskew")
IN_FEDSKEW = ("testing", "trackers", "lab", "cli")  # the folders there; its own modules are the face
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Import:
    """One module that another one names."""

    importer: str
    imported: str
    line: int
    when: str  # "import" | "type" (under TYPE_CHECKING) | "lazy" (inside a function)

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} -> {self.imported} ({self.when})"


@dataclass(frozen=True)
class House:
    """The modules under ``root``, with everything that they import: type-only and lazy imports included."""

    root: Path

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Files by module; a package is its ``__init__``."""
        found = {}
        for package in PACKAGES:
            for path in sorted((self.root / package).rglob("*.py")):
                parts = path.relative_to(self.root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        return {module: ast.parse(path.read_text()) for module, path in self.files.items()}

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import of every module, of the standard library and of other packages, too."""
        return tuple(
            found
            for module, tree in self.trees.items()
            for found in self._imports_of(module, tree, "import")
            if found.imported != module
        )

    @property
    def inner(self) -> list[Import]:
        """The imports that stay within the house."""
        return [found for found in self.imports if found.imported in self.files]

    def _imports_of(self, module: str, node: ast.AST, when: str) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, when)
        elif isinstance(node, ast.ImportFrom):
            source = self._source(module, node)
            for alias in node.names:
                full = f"{source}.{alias.name}"  # of other packages it is not known what is a module
                inner = source.partition(".")[0] in PACKAGES and full not in self.files
                yield Import(module, source if inner else full, node.lineno, when)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from self._imports_of(module, child, "type")
            for child in node.orelse:
                yield from self._imports_of(module, child, when)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from self._imports_of(module, child, "lazy" if inside else when)

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name behind ``from ... import``."""
        if not node.level:
            return node.module or ""
        is_package = self.files[module].name == "__init__.py"
        base = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
        return ".".join([*base, *([node.module] if node.module else [])])


def room(module: str) -> str:
    """``client`` of ``engine.client.trainer``, ``fedskew.lab`` of what is in it; else the first name."""
    parts = module.split(".")
    if parts[0] == "fedskew":
        return ".".join(parts[:2]) if len(parts) > 1 and parts[1] in IN_FEDSKEW else "fedskew"
    return parts[1] if parts[0] == "engine" and len(parts) > 1 else parts[0]


def upward(house: House, order: tuple[str, ...]) -> list[Import]:
    """Imports of a room by one that stands before it."""
    return [
        found
        for found in house.inner
        if found.imported != "engine" and order.index(room(found.imported)) > order.index(room(found.importer))
    ]


def circles(house: House) -> list[list[str]]:
    """Modules that import one another, however far round; each group sorted."""
    return connected(house.files, [(found.importer, found.imported) for found in house.inner])


def folder(house: House, module: str) -> str:
    """The folder that a module lies in, with dots: a package's ``__init__`` lies in the package's own folder."""
    return module if house.files[module].name == "__init__.py" else module.rpartition(".")[0]


def folder_circles(house: House, package: str) -> list[list[str]]:
    """Folders below ``package`` that import one another, however far round: a folder and one within it are two."""
    inside = [found for found in house.inner if {package} == {package_of(found.importer), package_of(found.imported)}]
    return connected(
        sorted({folder(house, module) for module in house.files if package_of(module) == package}),
        [(folder(house, found.importer), folder(house, found.imported)) for found in inside],
    )


def package_of(module: str) -> str:
    """``engine`` of ``engine.client.trainer``."""
    return module.partition(".")[0]


def connected(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of at least two nodes that lead to one another, however far round; each sorted (Tarjan's algorithm)."""
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    for origin, target in edges:
        targets[origin].append(target)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in targets[node]:
            if target not in number:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], number[target])
        if lowest[node] == number[node]:
            at = stack.index(node)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                groups.append(group)

    for node in targets:
        if node not in number:
            visit(node)
    return sorted(groups)


def too_long(house: House, lines: int, methods: int, function: int) -> list[str]:
    """Modules, classes and functions beyond these limits, each with its size."""
    found = []
    for module, tree in house.trees.items():
        length = len(house.files[module].read_text().splitlines())
        if length > lines:
            found.append(f"{module}: {length} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                count = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
                if count > methods:
                    found.append(f"{module}.{node.name}: {count} methods")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > function:
                    found.append(f"{module}.{node.name}: {length} lines")
    return found
