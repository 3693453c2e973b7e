"""The house: which room may import which, which module may know Ray, how large things may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.mutants.__main__ import found
from tests.support.house import (
    PACKAGES,
    ROOT,
    SOURCES,
    House,
    Import,
    circles,
    folder_circles,
    name,
    package_of,
    room,
    too_long,
    upward,
)
from tests.support.measure import Sizes, code_lines
from tests.support.tiers import is_long

# From the ground up: a room imports itself and rooms before it, type-only and lazy imports included.
ROOMS = (
    "base",
    "algorithm",
    "models",
    "algorithms",
    "data",
    "experiment",
    "client",
    "record",
    "worker",
    "server",
    "run",
    "results",
    "sweeps",
    "tune_configs",
    "fedskew.testing",
    "fedskew.trackers",
    "fedskew.lab",
    "fedskew.cli",
    "fedskew",
)
OUTSIDE = {one for one in ROOMS if one.startswith("fedskew")} | {"algorithms", "tune_configs"}  # beside the engine
HOUSE = House(ROOT)

# What an algorithm may know: the contract, the ground, how weights are drawn, what a check may know of a model.
KNOWN_TO_ALGORITHMS = ("engine.algorithm", "engine.base", "engine.models.model", "engine.models.outline")
# Limits of what ``python -m tests.support.measure`` prints. The aims: 20,000 and 8,500 lines of code, 35,000 words of
# docs, 150 lines of README.
CODE_LINES = {"engine": 24_011, "fedskew": 11_419, "algorithms": 3_531}
REPEATED_NAMES = 40
DOCS_WORDS = 35_000
README_LINES = 150

RAY = ("engine.worker.ray", "engine.run.driver_actor", "engine.sweeps")
AROUND_SWEEPS = ("fedskew.lab.sweeping",)


def check_none(found: Iterable[object]) -> None:
    """Fail with every place, one a line."""
    lines = sorted({str(one) for one in found})
    assert not lines, "\n".join(["", *lines])


def inside(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


# --- the order of rooms -------------------------------------------------------------------------------


def test_the_rooms_are_these() -> None:
    """Kills: a room, or a module beside the rooms, that the order does not name; more rooms than a reader takes in."""
    entries = {path.name for path in (ROOT / "engine").iterdir() if path.name not in ("__init__.py", "__pycache__")}
    assert entries == set(ROOMS) - OUTSIDE
    assert len(entries) <= 15


def test_nothing_is_imported_upwards() -> None:
    """Kills: a room that knows one above it, if only by a type or inside a function."""
    check_none(upward(HOUSE, ROOMS))


def test_no_circle() -> None:
    """Kills: modules that cannot be read one after the other, if only for their types or inside functions."""
    check_none(" <-> ".join(group) for group in circles(HOUSE))


def test_no_circle_of_folders() -> None:
    """Kills: two folders that can only be read together, though no two of their files are a circle."""
    found = [group for package in ("engine", "fedskew") for group in folder_circles(HOUSE, package)]
    check_none(" <-> ".join(group) for group in found)


def test_the_engine_knows_nothing_of_fedskew() -> None:
    """Kills: pictures, trackers, progress bars, verdicts or commands that a run or a sweep reaches for."""
    check_none(found for found in HOUSE.inner if leaves_the_engine(found))


def leaves_the_engine(found: Import) -> bool:
    return package_of(found.importer) == "engine" and package_of(found.imported) == "fedskew"


def test_packages_beside_the_engine_are_known_in_one_place() -> None:
    """Kills: an engine that knows its algorithms or its sweeps; modules that are loaded by a name made up elsewhere."""
    wrong = [
        found
        for found in HOUSE.inner
        if room(found.imported) in {"algorithms", "tune_configs"} - {room(found.importer)}
        and (room(found.imported), room(found.importer)) != ("algorithms", "experiment")
        and room(found.importer) not in ("fedskew", "fedskew.cli")  # the doors for users, which name everything
    ]
    check_none(wrong)
    by_name = {module for module in HOUSE.files if "import_module(" in HOUSE.files[module].read_text()}
    # tune_configs by the name of a sweep; a file that the user named; the stubs of the face
    assert by_name <= {"engine.sweeps.named", "engine.base.own_modules", "fedskew", "fedskew.lazy"}


def test_algorithms_know_the_contract_alone() -> None:
    """Kills: an algorithm that reaches into the engine."""
    wrong = [
        found
        for found in HOUSE.imports
        if room(found.importer) == "algorithms"
        and inside(found.imported, "engine", "tune_configs", "ray")
        and not inside(found.imported, *KNOWN_TO_ALGORITHMS)
    ]
    check_none(wrong)


def made(folder: Path, **sources: str) -> House:
    """A house of modules whose names have __ for dots."""
    for module, text in sources.items():
        path = folder / f"{module.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(folder)


TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
LAZY = "def later():\n    "
IN_A_CLASS = "class Lazy:\n    def later(self):\n        if True:\n            "
IMPORTS = {
    "from engine.run.main import main": "import",
    "import engine.run.main": "import",
    "from engine.run import main": "import",
    "from ..run.main import main": "import",
    "from ..run import main as other": "import",
    f"{TYPE_ONLY}from engine.run.main import main": "type",
    f"{LAZY}from engine.run.main import main": "lazy",
    f"{LAZY}import engine.run.main as main": "lazy",
    f"{IN_A_CLASS}from engine.run.main import main": "lazy",
}


@pytest.mark.parametrize("text", IMPORTS)
def test_one_import_upwards_is_found(tmp_path: Path, text: str) -> None:
    """Kills: a rule that never matches, one that passes over types, functions or relative names."""
    house = made(tmp_path, engine__base__errors=text, engine__run__main="from engine.base import errors\n")
    (found,) = upward(house, ROOMS)
    assert (found.importer, found.imported, found.when) == ("engine.base.errors", "engine.run.main", IMPORTS[text])
    assert circles(house) == [["engine.base.errors", "engine.run.main"]]


def test_one_import_downwards_is_none(tmp_path: Path) -> None:
    """Kills: a rule that always matches."""
    sources = {"engine__base__errors": "import os\n", "engine__base__files": "from engine.base import errors\n"}
    house = made(tmp_path, **sources, engine__run__main=f"{LAZY}from engine.base.files import errors\n")
    assert upward(house, ROOMS) == []
    assert circles(house) == []


@pytest.mark.parametrize("text", ["import engine.base.c", f"{TYPE_ONLY}from . import c", f"{LAZY}from .c import x"])
def test_a_circle_in_a_room_is_found(tmp_path: Path, text: str) -> None:
    """Kills: circles that are looked for between two modules alone, or at import time alone."""
    modules = {
        "a": "from engine.base import b",
        "b": text,
        "c": "from engine.base.a import x",
        "d": "import engine.base.a",
    }
    house = made(tmp_path, **{f"engine__base__{module}": source for module, source in modules.items()})
    assert circles(house) == [[f"engine.base.{module}" for module in "abc"]]


BELOW = ["import engine.base.files.x", f"{TYPE_ONLY}from .files import x", f"{LAZY}from .files.x import y"]
ABOVE = ["import fedskew.cli", f"{TYPE_ONLY}from fedskew import cli", f"{LAZY}import fedskew.cli"]


@pytest.mark.parametrize("text", BELOW)
def test_a_circle_of_folders_is_found(tmp_path: Path, text: str) -> None:
    """Kills: circles that are looked for between files alone; a folder and one within it that are taken for one."""
    house = made(
        tmp_path,
        engine__base____init__="",
        engine__base__a=text,
        engine__base__b="x = 1",
        engine__base__files____init__="",
        engine__base__files__x="from engine.base import b",
        fedskew__cli__main="import engine.base.a",
    )
    assert circles(house) == []
    assert folder_circles(house, "engine") == [["engine.base", "engine.base.files"]]
    assert folder_circles(house, "fedskew") == []


@pytest.mark.parametrize("text", ABOVE)
def test_an_engine_that_knows_fedskew_is_found(tmp_path: Path, text: str) -> None:
    """Kills: a rule that never matches, one that passes over types or functions."""
    house = made(tmp_path, engine__base__a=text, fedskew__cli="import engine.base.a")
    assert [found.imported for found in house.inner if leaves_the_engine(found)] == ["fedskew.cli"]


# --- Ray ----------------------------------------------------------------------------------------------


def test_ray_is_known_where_it_is_used() -> None:
    """Kills: a room that cannot be read without Ray; private Ray API."""
    ray = [found for found in HOUSE.imports if inside(found.imported, "ray")]
    wrong = [
        found
        for found in ray
        if not inside(found.importer, *RAY)
        # Search spaces are in Ray Tune's own words.
        and not (inside(found.importer, "tune_configs") and found.imported == "ray.tune")
    ]
    check_none(wrong)
    check_none(found for found in ray if "._" in found.imported)
    tune = [found for found in ray if inside(found.imported, "ray.tune")]
    check_none(found for found in tune if not inside(found.importer, "engine.sweeps", "tune_configs"))


def test_an_in_process_run_imports_no_ray() -> None:
    """Kills: a module of the main path that imports the Ray side when it is imported."""
    # The sweeps of tune_configs are themselves imported where a sweep is asked for.
    wrong = [
        found
        for found in HOUSE.imports
        if found.when == "import"
        and not inside(found.importer, *RAY, *AROUND_SWEEPS, "tune_configs")
        and inside(found.imported, "ray", *RAY)
    ]
    check_none(wrong)
    assert not [found for found in HOUSE.imports if found.importer == "tune_configs" and "drift" in found.imported]


# --- sizes --------------------------------------------------------------------------------------------


def test_nothing_is_too_long() -> None:
    """Kills: a class that does everything, a file or a function that nobody reads to its end; the settings of a paper
    are tables, and as long as the paper's."""
    found = too_long(HOUSE, lines=500, methods=20, function=70)
    # The contract's methods are what an author may write, and all but two have a default.
    contract = "engine.algorithm.contract.Algorithm: 26 methods"
    check_none(one for one in found if not one.startswith("tune_configs.") and one != contract)


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    """Kills: limits that are off by one, methods of an inner class counted to the outer one."""
    method = "    def m{}(self):\n        pass\n"
    body = "class A:\n" + "".join(method.format(n) for n in range(3)) + "def f():\n    pass\n    pass\n"
    house = made(tmp_path, engine__base__a=body)
    assert too_long(house, 10, 3, 3) == []
    assert too_long(house, 9, 2, 2) == [
        "engine.base.a: 10 lines",
        "engine.base.a.A: 3 methods",
        "engine.base.a.f: 3 lines",
    ]


def test_the_house_stays_as_small_as_it_is() -> None:
    """Kills: code, pages and names that grow back."""
    sizes = Sizes(ROOT, PACKAGES)
    lines = {package: sum(sizes.below(package)) for package in CODE_LINES}
    check_none(f"{package}: {count} lines of code" for package, count in lines.items() if count > CODE_LINES[package])
    check_none([f"repeated names: {sizes.repeated}"] if len(sizes.repeated) > REPEATED_NAMES else [])
    check_none([f"docs: {sizes.docs_words} words"] if sizes.docs_words > DOCS_WORDS else [])
    check_none([f"README.md: {sizes.readme_lines} lines"] if sizes.readme_lines > README_LINES else [])


def test_lines_of_code_are_those_that_hold_code() -> None:
    """Kills: docstrings, comments or blank lines that count; a text or a call over several lines that counts as one."""
    module = '"""A module.\n\nIts purpose."""\n\n# A comment\nx = (\n    1,  # one\n\n)\n\n\n'
    function = 'def f():\n    "Says."\n    return """a\nb"""\n'
    assert code_lines(module) == 3
    assert code_lines(function) == 3
    assert code_lines(module + function) == 6


# --- words --------------------------------------------------------------------------------------------


def test_every_module_says_what_it_is_for() -> None:
    """Kills: a file without a first sentence."""
    check_none(module for module, tree in HOUSE.trees.items() if not ast.get_docstring(tree))


def test_every_room_says_what_it_is_for() -> None:
    """Kills: a room without its purpose and what to read first; one whose page is a book."""
    pages = {one: ast.get_docstring(HOUSE.trees[f"engine.{one}"]) or "" for one in ROOMS if one not in OUTSIDE}
    sentences = {one: len(re.findall(r"[.!?](?=\s+[A-Z]|$)", page)) for one, page in pages.items()}
    check_none(f"{one}: {count} sentences" for one, count in sentences.items() if not 2 <= count <= 4)
    check_none(f"{one} does not say what to read first" for one, page in pages.items() if "Read ``" not in page)


def test_no_generator_is_global() -> None:
    """Kills: a draw that depends on what was drawn before."""
    for path in SOURCES:
        text = path.read_text()
        for word in ("torch.manual_seed(", "np.random.seed(", "random.seed(", "torch.randperm(n)", "import random\n"):
            assert word not in text, (name(path), word)


def test_nothing_is_left_undone() -> None:
    """Kills: a stub, a machine's path."""
    for path in [*SOURCES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        text = path.read_text()
        for word in ("NotImplementedError", "TODO", "FIXME", "/work/", "/root/"):
            assert word not in text, (name(path), word)


CLOCKS = {"time.sleep", "time.monotonic", "time.perf_counter"}
# What waits for another process, without an end that a slow machine comes to.
WAITING = {"tests/support/waiting.py", "tests/support/two_nodes.py"}


def clocks(path: Path) -> list[str]:
    """Functions of a file that look at the clock or sleep, and are not of the long tier."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [
        f"{name(path)}: {function.name}"
        for function in functions
        if not any(ast.unparse(mark) == "pytest.mark.long" for mark in function.decorator_list)
        and any(isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCKS for node in ast.walk(function))
    ]


def test_the_short_tier_waits_for_no_clock() -> None:
    """Kills: a test that a slow machine fails, or that costs the time it sleeps."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if not is_long(path) and name(path) not in WAITING]
    check_none(found for path in files if "mutants" not in path.parts for found in clocks(path))


def test_a_look_at_the_clock_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a rule that never matches, and one that holds for the long tier."""
    monkeypatch.setattr("tests.support.house.ROOT", tmp_path)
    (tmp_path / "a.py").write_text("def f():\n    time.sleep(1)\n@pytest.mark.long\ndef g():\n    time.sleep(1)\n")
    assert clocks(tmp_path / "a.py") == ["a.py: f"]


def test_every_mutant_has_its_code_and_its_tests(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: code or a test that moves on and leaves behind the mutant that was to watch it."""
    assert found(ROOT) == 0, capsys.readouterr().out
