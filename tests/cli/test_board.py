"""``fedskew board``: a method of one's own among those of the ledger's board."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedskew.cli import board as command
from fedskew.lab.ledger import record, write
from fedskew.lab.tuned_sides import write as write_choices
from tests.lab.test_board import AXIS, METHODS, final, side
from tests.lab.test_ledger import stated_of
from tests.support.sweep_folders import BASE, make_sweep

OWN = """from ray import tune

from engine.experiment import Experiment
from engine.sweeps.definition import Sweep
from engine.sweeps.tuned import Tuned


def board(profile):
    methods = tune.grid_search(["fedavg", "fedavgm"])
    tuned = [Tuned({{"algorithm": one}}, {{"local.lr": tune.grid_search([0.1, 0.2])}}) for one in ("fedavg", "fedavgm")]
    return Sweep(
        Experiment.from_mapping({base}),
        {{"algorithm": methods}},
        seeds=(0, 1, 2),
        metric="accuracy",
        tuned=tuple(tuned),
        tuning_rows=0.1,
    )
"""


def swept(folder: Path, methods: list[dict[str, Any]], **fields: Any) -> Path:
    """The folder that a sweep of these methods leaves."""
    found = make_sweep(
        folder,
        axes=({**AXIS, "values": methods},),
        rounds=3,
        accuracy=lambda setting, seed: final(setting, seed),  # as it is by then
        client_rows=False,
        metric="accuracy",
        overrides=[],
        **fields,
    )
    write_choices(found, [side(method, 1) for method in methods])
    return found


def test_ones_own_row_is_among_those_of_the_same_task(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a board of another task; a row of the board twice; one's own row left out or not told from the others;
    other figures of FedAvg, as of another machine, in silence; an earlier version that passes for today's."""
    ledger = tmp_path / "docs" / "claims"
    held_out = {"tuning_rows": 0.1, "tuning_seeds": [1000, 1001]}
    for name, fields in (("board.same", held_out), ("board.other", {**held_out, "tuning_rows": 0.2})):
        there = swept(tmp_path / name, METHODS[:2], reference=name, **fields)
        write(ledger, record(there, stated_of(there, name=name)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(base={**BASE, "rounds": 3}))

    def run(reference: str, profile: str, words: Any, out: Path, *_: Any) -> int:
        swept(out, [METHODS[0], METHODS[2]], reference=reference)
        return 0

    monkeypatch.setattr(command, "sweep", run)
    code, out, err = call("board", "mine.py", "--root", str(tmp_path))
    assert code == 0, err
    assert "board      of an earlier version: the sweep is no longer stated" in err
    assert "board.same: 2 methods" in err and "board.other" not in err and "other figures" not in err
    rows = [line.split()[:3] for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == ["fedprox(mu=0.1)", "fedavgm", "fedavg"]
    assert rows[1][2] == "(yours)" and "(yours)" not in rows[0]
    shutil.rmtree(tmp_path / "runs")
    code, out, err = call("board", "mine.py", "seeds=[3,4]", "--root", str(tmp_path))
    assert code == 0 and "board      none in" in err and "fedprox" not in out
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr("tests.cli.test_board.final", lambda setting, seed: 0.1 + seed / 100)
    _, out, err = call("board", "mine.py", "--root", str(tmp_path))
    assert "fedavg has other figures here" in err and "fedavg (yours)" in out
