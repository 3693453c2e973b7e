"""Trackers beside real sweeps: an MLflow server on loopback, TensorBoard and W&B offline, each read back by its own.

    python -m benchmarks.trackers [--out FOLDER]

Four sweeps of four trials: one without a tracker, which is exported afterwards; one tracked live by all three; one
whose MLflow server is killed in mid-sweep, and which is made whole by an export when there is a server again. Counts
and values are compared with the parquet, weights with those of the first sweep. Needs the extras mlflow, tensorboard
and wandb.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.export import wandb_runs
from engine.export.reading import RunRows

SWEEP = '''
from ray import tune
from engine.experiment import Experiment
from engine.sweeps.definition import Sweep

def small(profile):
    """Four trials of FedProx."""
    base = Experiment(
        name="small", rounds=ROUNDS, data={"name": "fashion_mnist_sample", "train_samples": 400, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 8, "alpha": 0.3}, model={"name": "mlp", "hidden": [16]},
        algorithm={"name": "fedprox", "mu": 0.1}, participation={"count": 4}, checkpoint={"every": 2},
        execution={"actors": 1, "device": "cpu"},
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
        self.start()

    def start(self) -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}"]
        words += ["--artifacts-destination", str(self._folder / "artifacts")]
        log = (self._folder / "server.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words], stdout=log, stderr=log, start_new_session=True
        )
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", self.port)))

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

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
    command = [sys.executable, "-m", "engine.cli.main", "sweep", f"{file}:small", "--out", str(out)]
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


def on_disk(folder: Path) -> dict[str, Numbers]:
    found: dict[str, Numbers] = {}
    for trial in sorted((folder / "trials").iterdir()):
        for point in RunRows(trial, staged=False).new():
            found.setdefault(trial.name, {}).setdefault(point.key, []).append((point.step, point.value))
    return found


def in_tensorboard(place: Path) -> dict[str, Numbers]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, Numbers] = {}
    for folder in sorted({path.parent for path in place.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        found[folder.name] = {k: [(one.step, one.value) for one in events.Scalars(k)] for k in events.Tags()["scalars"]}
    return found


def in_wandb(place: Path) -> dict[str, Numbers]:
    found: dict[str, Numbers] = {}
    for path in sorted(place.glob("wandb/*run-*/run-*.wandb")):
        for kind, values in wandb_runs.read(path):
            for key in [key for key in values if kind == "history" and not key.startswith("_") and key != "round"]:
                found.setdefault(path.stem, {}).setdefault(key, []).append((values["round"], values[key]))
    return found


def compared(told: dict[str, Numbers], wanted: dict[str, Numbers], exact: Callable[[float], Any] = float) -> str:
    """How many numbers there are, and whether they are those of the tables, each once."""
    have = sorted(
        (key, step, exact(value))
        for numbers in told.values()
        for key, rows in numbers.items()
        if not key.startswith(("summary/", "sweep/"))
        for step, value in rows
    )
    want = sorted(
        (key, step, exact(value))
        for numbers in wanted.values()
        for key, rows in numbers.items()
        for step, value in rows
    )
    return f"{len(have)} of {len(want)}, {'equal' if have == want else 'DIFFERENT'}"


def main() -> None:
    """Run all of it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/trackers"))
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True)
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    file = out / "small_sweep.py"
    file.write_text(SWEEP.replace("ROUNDS", str(arguments.rounds)))
    server = Server(out / "server")
    try:
        plain, live, cut = out / "plain", out / "live", out / "cut"
        said(sweep(file, plain))
        wanted = on_disk(plain)
        print("plain     ", len(wanted), "trials", flush=True)
        places = [f"mlflow:{server.uri}", f"tensorboard:{out / 'tb'}", f"wandb:{out / 'wandb'}"]
        for line in said(sweep(file, live, *(word for place in places for word in ("--track", place)))):
            print("live      ", line)
        print("weights   ", "equal" if weights(live) == weights(plain) else "DIFFERENT")
        print("MLflow    ", compared(server.read(live), on_disk(live)))
        print("TensorBoard", compared(in_tensorboard(out / "tb"), on_disk(live), np.float32))
        print("W&B       ", compared(in_wandb(out / "wandb"), on_disk(live)), flush=True)
        # The same sweep has the same key: it goes to a server of its own.
        other = Server(out / "other")
        try:
            export = [sys.executable, "-m", "engine.cli.main", "export", str(plain), "--to", "mlflow", "--uri"]
            for _ in range(2):
                told = subprocess.run([*export, other.uri], capture_output=True, text=True, check=True).stderr
                print("exported  ", told.strip())
            print("MLflow    ", compared(other.read(plain), wanted), flush=True)
        finally:
            other.kill()
        third = Server(out / "third")
        process = sweep(file, cut, "--track", f"mlflow:{third.uri}")
        until(lambda: any(rows for rows in third.read(cut).values()))
        third.kill()
        ended = sum((one / "summary.json").exists() for one in (cut / "trials").iterdir())
        print("killed     with", ended, "of 4 trials ended")
        for line in said(process):
            print("killed    ", line)
        print("weights   ", "equal" if weights(cut) == weights(plain) else "DIFFERENT", flush=True)
        third.start()
        try:
            print("MLflow    ", compared(third.read(cut), on_disk(cut)))
            export[4] = str(cut)
            told = subprocess.run([*export, third.uri], capture_output=True, text=True, check=True).stderr
            print("exported  ", told.strip())
            print("MLflow    ", compared(third.read(cut), on_disk(cut)))
        finally:
            third.kill()
    finally:
        server.kill()


if __name__ == "__main__":
    main()
