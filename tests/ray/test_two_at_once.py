"""Several commands at once on one Ray: each ends with its own bits, in its own folder, with actors of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.base.errors import RunFolderError
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.run.run import Run, run
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import load
from engine.sweeps.options import How
from engine.sweeps.running import run_sweep
from tests.support import small_sweeps
from tests.support.waiting import settle

pytestmark = pytest.mark.usefixtures("ray_session")
ROOT = Path(__file__).parents[2]


def cell(actors: int) -> Experiment:
    """Short, with clients' states."""
    return Experiment(
        name="same",
        rounds=4,
        data={"name": "fashion_mnist_sample", "train_samples": 300, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 10, "alpha": 0.1},
        model={"name": "mlp", "hidden": [50]},
        algorithm={"name": "scaffold"},
        local={"batch_size": 32, "lr": 0.05},
        participation={"count": 5},
        execution={"actors": actors, "device": "cpu", "start_timeout": 120},
    )


def test_two_runs_and_a_sweep_on_one_ray(tmp_path: Path) -> None:
    """Kills: names, namespaces, folders or states of clients that two commands share; a sweep that takes a run's room.

    A run, a second time into another folder, and a sweep.
    """
    import ray

    address = ray.get_runtime_context().gcs_address
    (tmp_path / "run.yaml").write_text(cell(1).to_yaml())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])}
    environment.pop("RAY_ADDRESS", None)
    started = {
        out: subprocess.Popen(
            [sys.executable, "-m", "fedskew.cli.main", "run", "run.yaml", "--out", out, "--address", address],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for out in ("first", "again")
    }
    try:
        assert settle((tmp_path / "again" / "experiment.yaml").exists, 120)
        folder = tmp_path / "sweep"
        run_sweep(load(f"{small_sweeps.__file__}:two", "laptop", [], {}), folder, How(mode="inside"))
        for out, process in started.items():
            _, err = process.communicate(timeout=200)
            assert process.returncode == 0, (out, err[-2000:])
    finally:
        for process in started.values():
            process.kill()
    assert ray.util.list_named_actors(all_namespaces=True) == []
    alone = run(cell(0), tmp_path / "alone")
    for out in ("first", "again"):
        found = json.loads((tmp_path / out / "summary.json").read_text())
        for key in ("weights_sha256", "states_sha256", "accuracy"):
            assert found[key] == alone[key], (out, key)
    folder = SweepFolder(tmp_path / "sweep")
    assert [record.status for record in folder.records()] == ["finished", "finished"]
    for record in folder.records():
        experiment, _ = folder.experiment(record.trial)
        alone = run(experiment.replace({"execution.actors": 0}), tmp_path / f"trial {record.trial}")
        assert folder.run_folder(record.trial).summary()["weights_sha256"] == alone["weights_sha256"]


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """Kills: a second command on a run's folder, as it is or with --overwrite, whose files the first one goes on to
    write: the first one ends with its own bits."""
    under_way = Run.open(cell(1), tmp_path / "run")
    under_way.advance(until=1)
    for actors, overwrite in ((0, False), (0, True), (1, True)):
        with pytest.raises(RunFolderError, match="is being written by another process; wait for it or end it"):
            Run.open(cell(actors), tmp_path / "run", overwrite=overwrite)
    while not under_way.finished:
        under_way.advance()
    summary = under_way.close()
    assert summary["weights_sha256"] == run(cell(0), tmp_path / "alone")["weights_sha256"]
    assert RunFolder(tmp_path / "run").summary()["status"] == "finished"
    assert not list((tmp_path / "run").glob(".before-*"))
