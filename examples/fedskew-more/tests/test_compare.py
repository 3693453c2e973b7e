"""The measuring script: its table by hand, and runs that are made once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import compare
import pytest
from compare import MLP, Row, Trial, measured, planned, table, trial


def row(method: str, seed: int, server: float | None, own: float) -> Row:
    return Row(method, "mlp", seed, f"{method}{seed}", server, own, 2.0)


def test_the_table_by_hand() -> None:
    """Kills: differences that are not paired by seed, an interval of single values in place of their mean, or of two
    ties; a server's model where there is none.

    Differences 1 and 3 points: mean 2, standard error 1, and Student's factor of one degree of freedom is 12.706.
    """
    rows = [row("fedavg", 0, 0.50, 0.6), row("fedavg", 1, 0.60, 0.6)]
    rows += [row("fedlc", 1, 0.63, 0.6), row("fedlc", 0, 0.51, 0.6), row("fedproto", 0, None, 0.7)]
    lines = table(rows).splitlines()
    assert lines[2] == "| fedavg | mlp | 2 | 55.00 % |  | 60.00 % |  | 2.0 |"
    assert lines[3] == "| fedlc | mlp | 2 | 57.00 % | +2.00 (-10.71 to +14.71) | 60.00 % | +0.00 | 2.0 |"
    assert lines[4] == "| fedproto | mlp | 1 |  |  | 70.00 % | +10.00 | 2.0 |"


def test_every_model_has_its_fedavg_first() -> None:
    """Kills: a method that is held against FedAvg on another model, or on other clients."""
    trials = planned(["fedlc", "fedbn"], [3, 4], rounds=2)
    assert [(one.method, one.model, one.seed) for one in trials[:4]] == [
        ("fedavg", "mlp", 3),
        ("fedavg", "mlp_with_norms", 3),
        ("fedlc", "mlp", 3),
        ("fedbn", "mlp_with_norms", 3),
    ]
    assert len({one.experiment.digest for one in trials}) == len(trials) == 8
    assert {(one.seed, one.experiment.partition.seed) for one in trials} == {(3, 3), (4, 4)}


def test_a_run_that_has_a_row_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a file that is written at the end alone, rows that are found again by name and not by what was run."""
    made: list[str] = []

    def fake(one: Trial) -> Row:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(one.method)
        return Row(one.method, one.model, one.seed, one.experiment.digest, 0.5, 0.5, 1.0)

    monkeypatch.setattr(compare, "measured", fake)
    words = ["compare.py", "--seeds", "0", "1", "--methods", "fedlc", "--out", str(tmp_path), "--rounds"]
    monkeypatch.setattr(sys, "argv", [*words, "2"])
    with pytest.raises(KeyboardInterrupt):
        compare.main()
    assert len(json.loads((tmp_path / "compare.json").read_text())) == 3
    made.clear()
    compare.main()
    assert made == ["fedlc"]
    made.clear()
    monkeypatch.setattr(sys, "argv", [*words, "1"])  # another setting has rows of its own
    with pytest.raises(KeyboardInterrupt):
        compare.main()
    assert len(json.loads((tmp_path / "compare.json").read_text())) == 7
    assert "| fedavg | mlp | 2 |" in (tmp_path / "compare.md").read_text()


def test_a_row_is_of_a_run() -> None:
    """Kills: accuracies exchanged, or of the last round alone; a headline of own models taken for the server's."""
    fedlc, fedproto = (measured(trial(name, MLP, 0, rounds=2)) for name in ("fedlc", "fedproto"))
    assert fedlc.server_accuracy is not None and fedproto.server_accuracy is None
    assert 0.2 < fedlc.server_accuracy <= 1
    assert fedlc.own_accuracy == pytest.approx(fedlc.server_accuracy)  # own models are the server's
    assert 0.2 < fedproto.own_accuracy <= 1
