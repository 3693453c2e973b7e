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

OWN = """from engine.experiment import Experiment
from engine.sweeps.definition import Sweep


def board(profile):
    return Sweep(Experiment.from_mapping({base}), {{}})
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
    other figures of FedAvg, as of another machine, in silence."""
    ledger = tmp_path / "docs" / "claims"
    for name, fields in (("board.same", {}), ("board.other", {"tuning_rows": 0.1})):
        there = swept(tmp_path / name, METHODS[:2], reference=name, **fields)
        write(ledger, record(there, stated_of(there, name=name)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(base=BASE))

    def run(reference: str, profile: str, words: Any, out: Path, *_: Any) -> int:
        swept(out, [METHODS[0], METHODS[2]], reference=reference)
        return 0

    monkeypatch.setattr(command, "sweep", run)
    code, out, err = call("board", "mine.py", "--root", str(tmp_path))
    assert code == 0, err
    assert "board.same of " in err and "board.other" not in err and "other figures" not in err
    rows = [line.split()[:3] for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == ["fedprox(mu=0.1)", "fedavgm", "fedavg"]
    assert rows[1][2] == "(yours)" and "(yours)" not in rows[0]
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr("tests.cli.test_board.final", lambda setting, seed: 0.1 + seed / 100)
    _, out, err = call("board", "mine.py", "--root", str(tmp_path))
    assert "fedavg has other figures here" in err
