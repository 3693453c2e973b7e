"""What PFLEGO's paper claims, at laptop size: ``make personal CIFAR10=FOLDER``; hours, all but the times.

    python -m benchmarks.personal --only times                            # a minute or two
    python -m benchmarks.personal --cifar10 FOLDER --runs FOLDER          # gone on with after Ctrl-C

Three parts, each with limits from the specification:

fashion_mnist   the whole of Fashion-MNIST, 100 clients, 20 in each of 100 rounds, tau = 50, with 2 and with 5 classes
                each: PFLEGO at or above FedPer, of a round's participants after local work and of all clients
cifar10         the same claim on 2,000 images of CIFAR-10 with 5 classes each
times           a client's round of PFLEGO takes at most a fifth of one of FedPer, with 50 gradients in either

At or above: on the mean over seeds no more than half a point below, in every setting. The table says what is sure.

The times are of runs that take turns in this process, with one thread, and not of the sweeps', which run side by side.
The first round is dropped.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune
from rich.console import Console
from rich.table import Table

from benchmarks import claims
from benchmarks.common import RESULTS, save, verdict
from engine.experiment import Experiment
from engine.run.run import Run
from engine.sweeps.definition import Sweep
from tune_configs import pflego

SWEEPS = {"fashion_mnist": f"{Path(__file__).resolve()}:fashion_mnist", "cifar10": "pflego.cifar10_reduced"}
PARTS = (*SWEEPS, "times")
METRICS = (*pflego.SCOPES, "participants_std")
LIMIT = 0.2  # of FedPer's time
CLIENTS = 4  # in a timed round


def fashion_mnist(profile: str) -> Sweep:
    """The main table, where clients have some of the classes."""
    some = {pflego.DEGREE: pflego.SOME}
    sweep = pflego.table(profile)
    space = {**sweep.space, pflego.DEGREE: tune.grid_search(pflego.SOME)}
    return replace(sweep, space=space, claims=pflego.at_or_above_fedper(some))


def timed(method: dict[str, Any], overrides: list[str]) -> Experiment:
    """Rounds of a method of the main table, and nothing evaluated."""
    changes = {
        "name": f"time-{method['name']}",
        "algorithm": method,
        "rounds": 10**6,
        "participation.count": CLIENTS,
        "evaluation.every": 0,
        "evaluation.personal_every": 0,
        "checkpoint.every": 10**6,
        "execution.actors": 0,
        "execution.workers": 1,
        "execution.device": "cpu",
    }
    return pflego.base("laptop", changes).override(overrides)


def times(rounds: int, overrides: list[str]) -> dict[str, list[float]]:
    """Seconds of each client's round, method by method, in ``rounds`` rounds after the first."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = {
            method["name"]: Run.open(timed(method, overrides), folder / method["name"]) for method in pflego.METHODS
        }
        with ExitStack() as open_runs:
            for run in runs.values():
                open_runs.callback(run.close)
            for turn in range(rounds + 1):
                order = list(runs.values())
                first = turn % len(order)  # nobody always follows the same one
                for run in order[first:] + order[:first]:
                    run.advance()
        rows = {name: run.folder.frame("clients") for name, run in runs.items()}
        return {name: rows[name].query("round > 1")["seconds"].tolist() for name in rows}


def by_fedper(seconds: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """The medians, and each by FedPer's."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        name: {"median": median, "by_fedper": median / medians["fedper"], "seconds": seconds[name]}
        for name, median in medians.items()
    }


def limits(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Each limit of the parts that were measured, with whether it is kept."""
    kept = []
    for part in SWEEPS:
        for one in found[part]["claims"] if part in found else ():
            least = float(np.min(one["effects"])) if one["effects"] else math.nan  # NaN if a setting has none
            told = f"{part}: {one['text']} Least mean over seeds: {least:+.4f}"
            kept.append((told, least > one["margin"]))
    if "times" in found:
        ratio = found["times"]["pflego"]["by_fedper"]
        kept.append((f"times: PFLEGO's client round takes {ratio:.3f} of FedPer's, limit {LIMIT}", ratio <= LIMIT))
    return kept


def drawn(methods: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("method", "ms per client round", "by FedPer's", title="50 gradients over all rows of a client")
    for name, entry in methods.items():
        table.add_row(name, f"{1e3 * entry['median']:.1f}", f"{entry['by_fedper']:.3f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting, of every part")
    parser.add_argument("--cifar10", help="folder of CIFAR-10; without it that part is left out unless --only names it")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts alone; the file has no others then")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each method")
    parser.add_argument("--runs", type=Path, help="where the sweeps go, and are gone on with; none: a temporary folder")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for personal.json")
    options = parser.parse_intermixed_args()
    console = Console()
    parts = options.only or [part for part in PARTS if part != "cifar10" or options.cifar10]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        for part in parts:
            if part == "times":
                found[part] = by_fedper(times(options.rounds, options.overrides))
                continue
            root = [f"data.root={options.cifar10}"] if part == "cifar10" and options.cifar10 else []
            overrides = [*root, *options.overrides]
            found[part] = claims.measure(console, SWEEPS[part], overrides, runs / part, METRICS)
    swept = {part: found[part] for part in SWEEPS if part in found}
    if swept:
        console.print(claims.table(swept))
    if "times" in found:
        console.print(drawn(found["times"]))
    save("personal", found, options.results)
    return verdict(limits(found))


if __name__ == "__main__":
    raise SystemExit(main())
