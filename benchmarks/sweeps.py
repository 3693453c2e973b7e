"""What a trial costs beside its rounds: sweeps of trivial trials, seconds and memory against their number.

    python -m benchmarks.sweeps [--trials 50 150 500] [--places 2048] [--out results.json]

Each sweep is a command of its own. A trial is one round of eight tiny clients: a few milliseconds of training, so what
is measured is Tune, the trial's folder and the store. The head's seconds are of the processor that all trials share,
by which a cluster is bound, however many places it has. Memory is the sweep process's peak; ``--places``: with as many
trials in one Tune as a cluster with so many places has. The report is made twice: of all trials, and when only one has
changed since.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.experiment import Experiment
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder

ROOT = Path(__file__).parents[1]


def trivial(profile: str) -> Sweep:
    """Trials of one round; ``seeds`` on the command line says how many."""
    experiment = Experiment(
        name="small",
        rounds=1,
        data={"name": "fashion_mnist_sample", "train_samples": 400, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 8, "alpha": 0.3},
        model={"name": "mlp", "hidden": [4]},
        algorithm={"name": "fedprox", "mu": 0.1},
        local={"epochs": 1, "batch_size": 16, "lr": 0.05},
        participation={"count": 2},
        checkpoint={"every": 2},
        execution={"actors": 2, "device": "cpu"},
    )
    return Sweep(base=experiment, space={})


def measure(trials: int, places: int | None, folder: Path) -> dict[str, float | None]:
    """Run one sweep; seconds per trial between the first and the last that ended, peak memory, seconds of reports."""
    seeds = "seeds=" + json.dumps(list(range(trials)), separators=(",", ":"))
    reference = f"{Path(__file__)}:trivial"
    command = [
        sys.executable,
        "-c",
        "import sys, resource, time\n"
        "from pathlib import Path\n"
        "from engine.sweeps import tuner\n"
        f"tuner.portion_for = lambda slots, given=tuner.portion_for: given({places} or slots)\n"
        "from engine.sweeps.named import load\n"
        "from engine.sweeps.options import How\n"
        "from engine.sweeps.running import run_sweep\n"
        "from engine.sweeps.observers import SweepObserver\n"
        "class Clock(SweepObserver):\n"
        "    ends = []\n"
        "    def on_trial_end(self, *what): self.ends.append(time.process_time())\n"
        "named = load(sys.argv[1], 'laptop', [sys.argv[2]], {})\n"
        "run_sweep(named, Path(sys.argv[3]), How(mode='inside'), observers=[Clock()])\n"
        "print((Clock.ends[-1] - Clock.ends[0]) / (len(Clock.ends) - 1))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)",
        reference,
        seeds,
        str(folder),
    ]
    began = time.perf_counter()
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    wall = time.perf_counter() - began
    ended = sorted(path.stat().st_mtime for path in folder.glob("trials/*/trial.json"))
    records = SweepFolder(folder).records()
    assert [record.status for record in records] == ["finished"] * trials
    half, files = len(ended) // 2, sum(len(names) for _, _, names in os.walk(folder))
    reports = [seconds_of_report(folder)]
    os.utime(folder / "trials/00000/trial.json")
    reports.append(seconds_of_report(folder))
    return {
        "trials": trials,
        "places": places,
        "head_seconds_per_trial": round(float(out.stdout.split()[-2]), 4),
        "trials_per_second": round((trials - 1) / (ended[-1] - ended[0]), 1),
        "files_per_trial": round(files / trials, 1),
        "report_seconds": reports[0],
        "report_again_seconds": reports[1],
        "wall_seconds": round(wall, 2),
        "seconds_per_trial": round((ended[-1] - ended[0]) / (trials - 1), 4),
        "first_half": round((ended[half - 1] - ended[0]) / (half - 1), 4),
        "second_half": round((ended[-1] - ended[half]) / (trials - half - 1), 4),
        "peak_mb": round(float(out.stdout.split()[-1]), 1),
    }


def seconds_of_report(folder: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "fedskew.cli.main", "report", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return round(time.perf_counter() - began, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, nargs="+", default=[50, 150, 500])
    parser.add_argument("--places", type=int, help="places of a pretended cluster")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/sweeps.json")
    options = parser.parse_args()
    rows = []
    for trials in options.trials:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(trials, options.places, Path(folder) / "sweep"))
        print(rows[-1], flush=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
