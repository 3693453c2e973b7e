"""How fast is the engine beside plain PyTorch and beside other simulators, and in how much memory?

    python -m benchmarks.speed                                        # about 20 minutes on two cores, without peers
    python -m benchmarks.speed --flower-python PYTHON --pfl-python PYTHON            # with both, about 40
    python -m benchmarks.speed --page                                 # writes the table of docs/performance.md
    python -m benchmarks.speed --cycles 2 --seconds 1 --growth-rounds 100 data.name=fashion_mnist_sample
                                                                      # a smoke test; its figures mean nothing

The engine and the plain loop are started once and wait, idle, for their turns; a turn is the same rounds, of the same
clients, for all, and turns go round, so that whatever else changes on the machine meets all alike. A peer starts its
own processes, so it is run between two turns of the plain loop over the same rounds. A turn is timed from outside, by
the clock on the wall: dispatch, aggregation, rows and checkpoints all count, and only evaluation is switched off.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import speed_page
from benchmarks.common import RESULTS, quartiles, save, verdict
from benchmarks.contestants import Contestant, Engine, Plain
from benchmarks.footprint import weighed
from benchmarks.memory import GROWTH_LIMIT, growth
from benchmarks.peers import launch
from benchmarks.peers.given import Given
from benchmarks.workloads import WORKLOADS, Inputs, Workload
from engine.experiment import Experiment
from fedskew.lab.floor.measured import measure_floor

MEMORY_LIMIT = 1024.0  # MB: of the engine in process, and of its processes on Ray beyond an idle Ray
PICKS = 0.05  # by how much the setting that the default picks may be slower than the better one: less is noise
WARM_UP = 2  # rounds of everyone before the first turn
PEER_WARM_UP = 3  # rounds of a peer that are not timed: its clients' first ones load data
PEER_ROUNDS = (5, 50)  # timed rounds of one run of a peer, at least and at most


@dataclass
class Measured:
    """One contestant's turns in seconds per round, and those of the plain loop beside each."""

    name: str
    turns: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [ours / plain for ours, plain in zip(self.turns, self.beside, strict=True)]

    def entry(self) -> dict[str, Any]:
        """For the file: medians over turns, and the quartiles of the ratio."""
        if not self.turns:
            return {"name": self.name, **self.facts}
        return {
            "name": self.name,
            **self.facts,
            "seconds_per_round": statistics.median(self.turns),
            "ratio": statistics.median(self.ratios),
            "ratio_quartiles": quartiles(self.ratios),
            "turns": self.turns,
            "plain_turns": self.beside,
        }


# --- the engine and the plain loop --------------------------------------------------------------------


def in_turns(inputs: Inputs, processes: int, cycles: int, seconds: float) -> tuple[list[Measured], int, float]:
    """All turns; the rounds of one; and the cores at work while all of them waited.

    The first cycle is dropped. ``seconds``: of a turn of the plain loop, at least one round.
    """
    with ExitStack() as stack:
        plain = Plain(inputs, processes)
        stack.callback(plain.close)
        here: list[tuple[Measured, Contestant]] = []
        for actors in (processes, 0):
            experiment = inputs.experiment.override([f"execution.actors={actors}"])
            engine = Engine(experiment, inputs.folder / f"actors-{actors}")
            stack.callback(engine.close)
            here.append((Measured(f"engine, actors={actors}", facts={"actors": actors}), engine))
        here.append((Measured(f"plain loop, {processes} processes", facts={"processes": processes}), plain))

        first, pace = 1, math.inf
        for _ in range(2):  # the first rounds begin everyone's processes, and say nothing of the pace of others
            pace = [contestant.turn(range(first, first + WARM_UP)) for _, contestant in here][-1]
            first += WARM_UP
        count = max(1, round(seconds / pace))
        for cycle in range(cycles + 1):
            rounds, start = range(first, first + count), cycle % len(here)
            first = rounds.stop
            took = {one.name: contestant.turn(rounds) for one, contestant in here[start:] + here[:start]}
            if cycle:
                for one, _ in here:
                    one.turns.append(took[one.name])
                    one.beside.append(took[here[-1][0].name])
        return [one for one, _ in here], count, busy_cores(2.0)


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


# --- peers --------------------------------------------------------------------------------------------


def give(inputs: Inputs, processes: int, count: int) -> None:
    """Write into the inputs' folder what is to be done by those who do not share a process with the engine."""
    local = inputs.experiment.local
    assert local.batch_size != "full" and isinstance(local.epochs, int)
    Given(
        model=inputs.experiment.to_mapping()["model"]["name"],
        lr=local.lr,
        batch_size=local.batch_size,
        epochs=local.epochs,
        clients=len(inputs.clients),
        processes=processes,
        cohorts=[inputs.cohort(number) for number in range(1, 1 + PEER_WARM_UP + count)],
        warm_up=PEER_WARM_UP,
    ).write(inputs.folder, inputs.clients)


def of_peers(inputs: Inputs, pythons: dict[str, Path], processes: int, count: int, blocks: int) -> list[Measured]:
    """Runs of every peer that there is, each between two turns of the plain loop over the same ``count`` rounds."""
    found = [Measured(name) for name in pythons]
    numbers = range(1 + PEER_WARM_UP, 1 + PEER_WARM_UP + count)
    plain = Plain(inputs, processes)
    try:
        plain.turn(range(1, 1 + WARM_UP))
        before = plain.turn(numbers)
        for block in range(blocks):
            for one in found:
                if "failed" in one.facts:
                    continue
                limit = 120 + 60 * before * numbers.stop
                try:
                    ran = launch.run(one.name, pythons[one.name], inputs.folder, limit, weigh=block == 0)
                except launch.PeerFailed as error:
                    print(f"{one.name}: {error}", file=sys.stderr)
                    one.facts["failed"] = str(error)
                    continue
                after = plain.turn(numbers)
                if block == 0:  # to warm up, and to be weighed
                    one.facts |= {"versions": ran.versions, "megabytes": ran.megabytes}
                else:
                    one.turns.append(statistics.mean(ran.seconds))
                    one.beside.append((before + after) / 2)
                before = after
    finally:
        plain.close()
    return found


# --- the whole ----------------------------------------------------------------------------------------


def weigh(name: str, entries: list[dict[str, Any]], folder: Path, overrides: list[str], seconds: float) -> None:
    """Add "megabytes" to the engine's entries and the plain loop's; ``folder``: as :func:`give` left it."""
    for entry in entries:
        if "actors" in entry:
            which = [name, "--actors", str(entry["actors"]), *overrides]
        elif "processes" in entry:
            which = ["--plain", str(folder)]
        else:
            continue  # a peer was weighed as it ran
        entry["megabytes"] = weighed([*which, "--seconds", str(seconds)])


def default_actors(experiment: Experiment) -> int:
    """What the engine takes if nobody says anything."""
    return experiment.resolve().execution.actors


def judged(name: str, result: dict[str, Any], idle_ray: float | None) -> list[tuple[str, bool]]:
    """Each limit of a workload with whether it was met."""
    engines = [entry for entry in result["entries"] if "actors" in entry]
    best = min(engines, key=lambda entry: entry["ratio"])
    picked = [entry["ratio"] for entry in engines if entry["actors"] == result["default_actors"]]
    found = [
        (f"{name}: {best['name']}: {best['ratio']:.3f} of the plain loop's time, limit {result['limit']:.3f}",
         best["ratio"] <= result["limit"]),
        (f"{name}: {best['name']} is the better one, the default is actors={result['default_actors']}",
         bool(picked) and picked[0] <= (1 + PICKS) * best["ratio"]),
    ]  # fmt: skip
    found += beside_others(WORKLOADS[name], name, result["entries"])
    if idle_ray is not None:
        for entry in engines:
            own = entry["megabytes"] - (idle_ray if entry["actors"] else 0)
            beside = " beside an idle Ray" if entry["actors"] else ""
            text = f"{name}: {entry['name']}: {own:.0f} MB{beside}, limit {MEMORY_LIMIT:.0f}"
            found.append((text, own <= MEMORY_LIMIT))
    return found


def beside_others(workload: Workload, name: str, entries: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Each limit of a workload that is about its actors, the floor or a peer, with whether it was met."""
    engines = {entry["actors"]: entry for entry in entries if "actors" in entry}
    there = {entry["name"]: entry["ratio"] for entry in entries if "ratio" in entry}
    here, found = engines[0], list[tuple[str, bool]]()
    for number, entry in engines.items():
        if number and workload.on_actors is not None:
            text = f"{entry['ratio']:.3f} of the plain loop's time, limit {workload.on_actors:.3f}"
            found.append((f"{name}: {entry['name']}: {text}", entry["ratio"] <= workload.on_actors))
        if number and workload.by_process is not None:
            times = entry["ratio"] / here["ratio"]
            text = f"{times:.2f} of the time in process, limit {workload.by_process:.2f}"
            found.append((f"{name}: {entry['name']}: {text}", times <= workload.by_process))
    share, least = here.get("floor_share"), workload.floor_share
    if share is not None and least is not None:
        text = f"{name}: {here['name']}: {share:.0%} of the floor, at least {least:.0%}"
        found.append((text, share >= least))
    if workload.at_most_peer in there:
        peer, theirs = workload.at_most_peer, there[workload.at_most_peer]
        text = f"{here['ratio']:.3f} of the plain loop's time, {peer} has {theirs:.3f}"
        found.append((f"{name}: {here['name']}: {text}", here["ratio"] <= theirs))
    return found


def show(name: str, result: dict[str, Any], console: Console) -> None:
    table = Table(*speed_page.HEAD, title=f"{name}: {result['title']}")
    for row in speed_page.rows(result):
        table.add_row(*row)
    console.print(table)


def growths(processes: int, rounds: int, console: Console) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    """Whether heaps grow with rounds, in process and on actors: of a new process, which has no holes to fill."""
    results, limits = {}, []
    table = Table("process", "MB at the end", "MB per 100 rounds", title="Memory over rounds")
    for actors in (0, processes):
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            found = fresh.submit(growth, actors, rounds).result()
        for grown in found:
            results[grown.name] = {"megabytes": grown.megabytes, "per_100_rounds": grown.per_100_rounds}
            table.add_row(grown.name, f"{grown.megabytes:.0f}", f"{grown.per_100_rounds:+.3f}")
            text = f"{grown.name}: {grown.per_100_rounds:+.3f} MB per 100 rounds, limit {GROWTH_LIMIT}"
            limits.append((text, grown.per_100_rounds <= GROWTH_LIMIT))
    console.print(table)
    return results, limits


def leave_ray() -> None:
    """So that peers have the machine to themselves."""
    import ray

    ray.shutdown()


def measured(name: str, options: argparse.Namespace, pythons: dict[str, Path]) -> dict[str, Any]:
    """All of one workload."""
    workload = WORKLOADS[name]
    experiment = workload.experiment(name, options.overrides)
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Inputs(experiment, Path(temporary))
        found, count, idle = in_turns(inputs, options.processes, options.cycles, options.seconds)
        for one in found:
            if options.floor_rounds and "actors" in one.facts:
                at = experiment.override([f"execution.actors={one.facts['actors']}"])
                one.facts["floor_share"] = measure_floor(at, options.floor_rounds).typical.share
        leave_ray()
        least, most = PEER_ROUNDS
        rounds = min(max(count, least), most)
        give(inputs, options.processes, rounds)
        if pythons:
            found += of_peers(inputs, pythons, options.processes, rounds, 1 + options.peer_blocks)
        entries = [one.entry() for one in found]
        if options.weigh:
            weigh(name, entries, inputs.folder, options.overrides, options.weigh)
    return {
        "title": workload.title,
        "limit": workload.limit,
        "experiment": experiment.to_mapping(),
        "executor": experiment.resolve().execution.executor,
        "default_actors": default_actors(experiment),
        "rounds_per_turn": count,
        "busy_cores_while_all_wait": idle,
        "entries": entries,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md's table from the results")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--processes", type=int, default=2, help="client actors, and processes of all others")
    parser.add_argument("--cycles", type=int, default=8, help="turns of each, after one to warm up")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn of the plain loop; at least one round")
    parser.add_argument("--flower-python", type=Path, help="a Python that has flwr[simulation]")
    parser.add_argument("--pfl-python", type=Path, help="a Python that has pfl[pytorch]")
    parser.add_argument("--peer-blocks", type=int, default=3, help="runs of a peer, after one to warm up; 0: no peers")
    parser.add_argument("--weigh", type=float, default=10.0, help="seconds of work to weigh each; 0: weigh nothing")
    parser.add_argument("--floor-rounds", type=int, default=5, help="to take the floor's share of; 0: leave it out")
    parser.add_argument("--growth-rounds", type=int, default=2000, help="0: leave memory over rounds out")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for speed.json")
    options = parser.parse_intermixed_args(arguments)
    if options.page:
        speed_page.write(options.results / "speed.json")
        return 0
    console = Console(width=100)
    peers = launch.pythons({"flower": options.flower_python, "pfl_research": options.pfl_python})
    if options.peer_blocks == 0:
        peers = {}
    for name in launch.PEERS.keys() - peers:
        print(f"{name}: not run, its package is not here; see benchmarks/README.md")
    results: dict[str, Any] = {
        "settings": {"cycles": options.cycles, "seconds": options.seconds, "peer_blocks": options.peer_blocks},
        "workloads": {},
    }
    limits: list[tuple[str, bool]] = []
    noise = [busy_cores(2.0)]

    def keep() -> None:
        """What there is by now: half an hour is not lost to what comes last."""
        results["busy_cores"] = max(noise, key=lambda cores: -math.inf if math.isnan(cores) else cores)
        results["limits"] = [{"text": text, "met": met} for text, met in limits]
        save("speed", results, options.results)

    idle_ray = (
        weighed(["--idle-ray", str(options.processes), "--seconds", str(options.weigh)]) if options.weigh else None
    )
    results["idle_ray_megabytes"] = idle_ray
    for name in options.workloads:
        print(f"{name}: {options.cycles + 1} cycles, turns of about {options.seconds:g} s", flush=True)
        result = results["workloads"][name] = measured(name, options, peers)
        show(name, result, console)
        limits += judged(name, result, idle_ray)
        noise.append(result["busy_cores_while_all_wait"])
        keep()
    if results["busy_cores"] > speed_page.BUSY:
        print(f"the machine is not quiet: {results['busy_cores']:.2f} cores were at work while nothing was measured")
    if options.growth_rounds:
        print(f"memory: {options.growth_rounds} rounds in process, and on actors", flush=True)
        results["growth"], more = growths(options.processes, options.growth_rounds, console)
        limits += more
        keep()
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
