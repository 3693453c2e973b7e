"""Trials without Tune: what they report when they go on in the middle."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from engine.base.errors import MachineFailed, RunError
from engine.record.numerics import numerics
from engine.record.store import StageStore
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.worker import in_process as pool_module
from tests.support.small_sweeps import Alone, base, in_steps


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


def test_a_copy_stands_where_its_weights_do(tmp_path: Path) -> None:
    """Kills: a copy that is read, or killed, before its first report, with the rounds of weights that it has no more;
    one under the name of the trial that it copied."""

    class Second(Alone):
        trial_name = "00001"

    for name in ("00000", "00001"):
        SweepFolder(tmp_path).write(TrialRecord(name, {"local.lr": 0.05}, 0))
    donor, copy = (of(tmp_path, base(**{"execution.actors": 0}), mutable=("local.lr",)) for of in (Alone, Second))
    reached = [one.step()["round"] for one in (copy, donor, donor)]
    (saved := tmp_path / "saved").mkdir()
    donor.save_checkpoint(str(saved))
    copy.reset_config({"local.lr": 0.01, "trial": "00000"})
    copy.load_checkpoint(saved)
    copy._open()
    record = SweepFolder(tmp_path).record("00001")
    assert record is not None and (record.rounds, reached) == (4, [2, 2, 4])
    assert [(one["first_round"], one["set"]["local.lr"], one["from"]) for one in record.schedule] == [
        (1, 0.05, None),
        (5, 0.01, "00000"),
    ]
    assert copy._config["trial"] == "00001"
    copy.cleanup()
    donor.cleanup()


@pytest.mark.parametrize("turns", ["ab", "abbb"])
def test_two_sweeps_at_once_share_a_store_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: str
) -> None:
    """Kills: two holders of one prefix, a waiter that computes it, a sweep that ends the other.

    The two take turns, a round at a time. Warm-ups of 3, 5 and 7 rounds cost 7, each of six trials serves 2 of its own.
    """
    monkeypatch.setattr("engine.sweeps.trial.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("engine.run.reuse.WAIT", -1.0)  # who waits lets the other one go on at once
    steps = {name: in_steps("warmup", tmp_path / name, store=StageStore(tmp_path / "store")) for name in "ab"}
    going = cycle(turns)
    while steps:
        name = next(going)
        if name in steps and next(steps[name], None) is None:
            del steps[name]
    records = {name: SweepFolder(tmp_path / name).records() for name in "ab"}
    assert [record.status for name in "ab" for record in records[name]] == ["finished"] * 12
    computed = {name: [record.rounds_computed for record in records[name]] for name in "ab"}
    assert sum(sum(rounds) for rounds in computed.values()) == 19
    shas = [[SweepFolder(tmp_path / name).run_folder(one.trial).summary() for one in records[name]] for name in "ab"]
    assert [one["weights_sha256"] for one in shas[0]] == [one["weights_sha256"] for one in shas[1]]


@pytest.mark.parametrize(("error", "died"), [(MachineFailed("full"), True), (RunError("diverged"), False)])
def test_a_record_says_whether_the_machine_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, died: bool
) -> None:
    """Kills: a rate that is out since a disk was full; one that diverges and is to be tried for ever."""

    def raises(trial: Alone) -> None:
        raise error

    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    monkeypatch.setattr(Alone, "_open", raises)
    assert Alone(tmp_path, base(**{"execution.actors": 0})).step()["done"]
    record = SweepFolder(tmp_path).record("00000")
    assert record is not None and (record.status, record.died) == ("failed", died)


def test_a_trial_on_another_machine_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a trial that is lost, as if its setting had failed, since the sweep goes on where other bits are computed;
    one of two machines' bits."""
    experiment = base(**{"execution.actors": 0, "checkpoint.every": 1})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, experiment)
    trial.step()
    trial.cleanup()
    monkeypatch.setattr(pool_module, "numerics", lambda *asked: {**numerics(*asked), "torch": "9.9"})
    again = Alone(tmp_path, experiment)
    while not again.step()["done"]:
        pass
    again.cleanup()
    assert "trial 00000 begins anew: " in caplog.text
    record, folder = SweepFolder(tmp_path).record("00000"), SweepFolder(tmp_path).run_folder("00000")
    assert record is not None and record.status == "finished"
    assert folder.summary()["versions"]["torch"] == "9.9"
