"""The house: which module may import which, and which may know Ray."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for package in ("engine", "algorithms", "tune_configs") for path in (ROOT / package).rglob("*.py")
)


def imports(path: Path, at_import_only: bool = False) -> set[str]:
    """The modules a file imports; those under ``if TYPE_CHECKING`` are no imports."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if at_import_only and isinstance(node, ast.FunctionDef):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_dependencies_point_one_way(path: Path) -> None:
    """Kills: an engine that knows its algorithms, an algorithm that reaches into the engine."""
    found = imports(path)
    roots = {module.partition(".")[0] for module in found}
    if name(path).startswith("engine/"):
        if name(path) != "engine/experiment/experiment.py":
            assert "algorithms" not in roots
        if not name(path).startswith("engine/cli/"):
            assert "tune_configs" not in roots
    if name(path).startswith("algorithms/"):
        allowed = (
            "engine.algorithm",
            "engine.base.errors",
            "engine.algorithm.labels",
            "engine.models.model",  # the drawing of weights, for networks beside the model
            "engine.models.outline",  # what a check may know of a model
            "engine.algorithm.moments",
            "engine.base.registry",
        )
        assert all(module.startswith(allowed) for module in found if module.startswith("engine."))
        assert "ray" not in roots
        assert "tune_configs" not in roots


def knows_ray(path: Path) -> bool:
    return name(path).startswith(("engine/ray_", "engine/sweeps/"))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_ray_is_known_where_it_is_used(path: Path) -> None:
    """Kills: an in-process run that waits for Ray to be imported; private Ray API."""
    found = imports(path)
    if name(path).startswith("tune_configs/"):  # search spaces are in Ray Tune's own words
        found -= {"ray", "ray.tune"}
    if not knows_ray(path):
        assert not {module for module in found if module.partition(".")[0] == "ray"}
    assert not {module for module in found if module.startswith("ray.") and "._" in module}


def test_an_in_process_run_imports_no_ray() -> None:
    """Kills: a module of the main path that imports the Ray side when it is imported."""
    ray_side = ("engine.ray_", "engine.sweeps", "ray")
    for path in SOURCES:
        # The sweeps of tune_configs are themselves imported where a sweep is asked for.
        if not knows_ray(path) and not name(path).startswith("tune_configs/"):
            found = imports(path, at_import_only=True)
            assert not {module for module in found if module.startswith(ray_side)}, name(path)
    assert not {module for module in imports(ROOT / "tune_configs/__init__.py") if "drift" in module}


def test_no_generator_is_global() -> None:
    """Kills: a draw that depends on what was drawn before."""
    for path in SOURCES:
        text = path.read_text()
        for word in ("torch.manual_seed(", "np.random.seed(", "random.seed(", "torch.randperm(n)", "import random\n"):
            assert word not in text, (name(path), word)


def test_every_module_says_what_it_is_for() -> None:
    """Kills: a file without a first sentence."""
    for path in SOURCES:
        assert ast.get_docstring(ast.parse(path.read_text())), name(path)


def test_nothing_is_left_undone() -> None:
    """Kills: a stub, a machine's path."""
    for path in [*SOURCES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        text = path.read_text()
        for word in ("NotImplementedError", "TODO", "FIXME", "/work/", "/root/"):
            assert word not in text, (name(path), word)
