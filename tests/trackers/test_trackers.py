"""MLflow, TensorBoard and W&B, each read back by its own reader: counts and values are those of the parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import trackers
from engine.record.run_folder import RunFolder
from fedskew.trackers.exporting import exported
from fedskew.trackers.records import Record
from fedskew.trackers.tensorboard import TensorBoard
from tests.support.sweep_folders import MU, make_sweep

# Of mlflow's own use of SQLAlchemy, and of wandb's of its messages.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")
Told = Mapping[str, Any]  # name of a trial -> key -> [(step, value)]; under "" what else is to be compared


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file outside of the test's folder, no network, no variable of whoever runs the tests."""
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def in_mlflow(place: Path) -> Told:
    """By ``MlflowClient``."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedskew")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    (parent,) = (run for name, run in runs.items() if name.startswith("made."))
    found: dict[str, Any] = {}
    for name, run in runs.items():
        histories = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        found[name] = {key: sorted((one.step, one.value) for one in some) for key, some in histories.items()}
        if run is not parent:
            assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert run.info.status == {"00001": "FAILED", "00002": "KILLED"}.get(name, "FINISHED")
            assert all(len({one.timestamp for one in some}) == len(some) for some in histories.values())
    names = {one.path for one in client.list_artifacts(runs["00000"].info.run_id)}
    assert {"experiment.yaml", "summary.json"} <= names
    found[""] = {name: (run.data.params, run.data.tags.get("fedskew.weights_sha256")) for name, run in runs.items()}
    return found


def in_tensorboard(place: Path) -> Told:
    """By ``EventAccumulator``."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found: dict[str, Any] = {"": {}}
    for folder in sorted({path.parent for path in place.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        found[folder.name] = {
            key: sorted((one.step, one.value) for one in events.Scalars(key)) for key in events.Tags()["scalars"]
        }
        content = events.PluginTagToContent("hparams")
        start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
        assert metadata.SESSION_END_INFO_TAG in content
        values = {key: getattr(one, str(one.WhichOneof("kind"))) for key, one in start.hparams.items()}
        text = events.Tensors("fedskew/result/text_summary")
        found[""][folder.name] = values, text[-1].tensor_proto.string_val[0].decode()
    return found


def expected(trial: Path) -> dict[str, list[tuple[int, float]]]:
    """The numbers of a trial's tables, by a reader that knows nothing of the exporter: key -> [(round, value)]."""
    begun = (trial / "rounds.parquet").exists()
    return {key: sorted(some) for key, some in trackers.of_tables(trial).items()} if begun else {}


def grow(trial: Path) -> None:
    """One more round."""
    run = RunFolder(trial)
    last = int(run.frame("rounds")["round"].iloc[-1])
    run.rounds.add({"stage": "train", "round": last + 1, "lr": 0.25, "seconds": 0.5, "evaluation_seconds": 0.5})
    run.flush()


def small_sweep(folder: Path, seeds: tuple[int, ...] = (0,), **fields: Any) -> Path:
    """Four trials of two rounds; one failed, one was stopped."""
    return make_sweep(folder, axes=[MU], seeds=seeds, rounds=3, failed=[1], stopped=[2], client_rows=False, **fields)


@pytest.mark.parametrize(("kind", "read"), [("mlflow", in_mlflow), ("tensorboard", in_tensorboard)])
def test_a_sweep_is_read_back_as_it_is(tmp_path: Path, kind: str, read: Callable[[Path], Told]) -> None:
    """Kills: a number that is lost, changed or told twice, a second export that adds anything, a trial without its
    parent, its parameters or its weights' hash; one that has grown and whose new round is not told, or all of it."""
    pytest.importorskip(kind)
    sweep, place = small_sweep(tmp_path / "sweep"), tmp_path / kind
    exported(sweep, kind, str(place))
    first = read(place)
    exact = (lambda value: value) if kind == "mlflow" else np.float32  # TensorBoard's scalars are of 32 bits
    for number in ("00000", "00001", "00002", "00003"):
        tables = {key: some for key, some in first[number].items() if not key.startswith("summary/")}
        wanted = {
            key: [(step, exact(value)) for step, value in some]
            for key, some in expected(sweep / "trials" / number).items()
        }
        assert tables == wanted, number
    params, result = first[""]["00003"]
    assert float(params["setting.mu"]) == float(params["algorithm.mu"]) == 1.0 and params["model.name"] == "mlp"
    assert RunFolder(sweep / "trials/00003").summary()["weights_sha256"] in result
    assert exported(sweep, kind, str(place))[1].startswith("0 new")
    assert read(place) == first
    grow(sweep / "trials/00003")
    added = int(exported(sweep, kind, str(place))[1].split()[0])
    again = read(place)
    changed = {key for key, some in again["00003"].items() if some != first["00003"][key]}
    assert (
        added == len(changed) and again["00003"]["rounds/lr"][-1] == (4, 0.25) and len(again["00003"]["rounds/lr"]) == 4
    )
    assert {name: again[name] for name in again if name not in ("", "00003")} == {
        name: first[name] for name in first if name not in ("", "00003")
    }


def test_a_sweep_in_wandb(tmp_path: Path) -> None:
    """Kills: numbers of one trial under another's name, a trial left out, one that has failed told as one that has not;
    trials that are not in their sweep's group; a second export that leaves any run again."""
    pytest.importorskip("wandb")
    sweep, place = small_sweep(tmp_path / "sweep"), tmp_path / "wandb"
    exported(sweep, "wandb", str(place))
    told = trackers.in_wandb(place)
    numbers = {trial: expected(sweep / "trials" / trial) for trial in ("00000", "00001", "00002", "00003")}
    assert {trial: {key: sorted(some) for key, some in told[trial].items()} for trial in numbers} == numbers
    assert told.keys() == {*numbers, "sweep"} and trackers.compared(told, numbers)["equal"]
    runs, ends = {}, {}
    for path in place.glob("wandb/offline-run-*/run-*.wandb"):
        (run,) = trackers.records(path, "run")
        name = run["config"]["update"].get("fedskew.trial", "")
        runs[name] = run["run_group"], run["job_type"], run["config"]["update"].get("setting.mu")
        ends[name] = trackers.records(path, "exit")[-1].get("exit_code", 0)
    group = runs[""][0]
    assert runs == {"": (group, "sweep", None)} | {f"{n:05d}": (group, "trial", MU["values"][n]) for n in range(4)}
    assert {name for name, code in ends.items() if code} == {"00001"}
    assert exported(sweep, "wandb", str(place))[1].startswith("0 new")
    assert len(list(place.glob("wandb/offline-run-*"))) == 5
    grow(sweep / "trials/00003")
    exported(sweep, "wandb", str(place))
    assert sorted(trackers.in_wandb(place)["00003"]["rounds/lr"]) == [(1, 0.05), (2, 0.05), (3, 0.05), (4, 0.25)]


def test_folders_of_tensorboard_have_plain_names(tmp_path: Path) -> None:
    """Kills: a trial, or a sweep's name, that leads out of the folder."""
    pytest.importorskip("tensorboard")
    record = Record("k/../..", "../../up", {}, {}, 0.0, Record("../p", "a/b", {}, {}, 0.0))
    assert TensorBoard(str(tmp_path)).folder(record).resolve().parent.parent == tmp_path.resolve()


def test_tensorboard_keeps_trials_of_other_weights_apart(tmp_path: Path) -> None:
    """Kills: one folder of events for a trial of two machines; a folder that does not begin with the trial's name."""
    pytest.importorskip("tensorboard")
    board = TensorBoard(str(tmp_path))
    folders = [
        board.folder(Record(f"d/00001-{one}", "00001", {}, {}, 0.0, Record("d", "s", {}, {}, 0.0)))
        for one in ("ab", "cd")
    ]
    assert [one.name for one in folders] == ["00001-ab", "00001-cd"]
