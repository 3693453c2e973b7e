"""Folders that an earlier version has written: read, reported, and gone on with where the bits allow it.

``tests/support/old_folders`` was written by the version before the engine and the laboratory were parted: a run that
was stopped after two of four rounds, and a sweep of two proximal terms and two seeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.results import load
from engine.results.frames import load_results
from fedskew.lab.comparing.verdicts import judge

OLD = Path(__file__).parents[1] / "support" / "old_folders"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_old_folders_are_read_as_they_were(old: Path) -> None:
    """Kills: a column, a status or a claim of an earlier version that is lost, or read as something else."""
    frames = load_results(old / "run", old / "sweep")
    assert frames.damage == {}
    accuracy = dict(zip(frames.trials["trial"], frames.trials["accuracy"], strict=True))
    assert accuracy == {"run": 0.19, "00000": 0.16, "00001": 0.18, "00002": 0.14, "00003": 0.15}
    assert frames.trials["status"].tolist() == ["stopped", *["finished"] * 4]
    assert frames.trials[["macro_f1", "ece"]].isna().all(axis=None)
    assert len(frames.rounds) == 10 and len(frames.clients) == 20 and len(frames.classes) == 100
    (verdict,) = judge(load(old / "sweep"))
    assert verdict.claim.text == "a proximal term helps" and verdict.verdict == "undecided"


def test_old_folders_are_reported_and_not_mixed_with_new_rounds(old: Path, call: Call) -> None:
    """Kills: a report that an earlier folder ends; rounds of other code that are added to it without a word."""
    assert call("report", str(old / "sweep"))[0] == 0
    assert (old / "sweep" / "report" / "report.html").stat().st_size > 10_000
    code, _, err = call("resume", str(old / "run"))
    assert code == 2 and "the run began with code d65d23d0ac370eb8" in err and "mixed_hardware=true" in err
    code, _, err = call("resume", str(old / "run"), "execution.mixed_hardware=true")
    assert code == 0 and load(old / "run").trials["rounds"].tolist() == [4]
    frames = load_results(old / "run")  # two rounds of before there were these columns, and two of today
    assert frames.rounds["macro_f1"].notna().tolist() == [False, False, True, True]
    assert (
        not frames.classes["precision"].iloc[:20].notna().any() and frames.classes["precision"].iloc[20:].notna().any()
    )
    code, _, err = call("resume", str(old / "sweep"), "--with", str(old / "mine.py"))
    assert code == 2 and "was begun with other code (03fcf62d7eab8048" in err
