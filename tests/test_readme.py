"""The README keeps its word: its commands, files, names and tables exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from algorithms import ALGORITHMS
from engine.cli import LISTS, _experiment
from engine.data import PARTITIONS, SOURCES
from engine.models import MODELS
from tune_configs import EXPERIMENTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.strip() for block in re.findall(r"```(?:sh|console)\n(.*?)```", README, re.S) for line in block.splitlines()
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
    runs = [shlex.split(line.partition("#")[0]) for line in COMMANDS if line.startswith("fedskew run")]
    assert len(runs) >= 3
    for words in runs:
        rest = [word for word in words[2:] if not word.startswith("--")]
        name = rest.pop(0) if rest and "=" not in rest[0] else "quickstart"
        if name in EXPERIMENTS:
            experiment, _ = _experiment(name, "laptop")
            assert experiment is not None
            experiment.override(rest)


def test_the_run_that_is_shown_is_the_quickstart() -> None:
    """Kills: a README that shows the output of an experiment that is no more."""
    digest = EXPERIMENTS["quickstart"]().override(["execution.device=cpu"]).digest
    assert f"runs/quickstart-{digest}" in README
    assert set(re.findall(r"quickstart-([0-9a-f]{12})", README)) == {digest}


def test_lists_exist() -> None:
    """Kills: a list that is no longer offered."""
    listed = {word for line in COMMANDS for word in re.findall(r"fedskew list ([a-z]+)", line)}
    assert listed <= {*LISTS, "experiments", "sweeps"}


def test_linked_and_named_files_exist() -> None:
    """Kills: a file that moved."""
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")}
    named = set(re.findall(r"`((?:engine|algorithms|tune_configs|docs|benchmarks|tests)/[\w/.]+)`", README))
    assert len(links | named) > 10
    for path in links | named:
        assert (ROOT / path).exists(), path


def test_the_table_of_algorithms_is_complete() -> None:
    """Kills: an algorithm that nobody finds."""
    for registry in (ALGORITHMS, SOURCES, PARTITIONS, MODELS):
        for name in registry:
            assert f"`{name}`" in README, name


def test_every_dependency_has_its_reason() -> None:
    """Kills: a dependency that came in without one."""
    project = (ROOT / "pyproject.toml").read_text()
    names = re.findall(r'^    "([a-z]+)[\[><]', project.partition("dependencies = [")[2].partition("]\n")[0], re.M)
    assert len(names) >= 12
    for name in names:
        assert re.search(rf"^\| {name}\b", README, re.M), name
