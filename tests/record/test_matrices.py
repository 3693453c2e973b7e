"""Numbers of pairs of classes: written when a run ends, drawn with it, read back as a figure of trials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from algorithms import ALGORITHMS
from engine.algorithm import Clients, Compute, Context, Kind, PostTraining, Tensors
from engine.base import parquet
from engine.base.errors import RunFolderError
from engine.experiment import Experiment
from engine.record import matrices
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.results import load
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.quantities import quantity
from fedskew.lab.run_pictures.folder import draw_pictures
from tests.support.report_pages import small
from tests.support.sweep_folders import MU, save_matrices
from tests.support.tiny import CLASSES, drive, drive_with_store, experiment, open_driver

PAIRS = torch.arange(float(CLASSES**2)).reshape(CLASSES, CLASSES)


@dataclass(frozen=True)
class Weighs(PostTraining):
    """Ends with two matrices, one of them what clients' rows come to, and with something that is none."""

    entries: ClassVar = {**PostTraining.entries, "cost": Kind.MATRIX, "other": Kind.MATRIX, "row_weight": Kind.TENSOR}
    factor: float = 1.0

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        found = {"cost": self.factor * PAIRS, "other": PAIRS.T.double() / 7}
        return {**server, **found, "row_weight": torch.ones(CLASSES)}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "weighs", Weighs)


def staged(**fields: Any) -> Experiment:
    """One round of FedAvg, and what ends with matrices."""
    train = {"name": "train", "rounds": 1}
    end = {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": "weighs", **fields}}
    return experiment(stages=[train, end])


# --- the table ----------------------------------------------------------------------------------------


def test_a_run_ends_with_a_row_for_each_pair(tmp_path: Path) -> None:
    """Kills: rows and columns exchanged, entries of other kinds, float32 in the file, another stage's name."""
    done = drive(tmp_path, staged())
    table = pq.read_table(tmp_path / "matrices.parquet")
    assert table.schema.names == ["stage", "name", "row", "column", "value"]
    assert table.schema.field("value").type == pa.float64()
    rows = table.to_pylist()
    assert {row["stage"] for row in rows} == {"end"}
    assert {(row["name"], row["row"], row["column"]): row["value"] for row in rows} == {
        (name, i, j): float(done.server[name][i, j])
        for name in ("cost", "other")
        for i in range(CLASSES)
        for j in range(CLASSES)
    }
    assert len(rows) == 2 * CLASSES**2
    assert rows[1]["value"] == 1.0 and rows[CLASSES]["value"] == CLASSES
    found = matrices.load(tmp_path)
    assert list(found) == ["cost", "other"]
    np.testing.assert_array_equal(found["cost"], PAIRS.numpy())
    assert list(matrices.load(tmp_path, "other")) == ["other"]
    assert matrices.load(tmp_path, "nothing") == {}


def test_before_the_stage_there_is_no_table(tmp_path: Path) -> None:
    """Kills: a table of a stage that the run has not come to; one that an earlier ending left."""
    settings = staged().replace({"stages.train.rounds": 2})
    driver = open_driver(tmp_path, settings)
    save_matrices(tmp_path, {"cost": np.ones((2, 2))})
    driver.advance(until=1)
    assert driver.close()["status"] == "stopped"
    assert not (tmp_path / "matrices.parquet").exists()
    assert matrices.load(tmp_path) == {}


def test_a_stage_of_the_store_has_its_matrices(tmp_path: Path) -> None:
    """Kills: matrices that only the run has which computed them; those of another factor."""
    store = StageStore(tmp_path / "store")
    for name, factor in (("first", 1.0), ("second", 1.0), ("third", 2.0)):
        drive_with_store(tmp_path / name, staged(factor=factor), store)
    assert RunFolder(tmp_path / "second").frame("rounds")["reused"].all()
    first, second, third = (matrices.load(tmp_path / name) for name in ("first", "second", "third"))
    np.testing.assert_array_equal(second["cost"], PAIRS.numpy())
    np.testing.assert_array_equal(second["other"], first["other"])
    np.testing.assert_array_equal(third["cost"], 2 * PAIRS.numpy())


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Kills: a trace from pyarrow."""
    (tmp_path / "matrices.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunFolderError, match=r"matrices.parquet cannot be read"):
        matrices.load(tmp_path)


def test_which_rows_are_least_on_the_diagonal() -> None:
    """Kills: columns for rows, a tie that counts, the diagonal compared with itself, NaN that counts."""
    matrix = np.array([[1.0, 2.0, 3.0], [0.5, 1.0, 1.0], [2.0, 2.0, 2.0]])
    assert matrices.least_on_diagonal(matrix).tolist() == [True, False, False]
    assert matrices.least_on_diagonal(matrix.T).tolist() == [False, True, False]
    matrix[0, 2] = math.nan
    assert not matrices.least_on_diagonal(matrix).any()


# --- a run's pictures ---------------------------------------------------------------------------------


def test_a_run_has_the_same_pictures_whatever_it_ends_with(tmp_path: Path) -> None:
    """Kills: an error where a run stopped before its last stage, or ends with matrices."""
    done = drive(tmp_path / "done", staged())
    driver = open_driver(tmp_path / "stopped", staged().replace({"stages.train.rounds": 2}))
    driver.advance(until=1)
    driver.close()
    for config, folder in ((staged(), done.folder), (driver.experiment, driver.folder)):
        draw_pictures(config, folder, np.ones((2, CLASSES), int), tuple("abcd"))
        assert {path.name for path in folder.path.glob("*.png")} == {"curves.png", "partition.png"}


# --- a figure of trials -------------------------------------------------------------------------------


def costs(setting: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Least on the diagonal in 3 of 4 rows, or in 2 with the first seed; none without a proximal term."""
    if not setting["mu"]:
        return {}
    cost = np.ones((4, 4)) - 0.5 * np.eye(4)
    cost[3, 3] = 2.0
    cost[2, 2] = 1.0 if seed == 0 else 0.5
    return {"cost": cost, "correlation": np.eye(4)}


ALL_ROWS = {"text": "Costs are least on the diagonal", "source": "", "metric": "cost_row_minimum", "kind": "above"}


def test_the_share_of_rows_is_a_figure_of_trials(tmp_path: Path) -> None:
    """Kills: a count for a share, the correlation's diagonal, 0 for a trial without costs, a column for everybody."""
    axes = [MU | {"values": [0.0, 0.1]}]
    claims = [{**ALL_ROWS, "better": {"mu": 0.1}, "margin": margin} for margin in (-2.0, 0.9)]
    made = small(tmp_path / "with", axes=axes, seeds=(0, 1, 2), matrices=costs, claims=claims)
    results = load(made)
    np.testing.assert_array_equal(results.trials["cost_row_minimum"], [math.nan] * 3 + [0.5, 0.75, 0.75])
    assert [one.verdict for one in judge(results)] == ["held", "undecided"]
    assert judge(results)[0].effect == pytest.approx(2 / 3)
    without = load(small(tmp_path / "without", axes=axes))
    assert "cost_row_minimum" not in without.trials
    asked = load(small(tmp_path / "asked", axes=axes, claims=[{**ALL_ROWS, "better": {"mu": 0.1}, "margin": -2.0}]))
    assert judge(asked)[0].verdict == "undecided"


def test_the_share_of_rows_is_told_in_percent() -> None:
    """Kills: a fraction beside percentages; a column's name in front of a reader."""
    share = quantity("cost_row_minimum")
    assert share.text(0.75, unit=True) == "75.0 %"
    assert "diagonal" in share.label and "_" not in share.title + share.short


def test_a_trial_without_matrices_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a file opened for every trial of a sweep whose servers end with no matrix."""
    made = small(tmp_path / "sweep", axes=[MU], seeds=(0,), matrices=costs)
    opened, real = list[Path](), parquet.open_plain
    monkeypatch.setattr(parquet, "open_plain", lambda path: (opened.append(Path(path)), real(path))[1])
    load(made)
    assert [path.parent.name for path in opened if path.name == "matrices.parquet"] == ["00001", "00002", "00003"]


def test_results_give_a_trials_matrices(tmp_path: Path) -> None:
    """Kills: another trial's."""
    made = small(tmp_path / "sweep", axes=[MU], matrices=costs)
    results = load(made)
    assert results.matrices("00000") == {}
    assert list(results.matrices("00002")) == ["cost", "correlation"]
    assert results.matrices("00002")["cost"][2, 2] == 1.0 and results.matrices("00003")["cost"][2, 2] == 0.5
