"""The distribution: its entry points, what it imports, and how its classes take wrong values."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fedskew_more import METHODS

from algorithms import ALGORITHMS
from engine.algorithm import Requires
from engine.base.errors import ConfigError
from fedskew.lab.paper.citations import brought

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted((ROOT / "fedskew_more").glob("*.py"))


def test_entry_points_are_the_methods() -> None:
    """Kills: a method that fedskew would not find, or finds under another name than the tests use."""
    points = PROJECT["project"]["entry-points"]["fedskew.plugins"]
    found = {}
    for name, place in points.items():
        module, _, attribute = place.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    assert found == {f"algorithm.{name}": kind for name, kind in METHODS.items()}


def test_fedskew_is_all_that_it_knows() -> None:
    """Kills: a method that reaches into the engine past what is offered to packages."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        modules = {
            name.split(".")[0]
            for node in imports
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        assert not modules & {"engine", "algorithms", "tune_configs"}, path.name
        assert ast.get_docstring(tree)


@pytest.mark.parametrize("name", METHODS)
def test_brings_its_paper(name: str) -> None:
    """Kills: a method that nobody would cite, the entry of another paper, one that ``fedskew cite`` refuses."""
    text = importlib.import_module(METHODS[name].__module__).__doc__ or ""
    (entry,) = (brought("algorithm", name) or {}).values()
    about = re.search(r"\((\w+)[\w .]*? (\d{4}),\s(?:\w+,\s)?(arXiv|doi):([\w./]+)", text)
    assert about is not None
    surname, year, kind, number = about.groups()
    field = {"arXiv": "eprint", "doi": "doi"}[kind]
    for said in (f"author = {{{surname}, ", f"year = {{{year}}}", f"{field} = {{{number}}}", "booktitle = {"):
        assert said in entry
    assert entry.startswith(f"@inproceedings{{{surname.lower()}{year}") and entry in text


@pytest.mark.parametrize("name", METHODS)
def test_is_a_frozen_value(name: str) -> None:
    """Kills: state in self, a field that the config loses; an entry point of the contract that is only half there."""
    algorithm = ALGORITHMS.build({"name": name})
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert ALGORITHMS.build(ALGORITHMS.dump(algorithm)) == algorithm
    assert set(vars(algorithm)) == {field.name for field in dataclasses.fields(algorithm)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.anything = 1


def test_all_are_for_both_executors() -> None:
    """Kills: a method that says, or keeps to itself, that a block's clients cannot be trained in one pass."""
    for name, kind in METHODS.items():
        assert kind.requires.no_vmap == Requires().no_vmap, name


def test_symbols_name_fields() -> None:
    """Kills: a paper's symbol for a field that is not there."""
    for kind in METHODS.values():
        assert set(kind.symbols.values()) <= {field.name for field in dataclasses.fields(kind)}


def test_no_generator_is_global_and_no_number_is_read_off() -> None:
    """Kills: a draw that no key belongs to, a number read off a tensor in a client's step."""
    for path in SOURCES:
        text = path.read_text()
        for word in ("manual_seed(", "np.random", "import random", ".item()", "torch.rand(", "randperm("):
            assert word not in text, (path.name, word)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("feddyn", "alpha", 0.0),
        ("feddyn", "weighting", "rows"),
        ("fedntd", "beta", -1.0),
        ("fedntd", "tau", 0.0),
        ("fedlc", "tau", -0.1),
        ("fedrs", "alpha", 1.5),
        ("fedrs", "alpha", -0.1),
        ("fedrod", "gamma", -1.0),
        ("fedrod", "personal_epochs", -1),
        ("fedadam", "server_lr", 0.0),
        ("fedadam", "beta1", 1.0),
        ("fedyogi", "beta2", -0.1),
        ("fedyogi", "tau", 0.0),
        ("fedproto", "lam", -0.5),
        ("fedbn", "server_lr", 0.0),
    ],
)
def test_bad_values_are_refused(name: str, field: str, value: Any) -> None:
    """Kills: a missing check, an error that does not say which field, what it must be and what to do."""
    with pytest.raises(ConfigError, match=rf"^algorithm\.{field}={value}: must be .+") as error:
        ALGORITHMS.build({"name": name, field: value})
    assert error.value.repair or field == "weighting"


def test_every_field_says_what_it_is() -> None:
    """Kills: a hyper-parameter without a word."""
    for kind in METHODS.values():
        for line in inspect.getsource(kind).splitlines():
            if line.startswith("    ") and ": " in line and " = " in line and line.strip()[0].islower():
                name = line.strip().partition(":")[0]
                if name in {field.name for field in dataclasses.fields(kind)} and name != "weighting":
                    assert "  # " in line, (kind.__name__, line)
