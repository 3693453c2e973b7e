"""The claims of the papers, by the algorithm that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from algorithms import ALGORITHMS
from docs.site.place import ROOT
from engine.sweeps.named import load
from fedskew.cli.claims import ledger
from fedskew.lab.ledger.page import anchor
from fedskew.lab.ledger.rows import Row, SweepRows, counted_rows
from fedskew.lab.wording import escaped
from tune_configs import SWEEPS

Found = tuple[SweepRows, Row]


def by_algorithm() -> tuple[Mapping[str, list[Found]], Mapping[str, int]]:
    """Return the claims that say something good of an algorithm, and how many hold others against it."""
    about: dict[str, list[Found]] = {}
    against: dict[str, int] = {}
    for sweep, row in counted_rows(ledger(ROOT)):
        better, worse = set(_named(row.claim.better)), set(_named(row.claim.worse))
        if not better | worse:
            better = {_base(sweep.name, sweep.profile)}
        for name in better or worse:
            about.setdefault(name, []).append((sweep, row))
        for name in worse - better if better else ():
            against[name] = against.get(name, 0) + 1
    return about, against


def table(found: list[Found]) -> str:
    """Return claims as a table, each with a link to its sweep's section of the ledger."""
    rows = [
        f"| {escaped(row.claim.text)} | {escaped(row.claim.source)} "
        f"| [{row.word}](../claims.md#{anchor(sweep)}) | {row.effect} |"
        for sweep, row in found
    ]
    return "\n".join(["| claim | source | verdict | effect, 95 % interval |", "|---|---|---|---|", *rows])


def _named(setting: Mapping[str, Any]) -> Iterator[str]:
    """Yield the algorithms that a part of a setting names; a stage that changes nothing counts as none."""
    for axis, value in setting.items():
        if axis.endswith("algorithm") and isinstance(value, Mapping) and value.get("epochs") != 0:
            yield str(value["name"])
        elif axis.endswith("algorithm.name"):
            yield str(value)


def _base(name: str, profile: str) -> str:
    return ALGORITHMS.name_of(load(name, profile, [], SWEEPS).sweep.base.chain[-1].algorithm)
