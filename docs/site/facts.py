"""Facts of algorithms that stand somewhere already: docs/algorithms.md, the table of keys, comments of fields."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from algorithms import ALGORITHMS
from docs.site.comments import comment_of
from docs.site.place import DOCS, ROOT


@dataclass(frozen=True)
class Told:
    """An algorithm's row of docs/algorithms.md."""

    paper: str
    changes: str
    neutral: str


@dataclass(frozen=True)
class Field:
    """A hyper-parameter of one algorithm."""

    name: str
    default: str  # as YAML has it
    range: str
    neutral: str
    meaning: str


@cache
def told() -> Mapping[str, Told]:
    """Return the row of each algorithm in docs/algorithms.md."""
    found = {}
    for row in _rows((DOCS / "algorithms.md").read_text(encoding="utf-8"), "| algorithm | paper |"):
        names, paper, changes, neutral = row
        found |= {name: Told(paper, changes, neutral) for name in re.findall(r"`(\w+)`", names)}
    return found


@cache
def equations() -> Mapping[str, Any]:
    """Return what docs/algorithms/equations.yaml says."""
    return yaml.safe_load((DOCS / "algorithms" / "equations.yaml").read_text(encoding="utf-8"))


def fields(name: str) -> list[Field]:
    """Return the hyper-parameters of an algorithm, in the order in which it declares them."""
    return [_field(name, field) for field in dataclasses.fields(ALGORITHMS[name])]


def file_of(kind: type) -> Path:
    """Return the file in which a class stands."""
    return Path(inspect.getfile(kind)).resolve()


def bases(name: str) -> list[type]:
    """Return the classes of algorithms/ that an algorithm is built on, the nearest first."""
    return [kind for kind in ALGORITHMS[name].__mro__[1:] if kind.__module__.startswith("algorithms.")]


def measured(name: str) -> tuple[str, float] | None:
    """Return the network and the time of local work, by FedAvg's, as benchmarks/method_cost.py measured it last."""
    results = json.loads((ROOT / "benchmarks" / "results" / "method_cost.json").read_text(encoding="utf-8"))
    for network, entries in results["workloads"].items():
        for entry in entries.values():
            if entry["method"] == name != "fedavg":
                return network, entry["by_fedavg"]
    return None


@cache
def _keys() -> Mapping[str, list[str]]:
    page = (DOCS / "config.md").read_text(encoding="utf-8")
    return {row[0].strip("`"): row for row in _rows(page, "| key |")}


def _field(name: str, field: dataclasses.Field[Any]) -> Field:
    _, _, kind, _, neutral, meaning = _keys()[f"algorithm.{field.name}"]
    declared = ALGORITHMS[name].neutral or {}
    neutral = _written(declared[field.name]) if field.name in declared else neutral
    return Field(
        field.name,
        _written(field.default),
        kind,
        neutral,
        _comment(ALGORITHMS[name], field.name) or _own(meaning, name),
    )


def _own(meaning: str, name: str) -> str:
    """Return what the table of keys says of a field that several algorithms share, without what is others' alone."""
    clauses = [re.sub(r", (\w+): [^,;]+", lambda one: "" if one[1] in ALGORITHMS else one[0], clause)
               for clause in meaning.split("; ")]  # fmt: skip
    of_others = [clause for clause in clauses if re.split(r"\W", clause)[0] in {*ALGORITHMS} - {name}]
    return "; ".join(clause for clause in clauses if clause not in of_others)


def _comment(kind: type, name: str) -> str:
    """Return the comment of a field where it is declared last; "" if there is none."""
    for owner in kind.__mro__:
        if name in inspect.get_annotations(owner):
            lines = _lines(owner)
            place = next(number for number, line in enumerate(lines, 1) if re.match(rf"    {name}:", line))
            last = next(n for n in range(place, len(lines) + 1) if _whole("\n".join(lines[place - 1 : n])))
            return comment_of(lines, place, last)
    return ""


@cache
def _lines(kind: type) -> list[str]:
    return inspect.getsource(kind).splitlines()


def _whole(text: str) -> bool:
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    return code.count("(") + code.count("[") == code.count(")") + code.count("]")


def _written(value: Any) -> str:
    return yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True).split("\n")[0]


def _rows(page: str, head: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table that begins with ``head``."""
    table = page[page.index(head) :].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip().strip("|").split("|")]
