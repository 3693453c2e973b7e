"""The trials of a sweep are of one code: other code is refused before anything starts, in one sentence for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.base.errors import RunFolderError
from engine.record.stage_hashes import code_of
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.options import How
from engine.sweeps.running import run_sweep
from engine.worker.ray import cluster
from tests.support import small_sweeps
from tests.support.resumed import resume_sweep
from tests.support.small_sweeps import Alone, base


class Started(Exception):
    """Nothing has refused the sweep."""


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> NamedSweep:
    """A sweep of two trials; instead of looking for Ray, it raises :class:`Started`."""

    def connect(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setattr(cluster, "connect", connect)
    return load(f"{Path(small_sweeps.__file__)}:pair", "laptop", (), {})


def begun(path: Path, sweep: NamedSweep, code: str) -> SweepFolder:
    """The folder of a sweep of which one trial has begun."""
    folder = SweepFolder(path)
    folder.create(sweep, How().to_mapping(), code)
    folder.write(TrialRecord("00000", {"mu": 0.0}, 0))
    return folder


def test_a_sweep_goes_on_with_its_code_alone(tmp_path: Path, pair: NamedSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a resume that compares trials of two versions of a method; a failure for each trial instead of one."""
    folder = begun(tmp_path / "sweep", pair, "old")
    told = r"sweep was begun with other code \(old, now \w{16}\), so its trials could not be compared; run it as a new"
    with pytest.raises(RunFolderError, match=told):
        resume_sweep(folder.path)
    with pytest.raises(RunFolderError, match=told):
        run_sweep(pair, folder.path, How())
    code = _code_as_written(tmp_path / "new", pair, monkeypatch)
    with pytest.raises(Started):
        run_sweep(pair, begun(tmp_path / "again", pair, code).path, How())
    with pytest.raises(Started):  # nothing of the old code is in it
        SweepFolder(tmp_path / "empty").create(pair, How().to_mapping(), "old")
        run_sweep(pair, tmp_path / "empty", How())


def test_a_sweep_that_allows_it_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: NamedSweep) -> None:
    """Kills: an allowance that a sweep cannot be given, or that leaves no trace."""
    words = ("execution.mixed_hardware=true",)
    mixed = load(f"{Path(small_sweeps.__file__)}:pair", "laptop", words, {})
    folder = begun(tmp_path / "sweep", mixed, "old")
    assert str(_code_as_written(folder.path, mixed, monkeypatch)).endswith(" | old")


def _code_as_written(path: Path, sweep: NamedSweep, monkeypatch: pytest.MonkeyPatch) -> str:
    """The code of a sweep that has got as far as its ``sweep.yaml``."""
    found: list[str] = []

    def create(self: SweepFolder, named: NamedSweep, how: object, code: str) -> None:
        found.append(code)
        raise Started

    with monkeypatch.context() as patch:
        for name in ("connect", "check_resources", "share", "gpu_share"):
            patch.setattr(cluster, name, lambda *_, **__: 0.0)
        patch.setattr("engine.sweeps.running.ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}])
        patch.setattr(SweepFolder, "create", create)
        with pytest.raises(Started):
            run_sweep(sweep, path, How())
    return found[0]


def test_a_trial_begun_after_an_edit_fails(tmp_path: Path) -> None:
    """Kills: the last trials of a long sweep, computed by what was edited while the first ones ran."""
    experiment = base(rounds=1, **{"execution.actors": 0}).resolve()
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    report = Alone(tmp_path, experiment, codes={"00000": "old", "": "old"}).step()
    assert report["failed"] and "the code has changed since the sweep was started (old, now" in report["reason"]
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    assert not Alone(tmp_path, experiment, codes={"00000": code_of(experiment)}).step()["failed"]
