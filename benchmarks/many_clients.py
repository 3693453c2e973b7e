"""100,000 clients on two cores: does memory follow the cohort, and not the clients? About 10 minutes.

    python -m benchmarks.many_clients
    python -m benchmarks.many_clients --million                  # FedAvg beside 1,000,000 clients; 5 minutes
    python -m benchmarks.many_clients --rounds 3 data.name=fashion_mnist_sample     # a smoke test

Every case is a process of its own: FedAvg and SCAFFOLD, in process and on client actors, with 100,000 clients and with
10,000. Weighed after each round, as proportional set sizes: the process and all that it has started, Ray included. An
idle Ray, started by a process that does nothing else, is weighed in the same way and taken off. Whether memory grows
with rounds is told by the heaps alone (anonymous memory): a share of libraries changes with what else is running.
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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict
from benchmarks.memory import actors_of, tree
from engine.experiment import Experiment
from engine.run.run import Run

CLIENTS = (10_000, 100_000)
MILLION = 1_000_000
COHORTS = (100, 1_000)
METHODS = ("fedavg", "scaffold")
ACTORS = 2
CACHE_MB = 32  # of states, of which a cohort has as much
LIMITS = {"megabytes": 1000.0, "bytes_per_client": 2000.0}  # in all; of each client more: its state has 31,400


def setting(clients: int, method: str, cohort: int = 1_000, rounds: int = 10) -> Experiment:
    """Clients of 20 images each, drawn from Fashion-MNIST with replacement; a logistic model."""
    return Experiment(
        name=f"many-{method}",
        rounds=rounds,
        data={"name": "fashion_mnist"},
        partition={"name": "replacement", "clients": clients, "samples": 20},
        model={"name": "logistic"},
        algorithm={"name": method},
        local={"epochs": 1, "batch_size": 20, "lr": 0.05},
        participation={"count": cohort},
        evaluation={"every": 10},
        execution={"state_store": "disk", "state_cache_mb": CACHE_MB},
    )


def weigh(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Run it in this process, and weigh after each round; megabytes."""
    began = time.perf_counter()
    run = Run.open(experiment, folder)
    opened = time.perf_counter() - began
    looks, heaps = list[dict[str, float]](), list[float]()
    try:
        names = {os.getpid(): "process that was started"}
        if experiment.execution.actors:
            names |= {pid: name for name, pid in actors_of(run).items()}
        while not run.finished:
            run.advance()
            looks.append(_named(tree(os.getpid()), names))
            heaps.append(sum(tree(os.getpid(), "Pss_Anon").values()))
    finally:
        summary = run.close()
    heaviest = max(looks, key=lambda look: sum(look.values()))
    states = sorted((folder / "checkpoints" / "states").glob("*.safetensors"))
    return {
        "megabytes": sum(heaviest.values()),
        "by_process": heaviest,
        "per_round": [sum(look.values()) for look in looks],
        "heaps_per_round": heaps,
        "seconds_to_open": opened,
        "seconds_per_round": summary["seconds_per_round"],
        "states": len(states),
        "state_bytes": sum(path.stat().st_size for path in states),
    }


def _named(sizes: dict[int, float], names: dict[int, str]) -> dict[str, float]:
    """By what a process is to us; all that is not ours is Ray's."""
    found = dict.fromkeys(names.values(), 0.0) | {"Ray's own": 0.0}
    for pid, size in sizes.items():
        found[names.get(pid, "Ray's own")] += size
    return found


def weigh_idle() -> dict[str, Any]:
    """A Ray with as many cores, which nobody asks for anything; the most of some seconds, since workers come late."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=max(os.cpu_count() or 1, ACTORS), include_dashboard=False, log_to_driver=False)
    try:
        looks = []
        for _ in range(10):
            time.sleep(1)
            looks.append(sum(tree(os.getpid()).values()))
        return {"megabytes": statistics.median(looks[5:])}
    finally:
        ray.shutdown()


def apart(words: list[str]) -> dict[str, Any]:
    """What this program with these words prints, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.many_clients", *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def measured(experiment: Experiment) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_text(experiment.to_yaml(), encoding="utf-8")
        return apart(["--case", str(path)])


def judged(cases: dict[str, dict[str, Any]], idle: float) -> list[tuple[str, bool]]:
    """Each limit with whether it was met."""
    found = []
    for name, case in cases.items():
        beside = idle if case["actors"] else 0.0
        size = case["megabytes"] - beside
        text = f"{name}: {size:.0f} MB" + (" beside an idle Ray" if beside else "")
        found.append((f"{text}, limit {LIMITS['megabytes']:.0f}", size <= LIMITS["megabytes"]))
    for name, case in cases.items():
        for fewer in cases.values():
            same = all(case[field] == fewer[field] for field in ("method", "actors", "cohort"))
            if same and fewer["clients"] < case["clients"]:
                more = 2**20 * (case["megabytes"] - fewer["megabytes"]) / (case["clients"] - fewer["clients"])
                text = f"{name}: {more:.0f} bytes for each client more than {fewer['clients']:,}"
                limit = LIMITS["bytes_per_client"]
                found.append((f"{text}, limit {limit:.0f}", more <= limit))
    return found


def report(cases: dict[str, dict[str, Any]], console: Console) -> None:
    heads = ("", "MB at most", "ours", "heaps", "seconds to open", "seconds per round", "states on disk")
    table = Table(*heads, title="proportional set sizes; heaps after the first round and the last")
    for name, case in cases.items():
        ours = case["megabytes"] - case["by_process"]["Ray's own"]
        states = f"{case['states']:,}, {case['state_bytes'] / 1e6:.0f} MB" if case["states"] else ""
        seconds = (f"{case['seconds_to_open']:.1f}", f"{case['seconds_per_round']:.2f}")
        heaps = f"{case['heaps_per_round'][0]:.0f} to {case['heaps_per_round'][-1]:.0f}"
        table.add_row(name, f"{case['megabytes']:.0f}", f"{ours:.0f}", heaps, *seconds, states)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--million", action="store_true", help="FedAvg, 1,000 of 1,000,000 beside 1,000 of 100,000")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for many_clients.json")
    parser.add_argument("--case", type=Path, help=argparse.SUPPRESS)  # one of them, in a process of its own
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.idle:
        print(json.dumps(weigh_idle()))
        return 0
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(weigh(Experiment.from_yaml(options.case), Path(folder) / "run")))
        return 0

    idle = apart(["--idle"])["megabytes"]
    print(f"an idle Ray: {idle:.0f} MB", flush=True)
    sizes = [(CLIENTS[0], COHORTS[1]), (CLIENTS[1], COHORTS[1]), (CLIENTS[1], COHORTS[0])]
    if options.million:
        sizes = [(CLIENTS[1], COHORTS[1]), (MILLION, COHORTS[1])]
    cases = {}
    for actors in (0, ACTORS):
        for method in METHODS[:1] if options.million else METHODS:
            for clients, cohort in sizes:
                where = f"{actors} actors" if actors else "in process"
                name = f"{method}, {where}, {cohort:,} of {clients:,}"
                print(name, flush=True)
                experiment = setting(clients, method, cohort, options.rounds).override(
                    [f"execution.actors={actors}", *options.overrides]
                )
                about = {"method": method, "actors": actors, "clients": clients, "cohort": cohort}
                cases[name] = {**about, **measured(experiment)}
    report(cases, Console(width=110))
    setup = {"rounds": options.rounds, "state_cache_mb": CACHE_MB, "samples": 20, "overrides": options.overrides}
    name = "million_clients" if options.million else "many_clients"
    save(name, {"limits": LIMITS, "setting": setup, "idle_ray_mb": idle, "cases": cases}, options.results)
    return verdict(judged(cases, idle))


if __name__ == "__main__":
    raise SystemExit(main())
