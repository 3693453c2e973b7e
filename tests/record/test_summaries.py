"""``summary.json`` as it is read back: what is not what was written is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import RunFolderError
from engine.record import summary
from engine.record.run_folder import RunFolder
from engine.record.wholeness import check_ended
from tests.support.sweep_folders import make_run

WRONG: list[tuple[str, Any]] = [
    ("accuracy", "0.8"),
    ("accuracy", [0.8]),
    ("accuracy", True),
    ("accuracy", float("nan")),
    ("accuracy", float("inf")),
    ("accuracy", 80),
    ("last10_accuracy", 10**400),
    ("loss", 1e200),
    ("best_round", 3.5),
    ("best_round", 10**30),
    ("rounds", -1),
    ("rounds", None),
    ("floats_up", "many"),
    ("seconds_per_round", {}),
    ("weights_sha256", 7),
    ("weights_sha256", None),
    ("name", ["made"]),
    ("status", "done"),
    ("status", ["finished"]),
    ("algorithm", "fedavg"),
    ("algorithm", {}),
    ("stage_accuracy", [0.1]),
    ("stage_accuracy", {"train": "0.8"}),
    ("breaks_privacy", "no"),
    ("rows", {"rounds": -1}),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", rounds=2)


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(value)[:12])
def test_a_value_of_another_kind(run: Path, tmp_path: Path, name: str, value: Any) -> None:
    """Kills: a field without its check; a text, a list, a NaN or a huge number that is shown or averaged, or
    ends in a traceback."""
    written = json.loads((run / "summary.json").read_text())
    assert name in written
    (tmp_path / "summary.json").write_text(json.dumps(written | {name: value}))
    told = rf"it(s {name}[ .\[]|s algorithm has no| has a number of more than 250 digits)"
    with pytest.raises(RunFolderError, match=rf"summary\.json cannot be read \({told}"):
        summary.read(tmp_path)


def test_whole_summaries_are_read(run: Path, tmp_path: Path) -> None:
    """Kills: a check that refuses what a run writes, a null, or a field of a later version."""
    written = json.loads((run / "summary.json").read_text())
    assert summary.read(run) == written
    (tmp_path / "summary.json").write_text(json.dumps(written | {"loss": None, "of a later version": [1]}))
    assert summary.read(tmp_path)["loss"] is None


def test_rows_are_counted(run: Path) -> None:
    """Kills: a table that lost rows and passes for whole."""
    assert summary.read(run)["rows"]["rounds"] == 2
    folder = RunFolder(run)
    check_ended(folder)
    rows = folder.evaluations.frame()
    rows.iloc[:1].to_parquet(folder.evaluations.path)
    with pytest.raises(RunFolderError, match=r"evaluations\.parquet has lost rows \(1 of 2 are left\)"):
        check_ended(folder)
