"""The board: rows of methods with what was chosen for each, by an entry of the ledger or by a folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from engine.results.loading import load
from fedskew.lab.ledger import BoardRow, board_page, compared, read, record, rows_of, rows_of_methods, write
from fedskew.lab.tuned_sides import Candidate, TunedSide, from_mappings
from fedskew.lab.tuned_sides import write as write_choices
from tests.lab.test_ledger import stated_of
from tests.support.sweep_folders import make_sweep

METHODS = [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}, {"name": "fedavgm"}]
AXIS = {"name": "algorithm", "key": "algorithm", "kind": "grid", "values": METHODS, "log": False}
LEADS = {"fedavg": (0.0, 0.0, 0.0), "fedprox": (0.05, 0.06, 0.055), "fedavgm": (0.06, 0.04, 0.059)}


def final(setting: Mapping[str, Any], seed: int) -> float:
    return 0.5 + seed / 10 + LEADS[setting["algorithm"]["name"]][seed]


def side(method: dict[str, Any], best: int) -> TunedSide:
    rates = [0.01, 0.1, 0.3]
    order = [rates[best], *(rate for rate in rates if rate != rates[best])]
    tried = tuple(Candidate({"local.lr": rate, "algorithm.form": "x"}, 0.9 - rate) for rate in order)
    return TunedSide({"algorithm": method}, tried, (1000,), "accuracy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = make_sweep(
        tmp_path / "made",
        axes=(AXIS,),
        rounds=3,
        accuracy=final,
        client_rows=False,
        reference="made.headline",
        overrides=[],
        metric="accuracy",
        target_accuracy=0.65,
    )
    write_choices(found, [side(METHODS[0], 1), side(METHODS[1], 2), side(METHODS[2], 1)])
    return found


def row(name: str, *values: float, **more: Any) -> BoardRow:
    return BoardRow(name, {}, False, dict(enumerate(values)), 0, {}, **more)


def test_rows_have_what_was_chosen_and_their_seeds(folder: Path) -> None:
    """Kills: another method's rate; the least of two words taken for an edge, or an edge that is not told; a row for
    each seed; rounds to a target of those seeds alone that came there."""
    results = load(folder)
    sides = from_mappings(
        [vars(one) | {"candidates": [vars(c) for c in one.candidates]} for one in map(side, METHODS, (1, 2, 1))]
    )
    found = rows_of_methods(results, sides, ("rounds_to_target",))
    assert [one.method for one in found] == ["fedavg", "fedprox(mu=0.1)", "fedavgm"]
    assert [one.words for one in found] == [f"local.lr={rate} algorithm.form=x" for rate in ("0.1", "0.3", "0.1")]
    assert [one.edge for one in found] == [False, True, False]
    assert found[1].seeds == pytest.approx({0: 0.55, 1: 0.66, 2: 0.755}, abs=0.002)  # of few rows
    assert found[0].others["rounds_to_target"] == math.inf  # two of three seeds never come to the target
    assert found[1].others["rounds_to_target"] < 4


def test_rows_are_compared_seed_by_seed() -> None:
    """Kills: unpaired intervals, one that is not widened for the number of methods, the order turned round, a method
    whose seeds all failed among the best, a lead of FedAvg over itself."""
    rows = [row("fedavg", 0.5, 0.6, 0.7), row("b", 0.55, 0.66, 0.755), row("c", 0.56, 0.64, 0.759), row("d")]
    found = compared(rows, larger=True)
    assert [one.method for one in found] == ["b", "c", "fedavg", "d"]
    low, high = stats.t.interval(0.95, 2, loc=0.055, scale=0.005 / math.sqrt(3))
    assert found[0].ahead == pytest.approx((0.055, low, high))
    assert math.isnan(found[2].ahead[0]) and math.isnan(found[3].mean)
    assert [one.level for one in found] == [True, True, False, False]
    wide = compared([*rows, *(row(f"worse {n}", 0.1, 0.1, 0.1 + n / 1000) for n in range(40))], larger=True)
    assert [one.level for one in wide[:3]] == [True, True, True]  # 0.055 +- 0.012, at 1 - 0.05 / 42 +- 0.083
    assert [one.method for one in compared(rows[:3], larger=False)] == ["fedavg", "c", "b"]


def test_a_seed_that_is_lacking_is_no_merit(tmp_path: Path) -> None:
    """Kills: a mean of fewer seeds before all others, whether they failed or have not ended; an interval that is none
    as a tie."""
    part = make_sweep(
        tmp_path / "part", axes=(AXIS,), rounds=3, client_rows=False, metric="accuracy", killed=[3, 4], failed=[6]
    )
    assert [one.lacks for one in rows_of_methods(load(part), [], ())] == [0, 2, 1]
    lucky = replace(row("lucky", 0.9), lacks=2)
    found = compared([row("fedavg", 0.5, 0.6, 0.7), lucky, row("b", 0.55, 0.66, 0.755)], larger=True)
    assert [(one.method, one.level) for one in found] == [("b", True), ("fedavg", False), ("lucky", False)]
    found = compared([row("fedavg", 0.5, 0.6, 0.7), row("other seeds")], larger=True)
    assert [one.level for one in found] == [True, False]


def test_the_page_has_a_row_for_each_method(folder: Path, tmp_path: Path) -> None:
    """Kills: a board without its setting, its code's age or why a method is on none; a line that cannot be pasted; a
    sweep without claims that has a section among the claims."""
    entry = read(write(tmp_path / "ledger", record(folder, stated_of(folder))))
    (found,) = [one for one in rows_of([stated_of(folder)], [entry], lambda _: stated_of(folder)) if one.entry]
    found = replace(found, since=())
    text = board_page([found, replace(found, entry=None)], {"cbfl": "needs BatchNorm"})
    assert (
        "fashion_mnist_sample; mlp; 20 clients; 3 rounds; 3 candidates each on\n0 seeds; 9 trials" in text
        and "- cbfl: needs BatchNorm" in text
    )
    first = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert re.match(r"\| 1 \| \*\*fedprox\(mu=0.1\)\*\* \| `local.lr=0.3 algorithm.form=x` ‡ \| 65.\d \(", first)
    assert re.search(r"\| \+5.\d \(\+[34].\d to \+[67].\d\) \|", first)
    assert "earlier version" not in text
    assert "lacks" not in text.partition("##")[2]
    short = replace(entry, trials=({**entry.trials[0], "status": "missing"}, *entry.trials[1:]))
    assert re.search(r"\| 3 \| fedavg \| .*\), lacks 1 seed \|", board_page([replace(found, entry=short)], {}))
    old = board_page([replace(found, since=("its code has changed",))], {})
    assert "**Of an earlier version:** its code has changed." in old
