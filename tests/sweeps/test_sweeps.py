"""Sweeps on Ray Tune: a trial has the weights of ``fedskew run`` on its recorded schedule. One shared session."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.schedulers import PopulationBasedTraining
from rich.console import Console

from benchmarks.memory import descendants
from engine.base.errors import ConfigError, ResourceError, RunError, RunFolderError
from engine.base.own_modules import import_file
from engine.base.owned import owned
from engine.record.columns import HOW_IT_WENT
from engine.record.metrics import EVALUATED
from engine.record.run_folder import RunFolder
from engine.results import load as load_results
from engine.results.frames.frames import load_results as load_frames
from engine.run.run import Run
from engine.sweeps.folder import TUNE, SweepFolder
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.observers import SweepObserver
from engine.sweeps.options import How
from engine.sweeps.result_grid import tune_results
from engine.sweeps.running import SweepResult, reopened, run_sweep
from engine.sweeps.trial import Trial
from fedskew.cli import sweep as cli_sweep
from fedskew.lab.sweeping.deciding import run_until_decided
from fedskew.lab.sweeping.live import LiveTable, on_terminal
from fedskew.lab.sweeping.merging import merge
from tests.support import small_sweeps
from tests.support.foreign import ANYWHERE, Foreign
from tests.support.resumed import resume_sweep
from tests.support.waiting import settle

pytestmark = pytest.mark.usefixtures("ray_session")
SMALL = str(Path(small_sweeps.__file__))
COMMAND = [sys.executable, "-m", "fedskew.cli.main"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | {"RAY_AUTH_MODE": "disabled"}
OWN = ["seconds", "folder", "rounds_computed"]  # columns of the trials table that may differ between equal sweeps


def named(function: str, *overrides: str) -> NamedSweep:
    return load(f"{SMALL}:{function}", "laptop", overrides, {})


def swept(function: str, out: Path, *overrides: str, observers: Any = (), **how: Any) -> SweepResult:
    how = {"concurrent": 1, "mode": "inside", "store": out.parent / f"store-{out.name}", **how}
    return run_sweep(named(function, *overrides), out, How(**how), observers=observers)


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    sweep = SweepFolder(folder)
    return {record.trial: sweep.run_folder(record.trial).summary() for record in sweep.records()}


def weights(folder: Path) -> dict[str, str]:
    return {trial: summary["weights_sha256"] for trial, summary in summaries(folder).items()}


def direct(folder: Path, trial: str, out: Path, until: int | None = None) -> str:
    """The weights of a trial's experiment, run by itself, in this process."""
    experiment, stopped = SweepFolder(folder).experiment(trial)
    until = until or stopped
    run = Run.open(experiment.replace({"execution.actors": 0}), out)
    while not run.finished and (until is None or run.round < until):
        run.advance(60.0, until)
    return run.close()["weights_sha256"]


def frames(folder: Path, trial: str) -> list[pd.DataFrame]:
    return tables(SweepFolder(folder).run_folder(trial))


def tables(run: RunFolder) -> list[pd.DataFrame]:
    """A run's three tables without what may differ between equal runs."""
    unequal = [*HOW_IT_WENT, "reused"]
    return [run.frame(table.name).drop(columns=unequal, errors="ignore") for table in run.tables]


def comparable(folder: Path) -> pd.DataFrame:
    return load_results(folder).trials.drop(columns=OWN)


def processes(name: str) -> list[int]:
    """Live processes of that class in this test process's Ray session; other test processes have theirs."""
    found = []
    for pid in descendants(os.getpid()):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def grid(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed sweep that others are compared with."""
    folder = tmp_path_factory.mktemp("sweeps") / "grid"
    outcome = swept("grid", folder, concurrent=2)
    assert outcome.statuses == {"finished": 8}
    assert (outcome.rounds_asked, outcome.rounds_computed) == (48, 48)
    return folder


def test_trials_equal_runs_outside_of_tune(grid: Path, tmp_path: Path) -> None:
    """Kills: a trial that gets another trial's setting or seed, an override that is lost, weights that Tune changes."""
    found = weights(grid)
    assert len(set(found.values())) == 8
    assert found == {trial: direct(grid, trial, tmp_path / trial) for trial in found}
    settings = [(record.setting, record.seed) for record in SweepFolder(grid).records()]
    assert settings[1] == ({"mu": 0.0, "alpha": 1.0}, 0)
    experiment, _ = SweepFolder(grid).experiment("00006")
    assert (experiment.value_of("mu"), experiment.value_of("alpha"), experiment.seed) == (1.0, 0.1, 1)


def test_tunes_own_results_stay_usable(grid: Path, tmp_path: Path) -> None:
    """Kills: a finished trial that Tune takes for an error; results that only Tune's restore finds, or only where they
    were made."""
    assert not list((grid / "tune").glob("*/error.txt"))
    kinds = {path.name for path in (grid / "tune").glob("*/*")}
    assert kinds == {"params.json", "params.pkl", "result.json"}  # no more files for each of 10,000 trials
    moved = shutil.copytree(grid, tmp_path / "moved")
    for results in (tune_results(moved), tune.Tuner.restore(str(grid / "tune"), Trial).get_results()):
        assert (len(results), results.num_errors) == (8, 0)
        best = results.get_best_result("last10_accuracy", "max")
        assert best.metrics is not None
        assert best.metrics["last10_accuracy"] == load_results(grid).trials["last10_accuracy"].max()
    assert tune_results(grid).get_best_result().metrics == best.metrics  # by the sweep's metric
    shutil.rmtree(moved / "tune")  # as a merged sweep is
    with pytest.raises(RunFolderError, match=r"moved/tune has no results of Ray Tune .* read the sweep by"):
        tune_results(moved)


def equals_tunes(folder: Path) -> None:
    """Compare fedskew's frames of a sweep with Tune's own results: settings, last figures, figures after each report
    since a trial last copied another one."""
    frames, results = load_frames(folder), tune_results(folder)
    ours, theirs = frames.results.trials.set_index("trial"), results.get_dataframe().set_index("config/trial")
    figures = sorted({*ours} & {*theirs} - {"reason"})
    assert {"accuracy", "loss", "best_accuracy", "last10_accuracy", "rounds_computed"} <= {*figures}
    assert frames.trials["trial"].tolist() == sorted(theirs.index)
    values = (frame.sort_index()[figures].to_numpy(float) for frame in (ours, theirs))
    np.testing.assert_array_equal(*values, strict=True)
    for result in results:
        assert result.config is not None and result.metrics_dataframe is not None
        row = ours.loc[name := Path(result.path).name]
        setting = {axis.name: row[axis.name] for axis in frames.results.axes}
        told = {"trial": name, "seed": row["seed"], **SweepFolder(folder).begun(name).setting, **setting}
        assert result.config == told
        reports = result.metrics_dataframe.drop_duplicates("round", keep="last").set_index("round")
        first = json.loads(row["schedule"])[-1]["first_round"] if row["schedule"] else 1  # with what it ended with
        both = reports.loc[reports.index >= first, list(EVALUATED)].dropna(how="all")
        rounds = frames.rounds[frames.rounds["trial"] == name].set_index("round")
        np.testing.assert_array_equal(both, rounds.loc[both.index, both.columns], strict=True)


SWEPT = ("proposed", "conditional", "conditional_proposed")


@pytest.mark.parametrize("function", ["grid", "broken", *(pytest.param(one, marks=pytest.mark.long) for one in SWEPT)])
def test_frames_are_tunes_own(request: pytest.FixtureRequest, tmp_path: Path, function: str) -> None:
    """Kills: a figure that Tune has heard otherwise than the trial's folder has it, if only in its last bit; a setting
    of another trial; a field of a nested choice that is lost; a failed trial with figures. ASHA's and PBT's: below."""
    if function in SWEPT:
        equals_tunes(swept(function, tmp_path / function).folder)
    else:
        made = request.getfixturevalue(function)
        equals_tunes(made if function == "grid" else made[0])


@pytest.mark.long
def test_trials_whose_folders_are_deleted_are_told(tmp_path: Path) -> None:
    """Kills: "interrupted" where nobody has; a trial whose folder has gone called finished."""
    folder = tmp_path / "deleted"

    class Deletes(SweepObserver):
        def on_trial_end(self, trial: str, status: str, reason: str | None) -> None:
            if trial == "00000":
                shutil.rmtree(folder / "trials" / trial)

    told = "the folders of 1 trials have gone while it ran, the first is trials/00000; continue with: fedskew resume"
    with pytest.raises(RunError, match=f"^{folder}: {told}"):
        swept("two", folder, "rounds=2", observers=[Deletes()], reuse=False)


@pytest.mark.long
def test_nested_trials_give_the_same_weights_and_leave_nothing(grid: Path, tmp_path: Path) -> None:
    """Kills: client actors outside of the trial's placement group or after its end; bits that depend on the mode."""
    import ray
    from ray.util import placement_group_table

    outcome = swept("pair", tmp_path / "nested", "mu=0", mode="nested", concurrent=1, reuse=False)
    assert outcome.statuses == {"finished": 1}
    inside = {
        record.setting["mu"]: weights(grid)[record.trial]
        for record in SweepFolder(grid).records()
        if record.setting["alpha"] == 0.1 and record.setting["mu"] == 0.0 and record.seed == 0
    }
    nested = SweepFolder(tmp_path / "nested").records()
    assert {record.setting["mu"]: weights(tmp_path / "nested")[record.trial] for record in nested} == inside
    clients = SweepFolder(tmp_path / "nested").run_folder("00000").frame("clients")
    assert set(clients["actor"]) == {0, 1}
    assert settle(lambda: not processes("ClientActor") and not processes("Trial"))
    assert settle(lambda: ray.available_resources().get("CPU") == 8)
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}


def in_portions(monkeypatch: pytest.MonkeyPatch, trials: int) -> None:
    """Let sweeps run so many trials in one Tune."""
    monkeypatch.setattr("engine.sweeps.tuner.portion_for", lambda slots: trials)


@pytest.mark.long
def test_shared_prefixes_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a warm-up that is computed twice, reused rows that differ from computed ones, costs that leave them out;
    a portion of trials that computes again, or waits for, what one before it has computed.

    Warm-ups of 3, 5 and 7 rounds cost 7; each of six trials serves 2 rounds of its own: 7 + 12 of 2 (3 + 5 + 7) + 12.
    """
    with monkeypatch.context() as patch:
        in_portions(patch, 4)
        outcome = swept("warmup", tmp_path / "with", concurrent=2)
    assert (outcome.rounds_asked, outcome.rounds_computed) == (42, 19)
    for trial, found in summaries(tmp_path / "with").items():
        direct(tmp_path / "with", trial, tmp_path / trial)
        alone = RunFolder(tmp_path / trial)
        unequal = ("rounds_computed", "seconds", "seconds_per_round")
        assert found == {**alone.summary(), **{key: found[key] for key in unequal}}
        for shared, computed in zip(frames(tmp_path / "with", trial), tables(alone), strict=True):
            pd.testing.assert_frame_equal(shared, computed)
    reused = SweepFolder(tmp_path / "with").run_folder("00002").frame("rounds")["reused"]
    assert reused.tolist() == [True] * 5 + [False] * 4


@pytest.mark.long
def test_seeds_are_added_and_no_trial_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: trials of earlier seeds that are run again at each look; a seed's partition or weights that depend on
    whether it was added; a look that is lost with the process that made it."""
    folder = tmp_path / "decided"

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    how = How(mode="inside", reuse=False, concurrent=1)
    with pytest.raises(KeyboardInterrupt):
        run_until_decided(replace(named("claimed"), most=4), folder, how, measured_by=dies)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/*.json")}
    begun: list[str] = []
    monkeypatch.setattr(LiveTable, "on_trial_start", lambda self, trial, config: begun.append(trial))
    again, given = reopened(folder, {})
    _, outcome, verdicts = run_until_decided(again, folder, given, observers=on_terminal(Console(file=StringIO())))
    assert sorted(begun) == ["00004", "00005", "00006", "00007"]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert (outcome.trials, outcome.statuses, outcome.rounds_computed) == (8, {"finished": 8}, 8)
    assert [len(one.seeds) for one in verdicts] == [4]
    assert [SweepFolder(folder).experiment(f"{n:05d}")[0].value_of("partition.seed") for n in range(8)] == [
        0, 0, 1, 1, 2, 2, 3, 3
    ]  # fmt: skip
    assert weights(folder)["00007"] == direct(folder, "00007", tmp_path / "direct")


@pytest.mark.long
def test_asha_stops_trials_where_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a stopped trial whose weights are those of another round; one that counts as finished; one kept alive; a
    portion of trials whose scheduler knows nothing of the one before: there the first trial is never stopped."""
    in_portions(monkeypatch, 3)
    # One after the other: which trials ASHA stops depends on who reports first, and the best one is the first here.
    outcome = swept("asha", tmp_path / "asha", concurrent=1)
    records = {record.trial: record for record in SweepFolder(tmp_path / "asha").records()}
    stopped = [record for record in records.values() if record.status == "stopped"]
    assert stopped, records
    assert sum(outcome.statuses.values()) == 6
    assert set(outcome.statuses) == {"finished", "stopped"}
    assert all(record.rounds in (2, 4, 6) and record.reason for record in stopped)
    equals_tunes(tmp_path / "asha")  # of both portions
    found = weights(tmp_path / "asha")
    for trial in found:
        assert direct(tmp_path / "asha", trial, tmp_path / trial) == found[trial]
    assert records["00000"].status == "finished"  # the best learning rate
    assert records["00003"].status == "stopped"  # the worst one, and the first of its portion
    assert settle(lambda: not processes("Trial"))


class Scripted(PopulationBasedTraining):
    """PBT that finds at each look what is written here: which trials are the worst, and which the best."""

    # The second copies the first after round 2; the first, in round 6, what the second had come to in round 4.
    LOOKS = (([], [0]), ([1], [0]), ([], []), ([], [1]), ([0], [1]))

    def __init__(self, *positions: Any, **fields: Any) -> None:
        super().__init__(*positions, **fields)
        self._looks = iter(self.LOOKS)

    def _quantiles(self) -> tuple[list[Any], list[Any]]:
        trials = sorted(self._trial_state, key=str)
        worst, best = next(self._looks, ([], []))
        return [trials[number] for number in worst], [trials[number] for number in best]


def test_pbt_copies_and_perturbs_with_the_right_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a copy that keeps its old weights, state or hyper-parameters; a schedule that hides it; a population of
    which one trial ends before another is under way; tables, of Tune's too, that pair the last accuracy with what a
    trial began with; a report told with what its trial goes on with; a copy under the name of the trial it copied."""
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(
        LiveTable, "on_trial_result", lambda self, trial, config, _: told.append((trial, config["local.lr"]))
    )
    monkeypatch.setattr("engine.sweeps.tuner.PopulationBasedTraining", Scripted)
    observers = on_terminal(Console(file=StringIO()))
    outcome = swept("pbt", tmp_path / "pbt", observers=observers, concurrent=None)
    assert outcome.statuses == {"finished": 2}
    assert outcome.rounds_asked == 16
    assert [trial for trial, _ in told[:2]] == ["00000", "00001"]  # those without a place take turns
    found, folder = weights(tmp_path / "pbt"), SweepFolder(tmp_path / "pbt")
    first, second = folder.records()
    schedules = [[(entry["first_round"], entry["from"]) for entry in one.schedule] for one in (first, second)]
    assert schedules == [[(1, None), (3, "00000"), (5, "00001")], [(1, None), (3, "00000")]]
    assert first.schedule[1] == second.schedule[1]  # what it has copied was a copy
    # What a copy took the place of was computed, too; the rounds that it brought along were not.
    assert [(record.replaced, record.rounds_computed) for record in (first, second)] == [(6, 10), (2, 8)]
    assert outcome.rounds_computed == 18
    for record in (first, second):
        rows = folder.run_folder(record.trial).frame("rounds")
        assert int((~rows["reused"]).sum()) == record.rounds_computed - record.replaced
        assert direct(folder.path, record.trial, tmp_path / record.trial) == found[record.trial]
        last = record.schedule[-1]
        parent = direct(folder.path, record.trial, tmp_path / f"{record.trial}-parent", until=last["first_round"] - 1)
        assert last["parent"] == parent
        experiment, _ = folder.experiment(record.trial)
        assert experiment.at(8).value_of("local.lr") == last["set"]["local.lr"]
        rates = rows.set_index("round")["lr"]
        assert rates[last["first_round"]] == last["set"]["local.lr"] != rates[last["first_round"] - 1]
        row = load_results(folder.path).trials.set_index("trial").loc[record.trial]
        assert (row["local.lr"], row["parent"]) == (last["set"]["local.lr"], last["from"])
        assert json.loads(row["schedule"]) == record.schedule
    equals_tunes(folder.path)
    for record, own, copied in ((first, 3, 2), (second, 1, 3)):  # reports of weights of its own, and of a copy's
        rates = [record.setting["local.lr"]] * own + [record.schedule[-1]["set"]["local.lr"]] * copied
        assert [rate for trial, rate in told if trial == record.trial] == rates
    trials = tune.ExperimentAnalysis(str(folder.tune)).trials
    assert {one.evaluated_params["local.lr"] for one in trials} == {one.config["local.lr"] for one in trials}


def test_pbt_has_no_places_to_give_away(tmp_path: Path) -> None:
    """Kills: a population of as many as run at a time."""
    with pytest.raises(ConfigError, match="--concurrent=2: is not for PBT"):
        swept("pbt", tmp_path / "pbt", concurrent=2)


class Meddling(tune.Callback):
    """Says that each trial has reached its goal, and fails as the second one starts, as one whose server is down."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.asked.append(str(trial))
        if str(trial) == "00001":
            raise ConnectionError("no server")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.asked.append("result")
        result["accuracy"] = 1.0


def test_a_goal_that_is_reached_counts(tmp_path: Path) -> None:
    """Kills: trials that came as far as was asked for, left out of the analysis; one that goes on beyond; a callback of
    the sweep's author that is not asked, that ends a trial or, by its own error, the sweep, without a word; a report
    that a logger of Tune's writes twice, or as the callback beside it has changed it."""
    meddling, console = Meddling(), Console(record=True, width=200, file=StringIO())
    asked = named("goal")
    loggers = JsonLoggerCallback(), CSVLoggerCallback()
    asked = replace(asked, sweep=replace(asked.sweep, callbacks=(meddling, *loggers)))
    how = How(concurrent=1, mode="inside", store=tmp_path / "store")
    outcome = run_sweep(asked, tmp_path / "goal", how, observers=on_terminal(console))
    assert meddling.asked[:2] == ["00000", "result"] and meddling.asked[-1] == "00001"
    assert "callback Meddling raised in on_trial_start (ConnectionError: no server)" in console.export_text()
    assert outcome.statuses == {"finished": 2}
    record = SweepFolder(tmp_path / "goal").record("00000")
    assert record is not None and record.rounds < 6 and "accuracy=" in (record.reason or "")
    assert load_results(tmp_path / "goal").settings()["seeds"].tolist() == [1, 1]
    assert direct(tmp_path / "goal", "00000", tmp_path / "direct") == weights(tmp_path / "goal")["00000"]
    for trial in ("00000", "00001"):
        accuracy = frames(tmp_path / "goal", trial)[2]["accuracy"].tolist()
        written = tmp_path / "goal" / "tune" / trial / "result.json"
        reports = [json.loads(line) for line in written.read_text().splitlines()]
        assert [(one["round"], one["accuracy"]) for one in reports] == list(enumerate(accuracy, start=1))
        assert pd.read_csv(written.with_name("progress.csv"))["accuracy"].tolist() == accuracy


@pytest.fixture(autouse=True)
def given() -> None:
    """The file of the sweeps is given with each resume, as by --with."""
    import_file(Path(SMALL), "--with")


def killed(function: str, folder: Path, when: Any, *options: str) -> list[str]:
    """Begin a sweep in a process of its own, kill it without a word as soon as ``when``; the trials that had ended."""
    import ray

    command = [*COMMAND, "sweep", f"{SMALL}:{function}", "--out", str(folder), "--mode", "inside"]
    command += ["--address", ray.get_runtime_context().gcs_address, *options]
    environment = {**ENVIRONMENT, "GATE": str(folder / "gate")}  # which nobody opens
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    reached = lambda: (folder / "trials").exists() and when(SweepFolder(folder).records())  # noqa: E731
    try:
        assert settle(lambda: reached() or process.poll() is not None, 120)
        assert reached(), f"the sweep ended with {process.poll()} before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert settle(lambda: not processes("Trial"), 120)  # Ray ends them, in its own time on a busy machine
    return [record.trial for record in SweepFolder(folder).records() if record.ended]


@pytest.mark.long
def test_a_killed_population_goes_on_where_it_was(tmp_path: Path) -> None:
    """Kills: a resume with the hyper-parameters of the start, a schedule that is not what was computed; Tune's old
    results, or a trial's old run, cleared away with what lies beside them, or not at all."""
    folder = SweepFolder(tmp_path / "pbt")
    killed("gated_pbt", folder.path, lambda records: any(len(record.schedule) > 1 for record in records))
    assert {path for path in folder.tune.rglob("*") if path.is_file()} == set(owned(folder.tune, TUNE))
    foreign = Foreign(folder.path, random.Random(0))
    foreign.plant(
        name for name in ANYWHERE if "checkpoint_0" not in name
    )  # a checkpoint of Tune's is its own to delete
    for place in ("trials/00000", "trials/00001", "tune/00001", "trials/00001/fetched"):
        foreign.plant(ANYWHERE, below=folder.path / place)
    _, outcome = resume_sweep(folder.path)
    assert foreign.lost == []
    assert outcome.statuses == {"finished": 2}, [record.reason for record in folder.records()]
    for record in folder.records():
        assert direct(folder.path, record.trial, tmp_path / record.trial) == weights(folder.path)[record.trial]
        experiment, _ = folder.experiment(record.trial)
        changes = {change.round: change.set for change in experiment.schedule}
        assert changes == {entry["first_round"]: entry["set"] for entry in record.schedule if entry["parent"]}
    before = folder.records()
    resume_sweep(folder.path)  # nothing is left
    assert folder.records() == before


@pytest.fixture(scope="module")
def broken(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepResult]:
    """A sweep of which one trial fails."""
    folder = tmp_path_factory.mktemp("sweeps") / "broken"
    return folder, swept("broken", folder)


def test_a_failed_trial_is_recorded_and_the_sweep_goes_on(broken: tuple[Path, SweepResult]) -> None:
    """Kills: a trial without its reason, a NaN that ends the sweep, one that is tried again and again."""
    folder, outcome = broken
    assert outcome.statuses == {"finished": 1, "failed": 1}
    record = SweepFolder(folder).record("00001")
    assert record is not None and record.reason is not None
    assert "diverged in round 1" in record.reason
    trials = comparable(folder)
    assert trials["status"].tolist() == ["finished", "failed"]
    assert trials["last10_accuracy"].isna().tolist() == [False, True]


@pytest.mark.long
def test_a_failed_trial_can_be_tried_again(broken: tuple[Path, SweepResult]) -> None:
    """Kills: a failed trial that no resume can take up, one that every resume takes up; exit code 0 where every trial
    failed."""
    folder = SweepFolder(broken[0])
    failed, healthy = folder.record("00001"), folder.record("00000")
    assert failed is not None and failed.rounds_asked == failed.rounds == 0 and failed.schedule
    assert healthy is not None
    folder.write(dataclasses.replace(healthy, status="failed", reason="no space left"))
    assert cli_sweep.resume(folder.path, None, retry_failed=False) == 1  # nothing is left of it
    assert load_results(folder.path).completeness.statuses["failed"] == 2
    assert (folder.path / "report" / "report.html").exists()
    told = list[int]()
    observer = type("Counting", (SweepObserver,), {"on_start": lambda self, start: told.append(start.ended)})()
    named, how = reopened(folder.path, {})
    outcome = run_sweep(named, folder.path, how, observers=[observer], retry_failed=True)
    assert outcome.statuses == {"finished": 1, "failed": 1} and told == [0]
    assert folder.record("00000") == healthy


@pytest.mark.long
def test_a_merged_sweep_goes_on(tmp_path: Path) -> None:
    """Kills: a merged folder that cannot be resumed, or computes what it has."""
    parts = [small_sweeps.in_process("claimed", tmp_path / f"seed{seed}", f"seeds={seed}") for seed in (0, 1)]
    wanted = [*weights(parts[0]).values(), *weights(parts[1]).values()]
    shutil.rmtree(parts[1] / "trials" / "00001")
    assert merge(tmp_path / "merged", parts, {}).missing == ("00003",)
    before = (tmp_path / "merged" / "trials" / "00002" / "summary.json").stat().st_mtime_ns
    assert resume_sweep(tmp_path / "merged")[1].statuses == {"finished": 4}
    assert [*weights(tmp_path / "merged").values()] == wanted
    assert (tmp_path / "merged" / "trials" / "00002" / "summary.json").stat().st_mtime_ns == before


def test_a_trial_that_fits_no_node_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Kills: a trial that stays pending for ever; a folder of a sweep that never began."""
    with pytest.raises(
        ResourceError, match=r"one trial does not fit this cluster \(CPU: 64 asked for, 8 in the cluster"
    ):
        swept("grid", tmp_path / "big", "execution.threads=64", "execution.cpus_per_actor=64")
    with pytest.raises(ResourceError, match=r"CPU: 9 asked for"):
        swept("grid", tmp_path / "big", "execution.actors=9", mode="nested")
    with pytest.raises(ConfigError, match="mu=2: is varied by this sweep"):
        swept("grid", tmp_path / "big", "mu=2")
    assert not (tmp_path / "big").exists()


@pytest.mark.long
def test_a_searcher_sees_means_over_seeds(tmp_path: Path) -> None:
    """Kills: a proposal whose seeds are split, or proposals that ignore what was found; random settings that are
    drawn a second time after a resume."""
    pytest.importorskip("optuna")
    outcome = swept("proposed", tmp_path / "proposed")
    assert outcome.statuses == {"finished": 8}
    records = SweepFolder(tmp_path / "proposed").records()
    assert [record.seed for record in records] == [0, 1] * 4
    assert [records[2 * n].setting == records[2 * n + 1].setting for n in range(4)] == [True] * 4
    assert len({json.dumps(record.setting) for record in records}) == 4
    again, _ = resume_sweep(tmp_path / "proposed")  # all ended: told to a new searcher, nothing computed
    assert again.name == "small_sweeps.proposed"
    assert [record.setting for record in SweepFolder(tmp_path / "proposed").records()] == [r.setting for r in records]
    # As a killed search is left: half of the settings were never proposed, and of one that was a trial is gone.
    folder = SweepFolder(tmp_path / "proposed")
    for trial in ("00003", "00004", "00005", "00006", "00007"):
        shutil.rmtree(folder.path / "trials" / trial)
    known = folder.plan().values()
    folder.write_plan([one if one.trial < "00004" else dataclasses.replace(one, setting=None) for one in known])
    _, outcome = resume_sweep(folder.path)
    assert outcome.statuses == {"finished": 8}
    settings = [record.setting for record in folder.records()]
    assert settings[:4] == [record.setting for record in records[:4]] and settings[::2] == settings[1::2]
    assert len({json.dumps(setting) for setting in settings}) == 4


@pytest.mark.long
def test_killed_and_resumed_equals_undisturbed(grid: Path, tmp_path: Path) -> None:
    """Kills: a resume that forgets finished trials, runs them again, or loses the rounds of unfinished ones; one that
    passes over a trial that is gone or damaged, ends at one, or gives it other weights or rows."""
    folder = tmp_path / "killed"
    six_ended = lambda records: sum(record.ended for record in records) >= 6  # noqa: E731
    ended = killed("grid", folder, six_ended, "--concurrent", "2")
    before = {trial: SweepFolder(folder).run_folder(trial).summary() for trial in ended}
    gone, unread, wrong, unknown, cut, *kept = ended
    assert 1 <= len(kept) < 3
    # Of those that had ended five are lost or damaged: they are computed again, as are those that had not.
    trials = folder / "trials"
    shutil.rmtree(trials / gone)
    (trials / unread / "trial.json").write_text("{")
    (trials / wrong / "summary.json").write_text(json.dumps(before[wrong] | {"accuracy": "high"}))
    (trials / unknown / "experiment.yaml").unlink()
    (trials / cut / "rounds.parquet").write_bytes(b"PAR1")
    found = load_results(folder).completeness.statuses
    assert (found["finished"], found["damaged"]) == (len(kept), 4)
    assert sum(found.values()) == 8
    _, again = resume_sweep(folder)
    assert again.statuses == {"finished": 8}
    after = summaries(folder)
    assert {trial: after[trial] for trial in kept} == {trial: before[trial] for trial in kept}  # seconds included
    pd.testing.assert_frame_equal(comparable(folder), comparable(grid))
    assert weights(folder) == weights(grid)
    for trial in weights(grid):
        for mended, whole in zip(frames(folder, trial), frames(grid, trial), strict=True):
            pd.testing.assert_frame_equal(mended, whole)
