"""CSV files that no spreadsheet runs, and that give every text back."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine.base.csv_text import MARK, csv_text, guarded
from fedskew.lab.frames import write_frame
from fedskew.lab.report import write
from tests.support.report_pages import small

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "=HYPERLINK(A1)"]
TORN = ["a\r=1", "a\n=1", "a,=1", 'a"=1']
HARMLESS = ["", "a=1", "0.1", "fedprox(mu=-1)", " a"]


@given(st.text() | st.sampled_from(FORMULAS))
def test_every_text_comes_back_and_none_begins_as_a_formula(text: str) -> None:
    """Kills: a guard that loses a text, one that two texts share, one that passes over a sign."""
    cell = guarded(text)
    assert cell.removeprefix(MARK) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert (cell == text) == (not text.startswith((*"=+-@\t\r\n", "'")))


@pytest.mark.parametrize("dtype", [object, "str"])
def test_texts_are_guarded_and_numbers_are_numbers(dtype: object) -> None:
    """Kills: a column of pandas' own texts that is passed over; a negative number made a text; a head that is run."""
    frame = pd.DataFrame({"text": pd.Series([*FORMULAS, *TORN, *HARMLESS], dtype=dtype)})  # pyright: ignore[reportArgumentType]
    frame["=head"] = -np.arange(len(frame)) - 0.5
    frame["-mixed"] = pd.Series([-1.5, "-1.5", None, True, [1, 2]] + [math.nan] * (len(frame) - 5), dtype=object)
    text = csv_text(frame)
    assert text.splitlines()[0].replace('"', "") == "text,'=head,'-mixed"
    read = pd.read_csv(io.StringIO(text, newline=""), keep_default_na=False)
    assert [cell.removeprefix(MARK) for cell in read["text"]] == [*FORMULAS, *TORN, *HARMLESS]
    assert read["'=head"].tolist() == frame["=head"].tolist()
    assert csv_text(pd.DataFrame({"=head": [-0.5]})) == "'=head\n-0.5\n"
    assert read["'-mixed"].tolist()[:5] == ["-1.5", "'-1.5", "", "True", "[1, 2]"]


def test_every_export_is_guarded(tmp_path: Path) -> None:
    """Kills: a table that is written by itself; a claim, a reason or a setting that a spreadsheet runs."""
    axis = {"name": "=mu", "key": "algorithm.mu", "kind": "grid", "values": [0.0, 0.1], "log": False}
    claims = [{"text": "=1+1", "source": "@a", "better": {"=mu": 0.1}, "worse": {"=mu": 0.0}}]
    made = small(tmp_path / "sweep", axes=(axis,), claims=claims)
    write(made)
    write_frame(pd.DataFrame({"setting": ["-x"]}), tmp_path / "study")
    files = [*(made / "report").glob("*.csv"), tmp_path / "study.csv"]
    assert len(files) > 4
    for path in files:
        for line in path.read_text().splitlines():
            assert not line.startswith(("=", "+", "-x", "@")) and ",=" not in line and ",@" not in line, path
    assert "'=1+1,'@a" in (made / "report/claims.csv").read_text()
    sources = Path(engine.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "to_csv(" in path.read_text()] == ["csv_text.py"]
