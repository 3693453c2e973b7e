"""Numbers that trackers were told, held against the parquet tables trial by trial."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.common import RESULTS, load
from benchmarks.trackers import Findings, Numbers, compared, of_tables

WANTED: dict[str, Numbers] = {
    "00000": {"rounds/lr": [(1, 0.1), (2, 0.1)], "evaluations/accuracy": [(1, 0.3)]},
    "00001": {"rounds/lr": [(1, 0.1), (2, 0.1)], "evaluations/accuracy": [(1, 0.7)]},
}


def test_numbers_are_those_of_their_tables(tmp_path: Path) -> None:
    """Kills: a column left out, or one that holds no number; a number that is not finite; another row's round."""
    rounds = pa.table(
        {
            "stage": ["train", "train"],
            "round": [1, 2],
            "steps": [7, 8],
            "loss_after": [float("nan"), 0.5],
            "local_accuracy": [None, 0.25],
            "scalars": pa.array([[("rate", 2.0)], []], pa.map_(pa.string(), pa.float64())),
            "reused": [False, True],
        }
    )
    evaluations = pa.table({"round": [2], "class_accuracy": [[0.0, 1.0]], "class_samples": [[3, 4]]})
    for name, table in (("rounds", rounds), ("evaluations", evaluations)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert of_tables(tmp_path) == {
        "rounds/steps": [(1, 7), (2, 8)],
        "rounds/loss_after": [(2, 0.5)],
        "rounds/local_accuracy": [(2, 0.25)],
        "rounds/scalars/rate": [(1, 2.0)],
        "evaluations/class_accuracy/0": [(2, 0.0)],
        "evaluations/class_accuracy/1": [(2, 1.0)],
    }


def swap(told: dict[str, Numbers]) -> None:
    told["00000"], told["00001"] = told["00001"], told["00000"]


def lose(told: dict[str, Numbers]) -> None:
    told["00001"]["rounds/lr"].pop()


def repeat(told: dict[str, Numbers]) -> None:
    told["00001"]["rounds/lr"].append((2, 0.1))


def shift(told: dict[str, Numbers]) -> None:
    told["00001"]["rounds/lr"][1] = (3, 0.1)


def leave_out(told: dict[str, Numbers]) -> None:
    del told["00001"]


def put_elsewhere(told: dict[str, Numbers]) -> None:
    told["sweep"] = {"rounds/lr": [(1, 0.1)]}


@pytest.mark.parametrize("change", [swap, lose, repeat, shift, leave_out, put_elsewhere])
def test_another_number_is_different(change: Callable[[dict[str, Numbers]], None]) -> None:
    """Kills: numbers of all trials in one heap, so that those of two may be exchanged; a lost or a repeated one."""
    told = deepcopy(WANTED)
    assert compared(told, WANTED) == {"told": 6, "in_tables": 6, "trials": 2, "equal": True}
    change(told)
    assert not compared(told, WANTED)["equal"]


def test_what_is_in_no_table_does_not_count() -> None:
    """Kills: a summary's figure, or the sweep's, taken for a number too many; TensorBoard's 32 bits for others."""
    told = deepcopy(WANTED)
    told["00000"]["summary/accuracy"] = [(2, 0.3)]
    told["sweep"] = {"sweep/finished": [(0, 2.0)]}
    assert compared(told, WANTED) == {"told": 6, "in_tables": 6, "trials": 2, "equal": True}
    for numbers in told.values():
        for key, some in numbers.items():
            numbers[key] = [(step, float(np.float32(value))) for step, value in some]
    assert not compared(told, WANTED)["equal"] and compared(told, WANTED, np.float32)["equal"]


def test_a_difference_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: an exit code of 0 where a tracker has other numbers, or none at all; 1 where it lacks what it may lack."""
    found = Findings()
    found.note("may lack some", compared({}, WANTED))
    found.numbers("right", compared(WANTED, WANTED))
    assert found.exit_code() == 0 and list(found.by_name) == ["may lack some", "right"]
    for name, told, wanted in (("wrong", {}, WANTED), ("nothing", {}, {})):
        found = Findings()
        found.numbers(name, compared(told, wanted))
        assert found.exit_code() == 1 and f"DIFFERENT {name}" in capsys.readouterr().out


def test_the_page_has_what_was_found() -> None:
    """Kills: a table of an earlier run; a tracker in it that had other numbers, weights that a tracker has moved."""
    found = load("trackers", RESULTS)["found"]
    page = (RESULTS.parents[1] / "docs" / "trackers.md").read_text(encoding="utf-8").partition("\n## Measured\n")[2]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    told = [one for one in found.values() if isinstance(one, dict)]
    assert [one["equal"] for one in told] == [row[3] == "equal" for row in rows]
    for row, one in zip(rows, told, strict=True):
        assert row[1] in ("0 new", f"{one['told']:,}") and row[2] == f"{one['in_tables']:,}", row
    assert found["weights of the tracked sweep equal"] and found["weights of the sweep whose server was killed equal"]
    assert found["trials ended when the server was killed"] == 0 and "killed with the first trial" in page
