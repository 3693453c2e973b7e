"""How long from the command to the first round? About 5 minutes on two cores.

    python -m benchmarks.first_round
    python -m benchmarks.first_round --times 1 data.name=fashion_mnist_sample      # a smoke test

The clock starts before a fresh process of the command line does, and stops when the first round's row is on the disk.
A further run of each case is watched: when each stage ended, and how much processor time all its processes had used by
then. Where other work is on the machine the clock shows that too, processor time hardly.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict
from benchmarks.many_clients import setting
from benchmarks.memory import processor_seconds
from benchmarks.speed import busy_cores
from engine.base.imports import uncollected
from engine.experiment import Experiment

LIMITS = {0: 5.0, 2: 15.0}  # seconds, by actors
COMMAND = "from engine.cli.entry import main; main()"  # as the program that is installed
BEGAN, WATCHED = "FEDSKEW_BEGAN", "FEDSKEW_WATCHED"  # what a watched run is told: when it began, where its marks go


def few() -> Experiment:
    """10 of 100 clients, all of Fashion-MNIST."""
    return Experiment(
        name="few",
        data={"name": "fashion_mnist"},
        partition={"name": "iid", "clients": 100},
        model={"name": "mlp"},
        local={"epochs": 1, "batch_size": 32, "lr": 0.05},
        participation={"count": 10},
    )


CASES = {"10 of 100 clients": few, "1,000 of 100,000 clients": lambda: setting(100_000, "fedavg")}


def words_of(experiment: Experiment, folder: Path) -> list[str]:
    """What to type after ``fedskew``."""
    path = folder / "experiment.yaml"
    path.write_text(experiment.to_yaml(), encoding="utf-8")
    return ["run", str(path), "--out", str(folder / "run")]


def seconds_to_first_row(experiment: Experiment) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = words_of(experiment, Path(folder))
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.DEVNULL)
        try:
            while not (Path(folder) / "run" / "rounds.parquet").exists():
                if process.poll() is not None:
                    raise RuntimeError(f"'fedskew {' '.join(words)}' ended with {process.returncode} and without a row")
                time.sleep(0.01)
            return time.perf_counter() - began
        finally:
            process.wait()


def stages(experiment: Experiment) -> list[dict[str, Any]]:
    """Name, seconds on the clock and processor seconds of each stage, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        words, path = words_of(experiment, Path(folder)), Path(folder) / "marks.json"
        env = os.environ | {BEGAN: str(time.time()), WATCHED: str(path)}
        code = "from benchmarks.first_round import watched; watched()"
        subprocess.run([sys.executable, "-c", code, *words], env=env, stderr=subprocess.DEVNULL, check=True)
        marks = json.loads(path.read_text())
    found, clock, used = [], 0.0, 0.0
    for name, ended, processor in marks:
        found.append({"stage": name, "seconds": ended - clock, "processor_seconds": processor - used})
        clock, used = ended, processor
    return found


def watched() -> None:
    """The command line, with marks where stages end."""
    began, marks = float(os.environ[BEGAN]), list[tuple[str, float, float]]()

    def mark(name: str) -> None:
        if all(name != other for other, _, _ in marks):
            marks.append((name, time.time() - began, processor_seconds(os.getpid())))

    def watch(owner: Any, attribute: str, after: str | None, before: str | None = None) -> None:
        original: Callable[..., Any] = getattr(owner, attribute)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                mark(before)
            result = original(*args, **kwargs)
            if after:
                mark(after)
            return result

        setattr(owner, attribute, wrapped)

    with uncollected():  # as the installed program does
        from engine.cli import main as cli
        from engine.run import run

    mark("interpreter and imports")
    watch(run, "prepare", "data and partition")
    watch(run.Prepared, "write", "folder")
    watch(run.LocalDriver, "__init__", "driver and worker")
    if "actors: 0" not in Path(sys.argv[2]).read_text():
        from engine.run import driver_actor as ray_driver
        from engine.worker.ray import cluster

        mark("import of Ray")
        watch(cluster, "connect", "start of Ray")
        watch(cluster, "share", "data into the store")
        watch(ray_driver.RemoteDriver, "end", "client actors", before="driver actor")
    watch(run.Run, "advance", "first round")
    try:
        cli.main()
    finally:  # it ends by an exit
        Path(os.environ[WATCHED]).write_text(json.dumps(marks))


def report(name: str, case: dict[str, Any], console: Console) -> None:
    console.print(f"{name}: {case['median']:.2f} s ({min(case['seconds']):.2f} to {max(case['seconds']):.2f})")
    table = Table("stage", "s", "processor s", title=f"a watched run, {name}")
    for stage in case["stages"]:
        table.add_row(stage["stage"], f"{stage['seconds']:.2f}", f"{stage['processor_seconds']:.2f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for first_round.json")
    options = parser.parse_intermixed_args()
    console, cases, limits = Console(width=100), dict[str, Any](), list[tuple[str, bool]]()
    busy = [busy_cores(2.0)]
    for actors, limit in LIMITS.items():
        for what, make in CASES.items():
            name = f"{what}, {f'{actors} actors' if actors else 'in process'}"
            experiment = make().override(["rounds=1", f"execution.actors={actors}", *options.overrides])
            seconds = [seconds_to_first_row(experiment) for _ in range(options.times)]
            case = {"median": statistics.median(seconds), "seconds": seconds, "stages": stages(experiment)}
            cases[name] = case
            report(name, case, console)
            limits.append((f"{name}: {case['median']:.2f} s, limit {limit:g}", case["median"] <= limit))
            busy.append(busy_cores(2.0))
    print(f"cores at work between the cases, by other programs: {', '.join(f'{one:.2f}' for one in busy)}")
    settings = {"times": options.times, "overrides": options.overrides}
    results = {"limits": LIMITS, "setting": settings, "busy_cores": busy, "cases": cases}
    save("first_round", results, options.results)
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
