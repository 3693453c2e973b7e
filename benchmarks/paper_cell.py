"""One cell of CBFL's Table 1 at its own scale: what it costs on this machine. About an hour and a half on one core.

    python -m benchmarks.paper_cell --cifar10 FOLDER

CIFAR-10, ResNet20, 100 clients of a Dirichlet(0.1) partition, 10 of them in each round, 5 local epochs of batches of
50, rate 0.1 decayed by 0.996: 5 rounds of FedAvg and 5 of CBFL, with 50 steps for a generator in place of the paper's
1,000, what they cost, and what the 1,000 rounds would. The run is killed in its second CBFL round and gone on with.
Seconds are of the processor, of one thread, so that other work on the machine is not counted. With a GPU there is the
cell itself: one of ``fedskew run cbfl.table1 --profile paper``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from algorithms.cbfl import Cbfl
from algorithms.generators import train_against
from benchmarks.common import RESULTS, save, verdict
from engine.algorithm import seeds
from engine.client.nets import open_model
from engine.client.training_tools import FlatTrainingTools
from engine.experiment import Experiment
from engine.run.run import Run
from tune_configs.quickstart import cifar10 as paper_setting

PAPER = {"FedAvg": 84.13, "CBFL": 85.89}  # Table 1, best test accuracy in 1,000 rounds
PAPER_HOURS = {"FedAvg": 4.1, "CBFL": 9.0}  # Table 13, of its twin on CIFAR-100, on its hardware
ROUNDS, WARM_UP, REFRESHES, STEPS = 1000, 700, 101, 1000
TIMES = "processor_seconds.jsonl"


def cell(cifar10: Path, rounds: int, warm: int, steps: int, overrides: list[str]) -> Experiment:
    changes = {
        "name": "paper-cell",
        "data.root": str(cifar10),
        "participation.count": 10,
        "evaluation.every": 5,
        "evaluation.client_loss": False,
        "execution.actors": 0,
        "execution.workers": 1,
        "execution.device": "cpu",
        "checkpoint.every": 1,
    }
    stages = [
        {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": warm},
        {
            "name": "cbfl",
            "needs": ["warmup"],
            "algorithm": {"name": "cbfl", "gamma": 3.0, "refresh": 3, "gen_steps": steps},
            "rounds": rounds - warm,
        },
    ]
    base = paper_setting().replace(changes).to_mapping()
    return Experiment.from_mapping({**base, "stages": stages}).override(overrides)


def train(experiment: Experiment, folder: Path) -> None:
    """To the end, from where the folder stands, noting what each round cost."""
    run = Run.open(experiment, out=folder)
    while not run.finished:
        before = time.process_time()
        rows = run.advance().rows
        with (folder.parent / TIMES).open("a", encoding="utf-8") as file:
            for row in rows:
                about = {key: row[key] for key in ("stage", "round", "steps", "seconds", "accuracy")}
                file.write(json.dumps({**about, "processor_seconds": time.process_time() - before}) + "\n")
    run.close()


def kill_and_go_on(command: list[str], folder: Path, after: int) -> None:
    """Kill the run while it is in the round after ``after``, and go on with it."""
    times = folder / TIMES
    child = subprocess.Popen(command)
    while child.poll() is None and (not times.exists() or len(noted(folder)) < after):
        time.sleep(1)
    time.sleep(10)  # into the round
    if child.poll() is not None:
        raise SystemExit(f"the run ended before it could be killed, with exit code {child.returncode}")
    child.kill()
    child.wait()
    subprocess.run(command, check=True)


def noted(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / TIMES).read_text(encoding="utf-8").splitlines()]


def generator_step(experiment: Experiment, steps: int) -> float:
    """Processor seconds of one step of the generator's training, at the paper's sizes."""
    dataset = experiment.data.load()
    net = open_model(experiment, dataset, torch.device("cpu"))
    net.train(False)
    bench = FlatTrainingTools(net, lambda purpose: seeds.generator(0, purpose, 1))
    algorithm = experiment.chain[-1].algorithm
    assert isinstance(algorithm, Cbfl)
    spec = algorithm.spec(net.layout)
    took = []
    for count in (1, 1 + steps):  # building it is in both
        before = time.process_time()
        train_against(
            bench, {"weights": net.weights, "buffers": net.buffers}, spec, count, algorithm.gen_batch, 0.003, 3.0, True
        )
        took.append(time.process_time() - before)
    return (took[1] - took[0]) / steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--cifar10", type=Path, required=True, help="folder of the data")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--gen-steps", type=int, default=50, help="of each generator; the paper's code has 1000")
    parser.add_argument("--folder", type=Path, help="go on with the run that is there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for paper_cell.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    experiment = cell(options.cifar10, options.rounds, options.warmup, options.gen_steps, options.overrides)
    if options.child:
        train(experiment, options.folder / "run")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.paper_cell", *sys.argv[1:], "--child", "--folder", str(folder)]
        kill_and_go_on(command, folder, options.warmup + 1)
        rows = noted(folder)
        summary = Run.open(experiment, out=folder / "run").close()
    step = generator_step(experiment, 5)
    warm = [row["processor_seconds"] for row in rows if row["stage"] == "warmup"]
    algorithm = experiment.chain[-1].algorithm
    assert isinstance(algorithm, Cbfl)
    cbfl = []  # without generators, which the projection counts by themselves
    for row in rows:
        if row["stage"] == "cbfl":
            number = row["round"] - options.warmup
            refreshed = number == 1 or number % algorithm.refresh == 0
            cbfl.append(row["processor_seconds"] - refreshed * step * options.gen_steps)
    hours = {
        "FedAvg": ROUNDS * statistics.mean(warm) / 3600,
        "CBFL": (
            WARM_UP * statistics.mean(warm) + (ROUNDS - WARM_UP) * statistics.mean(cbfl) + REFRESHES * STEPS * step
        )
        / 3600,
    }
    table = Table("", "FedAvg", "CBFL", title="Table 1, CIFAR-10, ResNet20, Dirichlet(0.1)")
    table.add_row("seconds of a round", f"{statistics.mean(warm):.0f}", f"{statistics.mean(cbfl):.0f}")
    table.add_row("hours of 1,000 rounds, projected", *(f"{hours[name]:.0f}" for name in hours))
    table.add_row("hours in the paper (CIFAR-100)", *(f"{PAPER_HOURS[name]}" for name in hours))
    table.add_row("best accuracy in the paper", *(f"{PAPER[name]}" for name in hours))
    Console(width=100).print(table)
    results = {
        "experiment": experiment.to_mapping() | {"data": {"name": "cifar10"}},
        "rounds": rows,
        "seconds": {"warm_up_round": warm, "cbfl_round_without_generator": cbfl, "generator_step": step},
        "projected_hours_on_one_core": hours,
        "paper": {"best_accuracy": PAPER, "hours_of_cifar100": PAPER_HOURS},
        **{name: summary[name] for name in ("accuracy", "best_accuracy", "best_round", "last10_accuracy")},
        "weights_sha256": summary["weights_sha256"],
    }
    save("paper_cell", results, options.results)
    whole = summary["status"] == "finished" and [row["round"] for row in rows] == list(range(1, options.rounds + 1))
    return verdict([("killed in a CBFL round, gone on with, and every round done once", whole)])


if __name__ == "__main__":
    raise SystemExit(main())
