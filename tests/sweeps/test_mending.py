"""Mending of a sweep that an earlier process has left; and a disk that fails under a sweep's own records."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune

from engine.base import files
from engine.base.errors import RunFolderError, WriteError
from engine.experiment import Experiment
from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.record.sweep_files import PLAN, PlannedTrial, numbered
from engine.record.wholeness import check_ended
from engine.sweeps.definition import Optuna, Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.mending import ended_again, left_behind, scheduled
from engine.sweeps.named import NamedSweep
from engine.sweeps.running import _end, _writing_in_tune
from engine.sweeps.searching import Proposed
from engine.sweeps.trial import Trial
from engine.sweeps.tuner import _Begin
from tests.support.small_sweeps import Alone, base, grid

EXPERIMENT = base(rounds=3, **{"checkpoint.every": 1, "execution.actors": 0, "algorithm.name": "scaffold"})
PLANNED = [PlannedTrial("00000", 0, {"eta": 0.05})]
LAST = 2  # the round after which a scheduler has stopped it


def computed(folder: Path, damaged: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Run the trial until it ends, or until it would be stopped; its last report."""
    trial = Alone(folder, EXPERIMENT, step=1, damaged=damaged)
    while True:
        report = trial.step()
        if report["done"] or (report["round"] == LAST and not damaged):
            trial.cleanup()
            return report


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one trial, that a scheduler has stopped before its last round."""
    sweep = SweepFolder(tmp_path_factory.mktemp("sweeps") / "stopped")
    sweep.write(TrialRecord("00000", {"eta": 0.05}, 0))
    sweep.write_plan(PLANNED)
    computed(sweep.path)
    sweep.end("00000", "stopped", "by ASHA")
    return sweep.path


def damage(name: str, how: Callable[[Path], object]) -> Any:
    return pytest.param(name, how, id=f"{name} {how.__name__}")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def gone(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "precious").write_text("a thesis")


def other_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 - 200 : len(content) // 2] = bytes(200)
    path.write_bytes(bytes(content))


NAMES = ("summary.json", "experiment.yaml", "rounds.parquet", "clients.parquet", "evaluations.parquet")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(damage(name, how) for name in NAMES for how in (cut, gone)),
        *(damage(name, a_folder) for name in ("summary.json", "experiment.yaml", "rounds.parquet")),
        damage("clients.parquet", other_bytes),
    ],
)
def test_a_damaged_trial_ends_again_where_it_ended(
    stopped: Path, tmp_path: Path, name: str, how: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: damage that a resume passes over; a trial that goes on beyond where it was stopped, or ends with other
    weights or rows; a summary that costs all rounds; a stranger's folder that is deleted."""
    folder = SweepFolder(Path(shutil.copytree(stopped, tmp_path / "sweep")))
    run = folder.run_folder("00000")
    before, record = _content(run), folder.record("00000")
    how(run.path / name)
    left = left_behind(folder, PLANNED, folder.plan())
    assert (left.damaged, left.whole) == ({"00000"}, 0)
    advanced: list[int] = []
    original = Trial._driver

    def watched(trial: Trial, experiment: Experiment) -> Any:
        local = original(trial, experiment)
        advanced.append(local.driver.round)
        return local

    monkeypatch.setattr(Trial, "_driver", watched)
    report = computed(folder.path, left.damaged)
    assert report["round"] == LAST and report["done"]
    assert _content(run) == before and folder.record("00000") == record
    check_ended(run)
    assert advanced == [LAST if name == "summary.json" else 0]  # from its newest checkpoint, or from the start
    aside = list(run.path.glob("*.damaged"))
    assert [(path / "precious").read_text() for path in aside] == ["a thesis"] * (how is a_folder)
    assert left_behind(folder, PLANNED, folder.plan()).damaged == frozenset()


@pytest.mark.parametrize(
    ("spans", "stands", "ended", "until"),
    [
        ([range(1, 31), range(31, 31)], 30, 30, None),
        ([range(1, 31), range(31, 81), range(31, 61)], 60, 60, None),
        ([range(1, 31)], 10, 20, 20),
    ],
    ids=["a stage without rounds follows", "a shorter branch follows", "it was stopped early"],
)
def test_a_trial_that_came_to_its_end_comes_there_again(
    spans: list[range], stands: int, ended: int, until: int | None
) -> None:
    """Kills: a last stage that is left out since the rounds before it are there, and figures of the one before it."""
    driver = SimpleNamespace(finished=False, round=stands, experiment=SimpleNamespace(spans=spans))
    driver.is_before = lambda until: not driver.finished and (until is None or driver.round < until)
    asked: list[int | None] = []

    def advance(seconds: float, until: int | None) -> None:
        asked.append(until)
        driver.finished = True

    local: Any = SimpleNamespace(driver=driver, advance=advance, close=lambda: None)
    ended_again(local, ended)
    assert asked == [until]


def _content(run: RunFolder) -> dict[str, Any]:
    """What must be equal: weights and states, and all rows without what may differ."""
    summary, unequal = run.summary(), [*HOW_IT_WENT, "reused"]
    rows = {table.name: table.frame().drop(columns=unequal, errors="ignore").to_json() for table in run.tables}
    return rows | {name: summary[name] for name in ("weights_sha256", "states_sha256", "rounds", "rows")}


def test_trials_of_other_code_are_refused_together(stopped: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Kills: a search that compares an algorithm as it was with the same one as it is, since its base is another."""
    folder = SweepFolder(shutil.copytree(stopped, tmp_path / "sweep"))
    assert left_behind(folder, PLANNED, {}).whole == 1
    monkeypatch.setattr("engine.record.numerics.code_of", lambda experiment: "other")
    with pytest.raises(RunFolderError, match=r"has 1 trials of other code \(00000 is one\).* run it as a new sweep"):
        left_behind(folder, PLANNED, {})


def test_damage_to_a_trial_under_way_begins_it_anew(stopped: Path, tmp_path: Path) -> None:
    """Kills: a run that goes on without the rows before its checkpoint, in silence or in three more tries."""
    folder = SweepFolder(Path(shutil.copytree(stopped, tmp_path / "sweep")))
    record = folder.record("00000")
    assert record is not None
    before = _content(folder.run_folder("00000"))
    for name, how in (("rounds.parquet", gone), ("clients.parquet", cut), ("partition.parquet", cut)):
        folder.write(replace(record, status="running", reason=None, rounds=1))
        how(folder.run_folder("00000").path / name)
        computed(folder.path)
        assert _content(folder.run_folder("00000")) == before


# --- records --------------------------------------------------------------------------------------------------


def test_lost_records_are_made_anew_from_the_plan(tmp_path: Path) -> None:
    """Kills: a sweep that one record ends; a lost proposal that is another one at the next try; a trial that begins
    because its neighbour has; a folder whose setting nobody knows, taken for another's."""
    folder = SweepFolder(tmp_path)
    known = [PlannedTrial(f"{n:05d}", n % 2, {"lr": n / 10}) for n in range(3)]
    later = numbered(6, (0, 1), innermost=True)[3:]
    for one in known:
        folder.write(TrialRecord(one.trial, one.setting or {}, one.seed, status="failed"))
    folder.write_plan([*known, *later])
    (tmp_path / "trials/00000/trial.json").write_text("{")
    shutil.rmtree(tmp_path / "trials/00001")
    (tmp_path / "trials/00003").mkdir()
    (tmp_path / "trials/00003/experiment.yaml").write_text("of a setting that nobody knows")
    (tmp_path / "trials/00005").write_text("no folder")
    left = left_behind(folder, numbered(6, (0, 1), innermost=True), folder.plan())
    assert [(record.trial, record.setting, record.status) for record in left.records] == [
        ("00000", {"lr": 0.0}, "running"),
        ("00001", {"lr": 0.1}, "running"),
        ("00002", {"lr": 0.2}, "failed"),
    ]
    assert (tmp_path / "trials/00000/trial.json.damaged").read_text() == "{"
    assert (tmp_path / "trials/00003.damaged/experiment.yaml").exists()
    assert (tmp_path / "trials/00005.damaged").read_text() == "no folder"
    grid_of = [PlannedTrial(one.trial, one.seed, one.setting) for one in known] + [PlannedTrial("00003", 1, {"lr": 9})]
    assert len(left_behind(folder, grid_of, {}).records) == 3  # the fourth has not begun


def test_what_is_proposed_is_in_the_plan(tmp_path: Path) -> None:
    """Kills: a setting that is lost with its trial's folder."""
    folder = SweepFolder(tmp_path)
    begin = _Begin(folder, numbered(2, (0,), innermost=True))
    begin("00001", {"lr": 0.3}, 0)
    assert [one.setting for one in folder.plan().values()] == [None, {"lr": 0.3}]
    (tmp_path / PLAN).write_text("{")
    assert folder.plan() == {}


def test_a_long_search_writes_its_plan_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a plan of 10,000 trials that is written whole for each of them."""
    folder, written = SweepFolder(tmp_path), list[int]()
    monkeypatch.setattr(SweepFolder, "write", lambda *_: None)
    monkeypatch.setattr(
        SweepFolder, "write_plan", lambda _, plan: written.append(sum(one.setting is not None for one in plan))
    )
    trials = numbered(5_000, (0,), innermost=True)
    begin = _Begin(folder, trials)
    for one in trials:
        begin(one.trial, {"eta": 0.05}, 0)
    assert written[:49] == [*range(1, 50)] and len(written) < 350
    assert written[-1] > 0.98 * len(trials)


def test_a_search_fills_its_gaps(tmp_path: Path) -> None:
    """Kills: a proposal under the number of a trial that is there; half a proposal with another setting."""
    sweep = Sweep(base(), {"local.lr": tune.uniform(0, 1)}, seeds=(0, 1), samples=3, search=Optuna())
    told: Any = type("Told", (), {"suggest": lambda self, name: {"local.lr": 0.5}})()
    old = [TrialRecord("00001", {"local.lr": 0.7}, 1), TrialRecord("00004", {"local.lr": 0.9}, 0)]
    search = Proposed(sweep, told, old, lambda *_: None)
    found = [config for name in "abcdefg" if (config := search.suggest(name)) is not None]
    assert [(one["trial"], one["local.lr"], one["seed"]) for one in found] == [
        ("00000", 0.7, 0), ("00001", 0.7, 1), ("00004", 0.9, 0), ("00005", 0.9, 1),
        ("00002", 0.5, 0), ("00003", 0.5, 1),
    ]  # fmt: skip


def test_a_population_s_schedule_gives_its_experiment() -> None:
    """Kills: a changed trial without its experiment that is computed with what it began with."""
    first = base(rounds=6)
    entries = [
        {"first_round": 1, "set": {"local.lr": 0.1}, "parent": None, "from": None},
        {"first_round": 3, "set": {"local.lr": 0.02}, "parent": "ab", "from": "00001"},
        {"first_round": 5, "set": {"local.lr": 0.02}, "parent": "cd", "from": "00000"},
    ]
    found = scheduled(first, entries)
    assert [found.at(round).value_of("local.lr") for round in (1, 2, 3, 6)] == [0.1, 0.1, 0.02, 0.02]
    assert len(found.schedule) == 1
    assert scheduled(first, entries[:1]) == first


# --- a disk that fails ----------------------------------------------------------------------------------------


def _full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


NAMED = NamedSweep("mine.grid", "laptop", (), "A grid", grid("laptop"))
RECORDS: dict[str, Callable[[SweepFolder], object]] = {
    "sweep.yaml": lambda folder: folder.create(NAMED, {}),
    "plan.json": lambda folder: folder.write_plan(PLANNED),
    "a proposal in plan.json": lambda folder: _Begin(folder, numbered(1, (0,), True))("00000", {"eta": 0.05}, 0),
    "trial.json of a trial that begins": lambda folder: _Begin(folder, PLANNED)("00001", {"eta": 0.05}, 0),
    "trial.json of a trial that is stopped": lambda folder: folder.end("00000", "stopped", "by ASHA"),
    "trial.json of a trial that is tried again": lambda folder: folder.write(TrialRecord("00000", {}, 0)),
    "trial.json that is made anew": lambda folder: (
        shutil.rmtree(folder.path / "trials"),
        left_behind(folder, numbered(1, (0,), True), {"00000": PLANNED[0]}),
    ),
    "trial.json of a step": lambda folder: _noted(folder),
    "a trial's experiment and partition": lambda folder: Alone(folder.path, EXPERIMENT)._open(),
}


def _noted(folder: SweepFolder) -> None:
    trial = Alone(folder.path, EXPERIMENT)
    trial._note({"rounds": 1, "rounds_asked": 3, "rounds_computed": 1}, "running")


@pytest.mark.parametrize("name", RECORDS)
def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Kills: a record of a sweep whose failure is a traceback, or says nothing of how to go on; half a file."""
    folder = SweepFolder(tmp_path / "a sweep")
    folder.write(TrialRecord("00000", {"eta": 0.05}, 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(WriteError, match=r"cannot be written \(No space left on device\).*fedskew resume") as told:
            RECORDS[name](folder)
    assert told.value.exit_code == 2 and str(told.value).endswith(f"fedskew resume '{folder.path}'")
    assert not list(folder.path.rglob("*.tmp"))


def test_a_disk_that_fails_inside_of_tune(tmp_path: Path) -> None:
    """Kills: a sentence lost in Tune's own error; another error taken for a full disk; a trial that counts as failed
    because its files could not be written; a traceback that Ray logs."""

    def fails(error: Exception) -> None:
        try:
            raise error
        except Exception:
            raise RuntimeError("Traceback ...")  # noqa: B904  # as Tune does

    for error in (OSError(errno.ENOSPC, "x", "result.json"), WriteError("result.json", "x", tmp_path / "trials/00000")):
        with (
            pytest.raises(WriteError, match=rf"result\.json cannot.*fedskew resume {tmp_path}$"),
            _writing_in_tune(tmp_path),
        ):
            fails(error)
    for error in (EOFError("Ran out of input"), UnpicklingError("pickle data was truncated")):
        told = r"tune cannot be written \(a file of Ray Tune's is cut off\)"
        with pytest.raises(WriteError, match=told), _writing_in_tune(tmp_path):
            fails(error)
    for error in (ValueError("x"), OSError(errno.ENOENT, "x")):
        with pytest.raises(RuntimeError, match="Traceback"), _writing_in_tune(tmp_path):
            fails(error)
    logger, said = logging.getLogger("ray"), StringIO()
    logger.addHandler(handler := logging.StreamHandler(said))
    try:
        with _writing_in_tune(tmp_path):
            logger.error("not saved", exc_info=OSError("full"))
    finally:
        logger.removeHandler(handler)
    assert said.getvalue() == "not saved\n"
    folder = SweepFolder(tmp_path)
    folder.write(TrialRecord("00000", {}, 0))
    with pytest.raises(WriteError):
        _end(folder, "00000", WriteError("rounds.parquet", "x", tmp_path))
    record = folder.record("00000")
    assert record is not None and not record.ended
    _end(folder, "00000", ValueError("x"))
    record = folder.record("00000")
    assert record is not None and record.status == "failed"


def test_names_of_what_is_set_aside(tmp_path: Path) -> None:
    """Kills: a second one that takes the first one's place."""
    for content in ("one", "two", "three"):
        (tmp_path / "x.json").write_text(content)
        files.set_aside(tmp_path / "x.json")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"x.json.damaged": "one", "x.json.damaged-2": "two", "x.json.damaged-3": "three"}


def test_records_are_data(tmp_path: Path) -> None:
    """Kills: what a later version adds, refused."""
    folder = SweepFolder(tmp_path)
    folder.write(TrialRecord("00000", {"mu": float("inf")}, 3))
    path = tmp_path / "trials/00000/trial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"of a later version": 1}))
    assert folder.record("00000") == TrialRecord("00000", {"mu": float("inf")}, 3)
