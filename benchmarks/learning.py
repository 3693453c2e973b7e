"""Does the engine learn what plain PyTorch learns? The same federated task in both, on the real Fashion-MNIST.

    python -m benchmarks.learning                       # about 15 minutes on two cores
    python -m benchmarks.learning data.name=fashion_mnist_sample partition.clients=20 model.name=mlp rounds=5 --seeds 0

1. Followed: the plain loop reads the run's partition, cohorts, initial weights and batch orders. Only rounding differs,
   so accuracies must agree round by round while rounding has not grown.
2. Repeated: the plain loop draws batch orders of its own. Then only the level reached can be compared, over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict, write_inputs, write_orders
from benchmarks.plain_loop import PlainLoop, cohorts, task_of
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.run.run import run
from tune_configs.quickstart import fashion_mnist

FOLLOWED_LIMIT = 0.3  # percentage points, in each of the first rounds
LEVEL_LIMIT = 1.0  # percentage points, on the mean over seeds of the last rounds' mean
FIRST, LAST = 5, 10  # rounds


def plain(
    folder: Path, inputs: Path, first: int, last: int, processes: int, own_order: int | None = None
) -> list[float]:
    """The plain loop's accuracy in percent after the rounds ``first`` to ``last``."""
    loop = PlainLoop(task_of(folder, inputs, own_order), processes)
    try:
        accuracies = []
        for number, cohort in cohorts(folder / "clients.parquet").items():
            if number > last:
                break
            loop.round(number, cohort)
            if number >= first:
                accuracies.append(100 * loop.accuracy())
        return accuracies
    finally:
        loop.close()


def compare(experiment: Experiment, folder: Path, follow: bool, processes: int) -> dict[str, Any]:
    """One seed: the run, the plain loop with its own batch order and, on request, the one that follows."""
    out, inputs = folder / "run", folder / "inputs"
    inputs.mkdir()
    run(experiment, out)
    ours = (100 * RunFolder(out).frame("evaluations")["accuracy"]).tolist()
    write_inputs(experiment, inputs)
    rounds = experiment.rounds
    results: dict[str, Any] = {"seed": experiment.seed, "ours": ours}
    if follow:
        first = min(FIRST, rounds)
        write_orders(experiment, out, {n: c for n, c in cohorts(out / "clients.parquet").items() if n <= first}, inputs)
        results["followed"] = plain(out, inputs, 1, first, processes)
    results["repeated"] = plain(
        out, inputs, max(1, rounds - LAST + 1), rounds, processes, own_order=1000 + experiment.seed
    )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for a smaller setting")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=2, help="of the plain loop")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for learning.json")
    options = parser.parse_intermixed_args()
    base = fashion_mnist().override([*options.overrides, "evaluation.every=1"])

    runs = []
    for seed in options.seeds:
        print(f"seed {seed}: {base.rounds} rounds of the engine, then of the plain loop", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            experiment = base.override([f"seed={seed}"])
            runs.append(compare(experiment, Path(folder), follow=seed == options.seeds[0], processes=options.processes))

    console = Console()
    table = Table("round", "engine", "plain loop", "difference", title=f"Followed, seed {options.seeds[0]}, accuracy %")
    differences = []
    for number, (ours, theirs) in enumerate(zip(runs[0]["ours"], runs[0]["followed"], strict=False), start=1):
        differences.append(abs(ours - theirs))
        table.add_row(str(number), f"{ours:.2f}", f"{theirs:.2f}", f"{ours - theirs:+.2f}")
    console.print(table)

    last = min(LAST, base.rounds)
    table = Table("seed", "engine", "plain loop", "difference", title=f"Repeated, mean of the last {last} rounds, %")
    levels = []
    for result in runs:
        ours, theirs = statistics.mean(result["ours"][-last:]), statistics.mean(result["repeated"])
        levels.append(ours - theirs)
        table.add_row(str(result["seed"]), f"{ours:.2f}", f"{theirs:.2f}", f"{ours - theirs:+.2f}")
    console.print(table)

    greatest, level = max(differences), abs(statistics.mean(levels))
    results = {
        "experiment": base.to_mapping(),
        "runs": runs,
        "greatest_followed_difference": greatest,
        "mean_level_difference": statistics.mean(levels),
        "limits": {"followed": FOLLOWED_LIMIT, "level": LEVEL_LIMIT},
    }
    save("learning", results, options.results)
    return verdict(
        [
            (f"followed: at most {greatest:.2f} points apart, limit {FOLLOWED_LIMIT}", greatest <= FOLLOWED_LIMIT),
            (f"repeated: {level:.2f} points apart over seeds, limit {LEVEL_LIMIT}", level <= LEVEL_LIMIT),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
