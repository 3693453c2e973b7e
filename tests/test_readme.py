"""README and the pages that it hands on to keep their word: commands, files, names and tables exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from engine.data import PARTITIONS, SOURCES
from engine.models import MODELS
from engine.sweeps.named import load
from engine.sweeps.planning import plan
from fedskew.cli.listing import LISTS
from fedskew.cli.naming import cell, find_experiment
from tune_configs import EXPERIMENTS, SWEEPS

ROOT = Path(__file__).parent.parent
README, TOUR, HOUSE, ALGORITHM_TABLE, INSTALLING = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in ("README.md", "docs/tour.md", "docs/house.md", "docs/algorithms.md", "docs/installing.md")
)
COMMANDS = [
    line.strip()
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", README + TOUR, re.S)
    for line in block.splitlines()
]


def test_make_targets_exist() -> None:
    """Kills: a renamed target."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {word for line in COMMANDS for word in re.findall(r"\bmake ([a-z]+)", line)}
    assert {"demo", "test"} <= used <= targets
    assert README.index("make demo") < 1500  # on the first screen
    assert README.index("make test") < 1500


def test_run_commands_are_valid_experiments() -> None:
    """Kills: a key or a value in an example that the engine would refuse."""
    runs = [shlex.split(line.partition("#")[0]) for line in COMMANDS if re.match(r"fedskew run (?!--with|\S+:)", line)]
    assert len(runs) >= 3
    for words in runs:
        rest = [word for word in words[2:] if not word.startswith("--")]
        name = rest.pop(0) if rest and "=" not in rest[0] else "quickstart"
        if name in EXPERIMENTS:
            experiment, _ = find_experiment(name, "laptop")
            experiment.override(rest)


def arguments(line: str) -> tuple[str, list[str], str]:
    """Of a command after its first two words: the name, key=value pairs, the profile."""
    words = shlex.split(line.partition("#")[0])[2:]
    profile = words[words.index("--profile") + 1] if "--profile" in words else "laptop"
    return words[0], [word for word in words[1:] if "=" in word and not word.startswith("--")], profile


def test_sweep_commands_are_valid_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a sweep, an override or an example of one's own that the engine would refuse."""
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "Sweep(" in block)
    (tmp_path / "mine.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    lines = [line for line in COMMANDS if line.startswith("fedskew sweep ")]
    assert len(lines) >= 3
    for line in lines:
        name, overrides, profile = arguments(line)
        assert plan(load(name, profile, overrides, SWEEPS).sweep), line


def test_cells_are_those_of_our_sweeps() -> None:
    """Kills: a sweep or a cell that is called otherwise now."""
    names = [arguments(line)[0] for line in COMMANDS if re.match(r"fedskew run [a-z](?!\S+:)", line)]
    sweeps = [name for name in names if name.partition(".")[0] in SWEEPS and name not in EXPERIMENTS]
    assert sweeps
    for name in sweeps:
        assert load(name, "laptop", [], SWEEPS)
    cells = re.findall(r"\brun (\w+\.\w+:\S+)", TOUR)
    assert cells
    for name in cells:
        assert cell(name, "laptop") is not None


def test_the_run_that_is_shown_is_the_quickstart() -> None:
    """Kills: a README, or a page, that shows the output of an experiment that is no more."""
    digest = EXPERIMENTS["quickstart"]().override(["execution.device=cpu"]).resolve().digest
    assert f"runs/quickstart-{digest}" in README
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    assert set(re.findall(r"quickstart-([0-9a-f]{12})", "\n".join([README, *pages]))) == {digest}


def test_lists_exist() -> None:
    """Kills: a list that is no longer offered."""
    listed = {word for line in COMMANDS for word in re.findall(r"fedskew list ([a-z]+)", line)}
    assert listed <= {*LISTS, "experiments", "sweeps"}


def test_linked_and_named_files_exist() -> None:
    """Kills: a file that moved."""
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")}
    files = r"`((?:engine|fedskew|algorithms|tune_configs|docs|benchmarks|tests)/[\w/.]+)`"
    named = set(re.findall(files, README + HOUSE))
    assert len(links) > 10 and len(named) > 10
    for path in links | named:
        assert (ROOT / path).exists(), path


def test_the_tables_of_what_there_is_are_complete() -> None:
    """Kills: an algorithm that nobody finds."""
    for registry in (ALGORITHMS, SOURCES, PARTITIONS, MODELS):
        for name in registry:
            assert f"`{name}`" in ALGORITHM_TABLE, name


def test_every_dependency_has_its_reason() -> None:
    """Kills: a dependency that came in without one; an extra that nobody is told of."""
    project = (ROOT / "pyproject.toml").read_text()
    names = re.findall(r'^    "([a-z]+)[\[><]', project.partition("dependencies = [")[2].partition("]\n")[0], re.M)
    assert len(names) >= 12
    for name in names:
        assert re.search(rf"^\| {name}\b", INSTALLING, re.M), name
    optional = project.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    extras = re.findall(r"^(\w+) = \[", optional, re.M)
    assert len(extras) >= 6 and sorted(re.findall(r"^\| `(\w+)` \|", INSTALLING, re.M)) == sorted(extras)
