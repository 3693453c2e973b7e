"""How long from the command to the first round, and from the last round to the command's end? 6 minutes on two cores.

    python -m benchmarks.first_round
    python -m benchmarks.first_round --times 1 data.name=fashion_mnist_sample      # a smoke test

The clock starts before a fresh process of the command line does. It is read when the first row of ``rounds.parquet``
is on the disk, when the last one is, and when the process has ended. Cases of one round tell how long the first takes;
that of 40 rounds, whose rows come with a checkpoint every tenth, how long the command goes on after its last.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict
from benchmarks.many_clients import setting
from benchmarks.memory import processor_seconds
from benchmarks.speed import busy_cores
from engine.base.imports import uncollected
from engine.experiment import Experiment

ROUNDS, END_LIMIT = 40, 1.5  # of the run whose end is timed; seconds from its last row to the command's end
EVERY = 0.01  # seconds between two looks at a run's folder
FIRST = "first round"  # the stage that the first row ends
COMMAND = "from fedskew.cli.launcher import main; main()"  # as the program that is installed
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


@dataclass(frozen=True)
class Case:
    make: Callable[[], Experiment]
    limits: dict[int, float]  # seconds from the command to the first row, by actors


CASES = {
    "10 of 100 clients": Case(few, {0: 2.0, 2: 15.0}),
    "1,000 of 100,000 clients": Case(lambda: setting(100_000, "fedavg"), {0: 5.0, 2: 15.0}),
}


@dataclass(frozen=True)
class Times:
    """Seconds from a command's start."""

    first_row: float  # until a row is on the disk
    last_row: float  # until all are
    end: float  # until the process has ended

    @property
    def after_last_row(self) -> float:
        return self.end - self.last_row


def words_of(experiment: Experiment, folder: Path) -> list[str]:
    """What to type after ``fedskew``."""
    path = folder / "experiment.yaml"
    path.write_text(experiment.to_yaml(), encoding="utf-8")
    return ["run", str(path), "--out", str(folder / "run")]


def timed(command: Sequence[str], table: Path, rounds: int) -> Times:
    """Start the command, and look at the table as it comes; RuntimeError if it fails, or ends without all rows."""
    began = time.perf_counter()
    first_row = last_row = seen = None
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            ended = process.poll() is not None  # before the look: all that it has written is seen
            if table.exists() and (version := _version(table)) != seen:
                now, seen = time.perf_counter() - began, version
                rows = pq.read_metadata(table).num_rows
                if first_row is None and rows:
                    first_row = now
                if rows >= rounds:
                    last_row = now
                    break
            elif ended:
                break
            time.sleep(EVERY)
    finally:
        code = process.wait()
    end = time.perf_counter() - began
    if code or first_row is None or last_row is None:
        raise RuntimeError(f"{list(command)} ended with {code}, and not with {rounds} rows in {table.name}")
    return Times(first_row, last_row, end)


def _version(path: Path) -> tuple[int, int, int]:
    """Return what tells a file from the one that takes its place; a file system's clock alone is too coarse."""
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def times_of(experiment: Experiment) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", COMMAND, *words_of(experiment, Path(folder))]
        return timed(command, Path(folder) / "run" / "rounds.parquet", experiment.rounds)


def stages(experiment: Experiment, last: str | None = FIRST) -> list[dict[str, Any]]:
    """Name, seconds on the clock and processor seconds of each stage, in their order, up to the ``last``; None: all."""
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
        if name == last:
            break
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
        from engine.run import run
        from fedskew.cli import main as cli

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
    watch(run.Run, "advance", FIRST)
    watch(run.Run, "close", "summary and pictures", before="further rounds")
    try:
        cli.main()
    finally:  # it ends by an exit
        mark("last words")
        Path(os.environ[WATCHED]).write_text(json.dumps(marks))


def first_case(case: Case, actors: int, options: argparse.Namespace) -> dict[str, Any]:
    """Of a run of one round."""
    experiment = case.make().override(["rounds=1", f"execution.actors={actors}", *options.overrides])
    seconds = [times_of(experiment).first_row for _ in range(options.times)]
    limit = case.limits[actors]
    return {"limit": limit, "median": statistics.median(seconds), "seconds": seconds, "stages": stages(experiment)}


def end_case(options: argparse.Namespace) -> dict[str, Any]:
    """Of a run of some rounds in process: ``seconds`` from its last row to its end."""
    experiment = few().override([f"rounds={ROUNDS}", "execution.actors=0", *options.overrides])
    found = [times_of(experiment) for _ in range(options.times)]
    seconds = [one.after_last_row for one in found]
    return {
        "limit": END_LIMIT,
        "median": statistics.median(seconds),
        "seconds": seconds,
        "to_first_rows": [one.first_row for one in found],
        "to_last_row": [one.last_row for one in found],
        "to_end": [one.end for one in found],
        "stages": stages(experiment, last=None),
    }


def report(name: str, what: str, case: dict[str, Any], console: Console) -> None:
    times = Table("", "median s", "least", "most", title=name)
    rows = {what: "seconds", "to the first rows": "to_first_rows", "to the last": "to_last_row", "to the end": "to_end"}
    for title, key in rows.items():
        if key in case:
            seconds = case[key]
            times.add_row(title, *(f"{one:.2f}" for one in (statistics.median(seconds), min(seconds), max(seconds))))
    console.print(times)
    table = Table("stage", "s", "processor s", title=f"a watched run, {name}")
    for stage in case["stages"]:
        table.add_row(stage["stage"], f"{stage['seconds']:.2f}", f"{stage['processor_seconds']:.2f}")
    console.print(table)


def judged(name: str, what: str, case: dict[str, Any]) -> tuple[str, bool]:
    """The limit, and whether the median meets it."""
    return f"{name}: {case['median']:.2f} s {what}, limit {case['limit']:g}", case["median"] <= case["limit"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for first_round.json")
    options = parser.parse_intermixed_args()
    console, cases, limits = Console(width=100), dict[str, Any](), list[tuple[str, bool]]()
    busy = [busy_cores(2.0)]

    def add(name: str, what: str, case: dict[str, Any]) -> None:
        cases[name] = case
        report(name, what, case, console)
        limits.append(judged(name, what, case))
        busy.append(busy_cores(2.0))

    for actors in (0, 2):
        for name, case in CASES.items():
            where = f"{actors} actors" if actors else "in process"
            add(f"{name}, {where}", "to the first row", first_case(case, actors, options))
    add(f"{ROUNDS} rounds of 10 of 100 clients, in process", "from the last row to the end", end_case(options))
    print(f"cores at work between the cases, by other programs: {', '.join(f'{one:.2f}' for one in busy)}")
    settings = {"times": options.times, "overrides": options.overrides}
    save("first_round", {"setting": settings, "busy_cores": busy, "cases": cases}, options.results)
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
