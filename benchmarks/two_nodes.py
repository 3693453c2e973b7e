"""Does the model of ``fedskew scale`` say what was not measured, on two nodes? About 3 minutes on two cores.

    python -m benchmarks.two_nodes
    python -m benchmarks.two_nodes --seconds 0.3 --turns 3      # a smoke test

The nodes are Ray's own stand-ins (``ray.cluster_utils``), each with a raylet, an object store and workers of its own,
on this machine: what they share is its cores, so that more actors than cores add nothing. One study measures all
numbers of actors in turns. Then each of them is held out: the model is fitted to the others, and its prediction stands
beside what was measured. The last one lies beyond all others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict
from benchmarks.speed import busy_cores
from engine.worker.ray import cluster as _cluster  # noqa: F401  # before ray: it sets what Ray reads at import
from fedskew.lab.scaling.study import Row, fit_of

from ray.cluster_utils import Cluster  # isort: skip

ACTORS = (1, 2, 3, 4, 6)
NODES = 2
OFF = 0.15  # a prediction may be off by that share
# The same work for every number of actors, which all divide the 12 blocks alike, and as many actors on each node.
COHORT = 48
EXPERIMENT = [
    f"participation.count={COHORT}",
    "partition.clients=200",
    "execution.block=4",
    "execution.cpus_per_actor=1",
]


def study(address: str, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Measure strong scaling: each turn of each number of actors."""
    command = [sys.executable, "-m", "fedskew.cli.main", "scale", *EXPERIMENT, *options.overrides]
    command += ["--address", address, "--out", str(folder), "--actors", ",".join(map(str, ACTORS))]
    subprocess.run([*command, "--turns", str(options.turns), "--seconds", str(options.seconds)], check=True)
    rows = pq.read_table(folder / "scaling.parquet").to_pylist()
    return [row for row in rows if row["clients"] == COHORT]


def held_out(rows: list[Row]) -> list[dict[str, Any]]:
    """Each number of actors but the first: what the others predict, what was measured, and how far off that is."""
    found = []
    for actors in ACTORS[1:]:
        guess = fit_of([row for row in rows if row["actors"] != actors]).predict(actors)
        rates = [row["rounds_per_second"] for row in rows if row["actors"] == actors]
        measured = float(np.exp(np.log(rates).mean()))
        found.append({**asdict(guess), "measured": measured, "off": guess.value / measured - 1})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for two_nodes.json")
    options = parser.parse_intermixed_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    busy = busy_cores(2.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": max(ACTORS) // NODES})
    for _ in range(NODES - 1):
        cluster.add_node(num_cpus=max(ACTORS) // NODES)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = study(str(cluster.address), Path(folder) / "study", options)
    finally:
        cluster.shutdown()
    predictions = held_out(rows)
    table = Table("actors", "predicted by the others", "95 % interval", "measured", "off by")
    for one in predictions:
        figures = f"{one['value']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}", f"{one['measured']:.2f}"
        table.add_row(str(one["actors"]), *figures, f"{100 * one['off']:+.0f} %")
    Console(width=100).print("rounds per second on two nodes", table)
    asked = {"overrides": options.overrides, "turns": options.turns, "seconds": options.seconds}
    results = {"experiment": EXPERIMENT, **asked, "busy_cores": busy, "turns": rows, "held_out": predictions}
    save("two_nodes", results, options.results)
    off = {one["actors"]: one["off"] for one in predictions}
    return verdict(
        [(f"{count} actors: off by {by:+.0%}, limit {OFF:.0%}", abs(by) <= OFF) for count, by in off.items()]
    )


if __name__ == "__main__":
    raise SystemExit(main())
