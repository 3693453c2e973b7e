"""Facts of algorithms that stand somewhere already: docs/algorithms.md, the equations, what was measured."""

from __future__ import annotations

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
from docs.site.place import DOCS, ROOT


@dataclass(frozen=True)
class Told:
    """An algorithm's row of docs/algorithms.md."""

    paper: str
    changes: str
    neutral: str


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


def _rows(page: str, head: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table that begins with ``head``."""
    table = page[page.index(head) :].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip().strip("|").split("|")]
