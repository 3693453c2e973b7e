"""How fast is the engine beside plain PyTorch, and does its memory stay level? About 15 minutes on two cores.

    python -m benchmarks.speed
    python -m benchmarks.speed --workloads mlp --cycles 2 --chunk 1 --memory-rounds 100 \
        data.name=fashion_mnist_sample                                # a smoke test; its figures mean nothing

Everything is started once and waits, idle, for its turn; the turns are short and go round, so that whatever else
changes on the machine meets all alike. A turn is timed from outside, by the clock on the wall: dispatch, aggregation,
rows and checkpoints all count, and only evaluation is switched off.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict, write_inputs
from benchmarks.memory import GROWTH_LIMIT, growth
from benchmarks.plain_loop import PlainLoop, clients_of, task_of
from engine.experiment import Experiment
from engine.run import Run

LIMITS = {"mlp": 0.9, "cnn": 0.95}  # of the plain loop's rounds per second, with as many actors as it has processes
ENDLESS = 10**9  # rounds: no run ends while it is measured
BUSY = 0.1  # cores at work while all wait, from which on the machine is not quiet


@dataclass(frozen=True)
class Turn:
    """What one turn of a contestant came to, in seconds per round."""

    wall: float
    inner: float  # by the engine's own clock, which leaves out checkpoints and the way to the driver


class Contestant(Protocol):
    def turn(self, seconds: float) -> Turn: ...


class Engine:
    """A run of the engine, advanced turn by turn."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._run = Run.open(experiment, folder)

    def turn(self, seconds: float) -> Turn:
        began = time.perf_counter()
        rows = self._run.advance(seconds).rows
        wall = time.perf_counter() - began
        return Turn(wall / len(rows), statistics.mean(row["seconds"] for row in rows))

    def close(self) -> None:
        self._run.close()


class Plain:
    """The plain loop on cohorts of the same size."""

    def __init__(self, run: Path, inputs: Path, cohort: int, processes: int) -> None:
        self._loop = PlainLoop(task_of(run, inputs, own_order=0), processes)
        self._cohort = cohort
        self._clients = len(clients_of(run / "partition.parquet"))
        self._rng = np.random.default_rng(0)
        self._round = 0

    def turn(self, seconds: float) -> Turn:
        began, first = time.perf_counter(), self._round
        while True:
            self._round += 1
            self._loop.round(self._round, self._rng.choice(self._clients, self._cohort, replace=False).tolist())
            elapsed = time.perf_counter() - began
            if elapsed >= seconds:
                return Turn(elapsed / (self._round - first), elapsed / (self._round - first))

    def close(self) -> None:
        self._loop.close()


@dataclass
class Measured:
    """One contestant's turns, and how many of a core's seconds its processes can use."""

    name: str
    cores: int
    turns: list[Turn] = field(default_factory=list)

    @property
    def wall(self) -> float:
        return statistics.median(turn.wall for turn in self.turns)

    @property
    def inner(self) -> float:
        return statistics.median(turn.inner for turn in self.turns)


def workload(model: str, overrides: list[str]) -> Experiment:
    """10 of 100 clients with 600 images each, a batch of 32."""
    return Experiment(
        name=f"speed-{model}",
        rounds=ENDLESS,
        data={"name": "fashion_mnist"},
        partition={"name": "iid", "clients": 100},
        model={"name": model},
        local={"epochs": 1, "batch_size": 32, "lr": 0.05},
        participation={"count": 10},
        evaluation={"every": 0},
    ).override(overrides)


def measure(experiment: Experiment, processes: int, cycles: int, chunk: float) -> tuple[list[Measured], float]:
    """All contestants' turns, the first cycle dropped; and the cores at work while all of them waited."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_inputs(experiment, folder)
        contestants: list[tuple[Measured, Contestant]] = []
        for actors in (processes, 0):
            run = folder / f"actors-{actors}"
            engine = Engine(experiment.override([f"execution.actors={actors}"]), run)
            stack.callback(engine.close)
            contestants.append((Measured(f"engine, actors={actors}", max(actors, 1)), engine))
        cohort = experiment.participation.count
        assert cohort is not None, "the speed workloads have a fixed cohort"
        for count in (processes, 1):
            plain = Plain(folder / "actors-0", folder, cohort, count)
            stack.callback(plain.close)
            contestants.append((Measured(f"plain, processes={count}", count), plain))

        for cycle in range(cycles + 1):
            first = cycle % len(contestants)  # nobody always follows the same one
            for measured, contestant in contestants[first:] + contestants[:first]:
                turn = contestant.turn(chunk)
                if cycle:
                    measured.turns.append(turn)
        return [measured for measured, _ in contestants], busy_cores(2.0)


def busy_cores(seconds: float) -> float:
    """Cores at work, by whatever process, over the next seconds; NaN where the system does not tell."""

    def at_work() -> float:
        with open("/proc/stat", encoding="utf-8") as file:
            ticks = [int(field) for field in file.readline().split()[1:8]]
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")

    try:
        before = at_work()
        time.sleep(seconds)
        return (at_work() - before) / seconds
    except OSError:
        return float("nan")


def ratio(reference: Measured, ours: Measured) -> tuple[float, float, float]:
    """Rounds per second of ``ours`` by those of ``reference``: of the medians, and the quartiles over cycles."""
    each = [a.wall / b.wall for a, b in zip(reference.turns, ours.turns, strict=True)]
    low, _, high = statistics.quantiles(each, n=4) if len(each) > 1 else (each[0],) * 3
    return reference.wall / ours.wall, low, high


def report(model: str, measured: list[Measured], console: Console) -> dict[str, Any]:
    """The table of one workload, and the same for the file."""
    table = Table("", "ms per round", "by its own clock", "rounds/s by plain's", "quartiles", title=f"{model}")
    entries = []
    for one in measured:
        reference = next(other for other in measured if other.name == f"plain, processes={one.cores}")
        value, low, high = ratio(reference, one)
        table.add_row(
            one.name, f"{1e3 * one.wall:.1f}", f"{1e3 * one.inner:.1f}", f"{value:.3f}", f"{low:.3f} to {high:.3f}"
        )
        entries.append(
            {
                "name": one.name,
                "against": reference.name,
                "seconds_per_round": one.wall,
                "seconds_per_round_by_own_clock": one.inner,
                "ratio": value,
                "ratio_quartiles": [low, high],
                "turns": [turn.wall for turn in one.turns],
            }
        )
    console.print(table)
    return {"entries": entries}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--workloads", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--processes", type=int, default=2, help="client actors, and processes of the plain loop")
    parser.add_argument("--cycles", type=int, default=8, help="turns of each, after one to warm up")
    parser.add_argument("--chunk", type=float, default=10.0, help="seconds of a turn; at least one round")
    parser.add_argument("--memory-rounds", type=int, default=2000, help="0: leave memory out")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for speed.json")
    options = parser.parse_intermixed_args()
    console = Console(width=100)
    limits: list[tuple[str, bool]] = []
    results: dict[str, Any] = {"workloads": {}, "limits": {**LIMITS, "growth_mb_per_100_rounds": GROWTH_LIMIT}}

    noise = busy_cores(2.0)
    for model in options.workloads:
        print(f"{model}: {options.cycles + 1} cycles of 4 turns, {options.chunk:g} s each", flush=True)
        experiment = workload(model, options.overrides)
        measured, idle = measure(experiment, options.processes, options.cycles, options.chunk)
        results["workloads"][model] = {
            "experiment": experiment.to_mapping(),
            **report(model, measured, console),
            "busy_cores_while_all_wait": idle,
        }
        value = results["workloads"][model]["entries"][0]["ratio"]
        limits.append(
            (f"{model}: {value:.3f} of the plain loop's rounds, limit {LIMITS[model]}", value >= LIMITS[model])
        )
        noise = max(noise, idle)
    results["busy_cores"] = noise
    if noise > BUSY:
        print(f"the machine is not quiet: {noise:.2f} cores were at work while nothing was measured")

    if options.memory_rounds:
        print(f"memory: {options.memory_rounds} rounds in this process, and on actors", flush=True)
        results["memory"] = {}
        table = Table("process", "MB at the end", "MB per 100 rounds", title="Memory")
        for actors in (0, options.processes):
            for grown in growth(actors, options.memory_rounds):
                results["memory"][grown.name] = {"megabytes": grown.megabytes, "per_100_rounds": grown.per_100_rounds}
                table.add_row(grown.name, f"{grown.megabytes:.0f}", f"{grown.per_100_rounds:+.3f}")
                text = f"{grown.name}: {grown.per_100_rounds:+.3f} MB per 100 rounds, limit {GROWTH_LIMIT}"
                limits.append((text, grown.per_100_rounds <= GROWTH_LIMIT))
        console.print(table)
    save("speed", results, options.results)
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
