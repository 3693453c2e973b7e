"""Trackers beside real sweeps: an MLflow server on loopback, TensorBoard and W&B offline, each read back by its own.

    python -m benchmarks.trackers [--out FOLDER] [--rounds N] [--results FOLDER]

Four sweeps of four trials: one without a tracker, which is exported afterwards; one tracked live by all three; one
whose MLflow server is killed in mid-sweep, and which is made whole by an export when there is a server again. Counts
and values are compared with the parquet, trial by trial, weights with those of the first sweep. The exit code is 1 if
something is another than it must be; ``trackers.json`` has what was found. Needs the extras mlflow, tensorboard and
wandb.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.common import RESULTS, save

SWEEP = '''
from ray import tune
from engine.experiment import Experiment
from engine.sweeps.definition import Sweep

def small(profile):
    """Four trials of FedProx."""
    base = Experiment(
        name="small", rounds=ROUNDS, data={"name": "fashion_mnist_sample", "train_samples": 400, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 8, "alpha": 0.3}, model={"name": "mlp", "hidden": [16]},
        algorithm={"name": "fedprox", "mu": 0.1}, local={"epochs": 5}, participation={"count": 4},
        checkpoint={"every": 2}, execution={"actors": 1, "device": "cpu"},
    )
    return Sweep(base=base, space={"mu": tune.grid_search([0.0, 1.0])}, seeds=(0, 1))
'''
Numbers = dict[str, list[tuple[int, float]]]  # key -> [(step, value)]


class Server:
    """An MLflow server on loopback with a database of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        folder.mkdir(parents=True)

    def start(self) -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}"]
        words += ["--artifacts-destination", str(self._folder / "artifacts")]
        log = (self._folder / "server.log").open("ab")
        # Without the seven processes for jobs that a server starts, and that nothing here asks for.
        only_stores = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        command = [sys.executable, "-m", "mlflow", *words]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, env=only_stores, start_new_session=True)
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", self.port)))

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Server:
        try:
            self.start()
        except TimeoutError:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def told(self) -> int:
        """Count the numbers in its database, without a request that a busy machine would delay."""
        with closing(sqlite3.connect(f"file:{self._folder / 'server.db'}?mode=ro", uri=True)) as database:
            return database.execute("select count(*) from metrics").fetchone()[0]

    def read(self, sweep: Path) -> dict[str, Numbers]:
        """The numbers of each trial of the sweep that was told under this folder's name, by ``MlflowClient``."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("fedskew")
        if experiment is None:
            return {}
        runs = client.search_runs([experiment.experiment_id])
        parents = {run.info.run_id for run in runs if run.data.tags.get("fedskew.folder") == sweep.name}
        found: dict[str, Numbers] = {}
        for run in runs:
            if run.data.tags.get("mlflow.parentRunId") in parents:
                some = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
                found[str(run.info.run_name)] = {
                    key: [(one.step, one.value) for one in rows] for key, rows in some.items()
                }
        return found


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait until it holds; raises :class:`TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("nothing came of it")
        time.sleep(0.2)


def sweep(file: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    """Begin a sweep by the command, with a store of its own."""
    command = [sys.executable, "-m", "fedskew.cli.main", "sweep", f"{file}:small", "--out", str(out)]
    command += ["--store", f"{out}-store", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the command; the lines that it said of trackers. Raises :class:`RuntimeError` if it failed."""
    _, text = process.communicate()
    if process.returncode:
        raise RuntimeError(text)
    return [line for line in text.splitlines() if line.startswith("track") or "exported" in line]


def weights(folder: Path) -> dict[str, str]:
    trials = sorted((folder / "trials").iterdir())
    return {one.name: json.loads((one / "summary.json").read_text())["weights_sha256"] for one in trials}


def of_tables(trial: Path) -> Numbers:
    """Return the numbers of a trial's tables as a tracker is to have them, read by pyarrow alone.

    A number of a column is TABLE/COLUMN at the round of its row; of a list by classes, or a mapping, each by itself.
    """
    found: Numbers = {}
    for table in ("rounds", "evaluations"):
        for row in pq.read_table(trial / f"{table}.parquet").to_pylist():
            values = dict(row)
            values |= {f"class_accuracy/{c}": one for c, one in enumerate(values.pop("class_accuracy", ()))}
            values |= {f"scalars/{name}": one for name, one in values.pop("scalars", None) or ()}
            for column, value in values.items():
                is_number = type(value) in (int, float) and math.isfinite(value)
                if is_number and column != "round":
                    found.setdefault(f"{table}/{column}", []).append((row["round"], value))
    return found


def on_disk(folder: Path) -> dict[str, Numbers]:
    """Return the numbers of each trial of a sweep."""
    return {trial.name: of_tables(trial) for trial in sorted((folder / "trials").iterdir())}


def in_tensorboard(place: Path) -> dict[str, Numbers]:
    """Return what TensorBoard's own reader finds, by folder: a trial's begins with its name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, Numbers] = {}
    for folder in sorted({path.parent for path in place.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        name = folder.name if folder.parent == place else folder.name.partition("-")[0]
        found[name] = {k: [(one.step, one.value) for one in events.Scalars(k)] for k in events.Tags()["scalars"]}
    return found


def in_wandb(place: Path) -> dict[str, Numbers]:
    """Return what W&B's own reader finds, by the trial that a run's config names; a run may have several files."""
    found: dict[str, Numbers] = {}
    for path in sorted(place.glob("wandb/*run-*/run-*.wandb")):
        config = records(path, "run")[0]["config"]["update"]
        numbers = found.setdefault(config.get("fedskew.trial") or config["fedskew.kind"], {})
        for item in (one["item"] for one in records(path, "history")):
            for key in [key for key in item if not key.startswith("_") and key != "round"]:
                numbers.setdefault(key, []).append((item["round"], item[key]))
    return found


def records(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind in a file of W&B's."""
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return [one.get(kind, {}) for one in map(json.loads, lines) if one["type"] == kind]


def compared(
    told: Mapping[str, Numbers], wanted: Mapping[str, Numbers], exact: Callable[[float], Any] = float
) -> dict[str, Any]:
    """Say how many numbers there are, and whether each trial's are those of its own tables, each once.

    What a tracker was told of the end of a run, and of the sweep as a whole, is in no table and does not count.
    """

    def plain(numbers: Numbers) -> list[tuple[str, int, Any]]:
        rows = ((key, step, exact(value)) for key, some in numbers.items() for step, value in some)
        return sorted(row for row in rows if not row[0].startswith(("summary/", "sweep/")))

    have, want = (
        {trial: rows for trial, numbers in side.items() if (rows := plain(numbers))} for side in (told, wanted)
    )
    counts = {"told": sum(map(len, have.values())), "in_tables": sum(map(len, want.values()))}
    return {**counts, "trials": len(have), "equal": have == want}


class Findings:
    """What came of it, printed as it comes, and kept."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self._wrong = list[str]()

    def note(self, name: str, found: Any, right: bool = True) -> None:
        """Keep what was found; ``right``: whether it is as it must be."""
        self.by_name[name] = found
        self._wrong += [] if right else [name]
        print(f"{name}: {found}{'' if right else '  DIFFERENT'}", flush=True)

    def numbers(self, name: str, found: dict[str, Any]) -> None:
        """Keep what :func:`compared` found of numbers that must be equal, and not none."""
        self.note(name, found, found["equal"] and found["told"] > 0)

    def exit_code(self) -> int:
        """Return 1 where something is not as it must be, and name it."""
        for name in self._wrong:
            print("DIFFERENT", name)
        return int(bool(self._wrong))


def main() -> int:
    """Run all of it, write what came of it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/trackers"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for trackers.json")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True)
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    file = out / "small_sweep.py"
    file.write_text(SWEEP.replace("ROUNDS", str(arguments.rounds)))
    found = Findings()
    plain = out / "plain"
    said(sweep(file, plain))
    found.note("trials", len(weights(plain)))
    _live(file, out, found)
    _exported(out, found)
    _killed(file, out, found)
    versions = {name: version(name) for name in ("mlflow", "tensorboard", "wandb")}
    save("trackers", {"rounds": arguments.rounds, "trackers": versions, "found": found.by_name}, arguments.results)
    return found.exit_code()


def _live(file: Path, out: Path, found: Findings) -> None:
    """Track a sweep by all three while it runs, and read each back."""
    live = out / "live"
    with Server(out / "server") as server:
        places = [f"mlflow:{server.uri}", f"tensorboard:{out / 'tb'}", f"wandb:{out / 'wandb'}"]
        for line in said(sweep(file, live, *(word for place in places for word in ("--track", place)))):
            print(line)
        found.note("weights of the tracked sweep equal", same := weights(live) == weights(out / "plain"), same)
        found.numbers("MLflow, live", compared(server.read(live), on_disk(live)))
    found.numbers("TensorBoard, live", compared(in_tensorboard(out / "tb"), on_disk(live), np.float32))
    found.numbers("W&B offline, live", compared(in_wandb(out / "wandb"), on_disk(live)))


def _exported(out: Path, found: Findings) -> None:
    """Export the sweep without a tracker twice, to a server of its own: the same sweep has the same key."""
    plain = out / "plain"
    with Server(out / "other") as server:
        export(plain, server)
        found.numbers("MLflow, exported", compared(server.read(plain), on_disk(plain)))
        export(plain, server)
        found.numbers("MLflow, exported twice", compared(server.read(plain), on_disk(plain)))


def _killed(file: Path, out: Path, found: Findings) -> None:
    """Kill the server in mid-sweep, and make it whole by an export when there is one again."""
    cut = out / "cut"
    with Server(out / "third") as server:
        # A tracker gives way to trials: one at a time leaves it room to tell some numbers before all have ended.
        process = sweep(file, cut, "--track", f"mlflow:{server.uri}", "--concurrent", "1")
        until(lambda: server.told() or ended(cut) == 3)
        server.kill()
        found.note("trials ended when the server was killed", count := ended(cut), count < 4)
        for line in said(process):
            print(line)
        found.note(
            "weights of the sweep whose server was killed equal", same := weights(cut) == weights(out / "plain"), same
        )
        server.start()
        found.note("MLflow, before it was made whole", compared(server.read(cut), on_disk(cut)))
        export(cut, server)
        found.numbers("MLflow, made whole", compared(server.read(cut), on_disk(cut)))


def ended(folder: Path) -> int:
    """Count the trials of a sweep that have ended."""
    return len(list(folder.glob("trials/*/summary.json")))


def export(folder: Path, server: Server) -> None:
    """Export a sweep to the server by the command."""
    words = [sys.executable, "-m", "fedskew.cli.main", "export", str(folder), "--to", f"mlflow:{server.uri}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(done.stderr.strip())


if __name__ == "__main__":
    sys.exit(main())
