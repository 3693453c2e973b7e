"""Trials without Tune: what they report when they go on in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.sweeps.folder import SweepFolder, TrialRecord
from tests.support.small_sweeps import Alone, base


@pytest.mark.parametrize(("mutable", "reports"), [((), [2, 4, 6]), (("local.lr",), [6])])
def test_a_resumed_trial_reports_the_rounds_behind_it(
    tmp_path: Path, mutable: tuple[str, ...], reports: list[int]
) -> None:
    """Kills: a scheduler that holds a resumed trial against others by the figures of a later round; a checkpoint for a
    population's copies that is of another round than the report before it."""
    experiment = base(**{"execution.actors": 0, "evaluation.every": 2})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, experiment)
    before = [trial.step() for _ in range(2)]
    trial.cleanup()
    again = Alone(tmp_path, experiment)
    again._job = again._job.__class__(**{**vars(again._job), "mutable": mutable})
    found = []
    while not (found and found[-1]["done"]):
        found.append(again.step())
    assert [report["round"] for report in found] == reports
    if not mutable:
        assert [report["accuracy"] for report in found[:2]] == [report["accuracy"] for report in before]
    record = SweepFolder(tmp_path).record("00000")
    assert record is not None and (record.status, record.rounds, record.rounds_computed) == ("finished", 6, 6)


def test_a_trial_that_its_old_reports_end_ends_where_it_stands(tmp_path: Path) -> None:
    """Kills: a record with fewer rounds than the weights in its folder have, so that running it again gives others."""
    experiment = base(**{"execution.actors": 0, "checkpoint.every": 1})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, experiment)
    trial.step()
    assert trial._local is not None
    trial._local.advance(0.0, until=3)
    trial.cleanup()
    again = Alone(tmp_path, experiment)
    assert again.step()["round"] == 2
    again.cleanup()
    record, folder = SweepFolder(tmp_path).record("00000"), SweepFolder(tmp_path).run_folder("00000")
    assert record is not None and record.rounds == folder.summary()["rounds"] == 3
