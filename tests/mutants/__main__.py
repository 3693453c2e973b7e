"""Run the mutants: ``python -m tests.mutants [--root TREE] [--only WORDS] [--out FILE] [--find]
[--long]``.

The tree is copied to a temporary folder, where one mutant after the other stands in for the code that is there. Each is
tried in a process of its own, forked from one that has imported torch and pytest already, with the named tests and
``-x``: killed, if a test fails; survived, if all pass; lost, where its code does not occur exactly once in the sources,
or a test is not there. Mutants that only tests of the long tier kill are marked so in the table, and tried with
``--long`` alone; the others must be killed by the short tier.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import io
import json
import os
import py_compile
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS, RENAMED, Mutant
from tests.support.tiers import is_long

ROOT = Path(__file__).parents[2]
SOURCES = ("engine", "algorithms", "tune_configs", "fedskew")
COPIED = (*SOURCES, "tests", "benchmarks", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile")
WARM = ("numpy", "torch", "pandas", "pyarrow.parquet", "scipy.stats", "pydantic", "yaml", "matplotlib", "ray")
LIMIT = 300  # seconds of one mutant


def copied(root: Path, folder: Path) -> None:
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (root / name).exists():
            shutil.copy(root / name, folder / name)
    # Compiled by content, not by date: a mutant may be as long as the code, and written within the same second.
    for name in SOURCES:
        compileall.compile_dir(folder / name, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


@cache
def sources(root: Path) -> dict[Path, str]:
    """The texts of a tree in which one mutant after the other takes its place and leaves it again."""
    return {path: path.read_text() for source in SOURCES for path in sorted((root / source).rglob("*.py"))}


def place(root: Path, mutant: Mutant) -> tuple[Path, str, str]:
    """The file, its text, and the wrong text. Raises LookupError where no spelling occurs exactly once."""
    texts = sources(root)
    counts = []
    for code, wrong in mutant.spellings:
        found = [(path, text) for path, text in texts.items() if code in text]
        counts.append(sum(text.count(code) for _, text in found))
        if counts[-1] == 1:
            path, text = found[0]
            return path, text, text.replace(code, wrong)
    raise LookupError(f"its code occurs {' or '.join(map(str, counts))} times")


def node_ids(root: Path, mutant: Mutant) -> list[str]:
    """The tests where they lie in this tree."""
    found = []
    for test in mutant.tests:
        file, _, name = test.partition("::")
        paths = list((root / "tests").rglob(file)) or list((root / "tests").rglob(RENAMED.get(file, file)))
        if len(paths) != 1 or (name and f"def {name}(" not in paths[0].read_text()):
            raise LookupError(f"there is no test {test}")
        found.append(paths[0].relative_to(root).as_posix() + (f"::{name}" if name else ""))
    return found


def of_the_long_tier(node: Path) -> bool:
    """Return whether a test, ``file.py::test_name`` or a whole file, is marked ``long`` or lies in a file that is."""
    file, _, name = str(node).partition("::")
    if is_long(Path(file)) or not name:
        return is_long(Path(file))
    tests = [item for item in ast.parse(Path(file).read_text()).body if isinstance(item, ast.FunctionDef)]
    [marks] = [[ast.unparse(mark) for mark in test.decorator_list] for test in tests if test.name == name]
    return "pytest.mark.long" in marks


def run_tests(root: Path, tests: list[str], log: Path, tier: str) -> int:
    """pytest's exit code, from a fork of this process."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(root)
            sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(ROOT)))]
            for module in [name for name in sys.modules if name.partition(".")[0] in (*SOURCES, "tests", "benchmarks")]:
                del sys.modules[module]
            os.environ["PYTHONPATH"] = str(root)
            with open(log, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--durations=0", f"--timeout={LIMIT}", "-m", tier]
            code = int(pytest.main([*options, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tried(root: Path, mutant: Mutant) -> dict[str, object]:
    """One line of the results."""
    told: dict[str, object] = {"name": mutant.name}
    try:
        path, text, wrong = place(root, mutant)
        tests = node_ids(root, mutant)
    except LookupError as error:
        return {**told, "outcome": "lost", "why": str(error)}
    log = root / "mutant.log"
    began = time.monotonic()
    path.write_text(wrong)
    try:
        code = run_tests(root, tests, log, "long" if mutant.long else "not long")
    finally:
        path.write_text(text)
    failed = [line.split()[1] for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR "))]
    outcome = {0: "survived", 1: "killed"}.get(code, "lost")
    told |= {
        "file": path.relative_to(root).as_posix(),
        "outcome": outcome,
        "seconds": round(time.monotonic() - began, 1),
    }
    if outcome == "killed":
        told["by"] = failed[:1]
    if outcome == "lost":
        told["why"] = f"pytest ended with {code}: {log.read_text()[-300:]}"
    return told


@contextlib.contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copied(root, Path(folder))
        yield Path(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree; another one has the same mutants")
    parser.add_argument("--only", default="", help="mutants whose name, or whose file, has these words")
    parser.add_argument("--out", type=Path, help="where the results go, as JSON")
    parser.add_argument("--long", action="store_true", help="those that only the long tier kills")
    parser.add_argument("--find", action="store_true", help="only look for the code and the tests")
    options = parser.parse_args()
    if options.find:
        return found(options.root)
    with contextlib.redirect_stderr(io.StringIO()):
        for module in WARM:
            __import__(module)
    results = []
    with copy_of(options.root.resolve()) as root:
        for mutant in MUTANTS:
            if mutant.long == options.long and (options.only in mutant.name or options.only in " ".join(mutant.tests)):
                results.append(tried(root, mutant))
                print(json.dumps(results[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(results, indent=1) + "\n")
    counts = {word: sum(one["outcome"] == word for one in results) for word in ("killed", "survived", "lost")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return int(counts["killed"] < len(results))


def found(root: Path) -> int:
    """Say which mutants have lost their code or their tests."""
    wrong = 0
    for mutant in MUTANTS:
        try:
            place(root, mutant)
            if mutant.long != all(of_the_long_tier(root / node) for node in node_ids(root, mutant)):
                raise LookupError(f"long={mutant.long} is not what its tests are")
        except LookupError as error:
            wrong += 1
            print(f"{mutant.name}: {error}")
    print(f"{len(MUTANTS) - wrong} of {len(MUTANTS)} are in place")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
