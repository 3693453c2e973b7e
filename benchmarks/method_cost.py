"""What does a method's local step cost, against FedAvg's on the same network? About 10 minutes on one core.

    python -m benchmarks.method_cost
    python -m benchmarks.method_cost --quick        # a smoke test; its figures mean nothing

Every method of ``METHODS`` is a run of its own in this process, with one thread and batches of 50. They take
turns of one round, in another order each time; the first round is dropped (it warms up, and MOON has nothing to
contrast with in it), and the median of the others counts. A turn is measured in processor time, from dispatch to
aggregation, and divided by its local steps. A method that needs a field of the model (MOON: a projection) is compared
with FedAvg on a model that has it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from algorithms import ALGORITHMS
from benchmarks.common import RESULTS, save, verdict
from engine.experiment import Experiment
from engine.run.run import Run

LIMITS = {"fedprox": 1.1, "scaffold": 1.1, "fednova": 1.1, "feddc": 1.1, "moon": 1.9, "fedmix": 3.0}
METHODS = (*LIMITS, "fedavgm", "clsprox", "clsnorm", "naivemix", "mixup_local")  # the others are reported
LIMITED = "resnet20"  # the network that the limits are for
STEPS = {"resnet20": 10, "mlp": 200}  # local steps of a client in a turn: about a second
CLIENTS = 2


@dataclass
class Contestant:
    """A run that is advanced round by round, and what its rounds cost."""

    method: str
    fields: dict[str, Any]  # of the model, as the method needs them
    run: Run
    seconds: list[float] = field(default_factory=list)  # per local step

    def turn(self) -> None:
        began = time.process_time()
        rows = self.run.advance().rows
        self.seconds.append((time.process_time() - began) / sum(row["steps"] for row in rows))

    @property
    def median(self) -> float:
        return statistics.median(self.seconds[1:])


def workload(method: str, model: str, fields: dict[str, Any], steps: int, overrides: list[str]) -> Experiment:
    """All of two clients in every round, nothing evaluated."""
    return Experiment(
        name=f"cost-{model}-{method}",
        rounds=10**6,
        data={"name": "fashion_mnist_sample"},
        partition={"name": "iid", "clients": CLIENTS},
        model={"name": model, **fields},
        algorithm={"name": method},
        local={"steps": steps, "batch_size": 50, "lr": 0.01},
        evaluation={"every": 0, "client_loss": False},
        checkpoint={"every": 10**6},
        execution={"actors": 0, "device": "cpu", "workers": 1},
    ).override(overrides)


def measure(model: str, steps: int, turns: int, overrides: list[str]) -> list[Contestant]:
    """Every method and the FedAvg beside it, after 1 + ``turns`` rounds each."""
    needs = {name: dict(ALGORITHMS[name].requires.model) for name in METHODS}
    pairs = [("fedavg", fields) for fields in unique([{}, *needs.values()])] + list(needs.items())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = []
        for number, (name, fields) in enumerate(pairs):
            run = Run.open(workload(name, model, fields, steps, overrides), folder / str(number))
            stack.callback(run.close)
            contestants.append(Contestant(name, fields, run))
        for turn in range(turns + 1):
            first = turn % len(contestants)  # nobody always follows the same one
            for contestant in contestants[first:] + contestants[:first]:
                contestant.turn()
    return contestants


def unique(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def report(model: str, contestants: list[Contestant], console: Console) -> dict[str, Any]:
    """The table of one network, and the same for the file."""
    table = Table("method", "ms per step", "by FedAvg's", "limit", title=model)
    beside = {json.dumps(one.fields, sort_keys=True): one for one in contestants if one.method == "fedavg"}
    entries = {}
    for one in contestants:
        against = beside[json.dumps(one.fields, sort_keys=True)]
        ratio = one.median / against.median
        limit = LIMITS.get(one.method) if model == LIMITED else None
        label = " ".join([one.method, *(f"{key}={value}" for key, value in one.fields.items())])
        table.add_row(label, f"{1e3 * one.median:.2f}", f"{ratio:.3f}", "" if limit is None else f"{limit}")
        entries[label] = {
            "method": one.method,
            "model_fields": one.fields,
            "seconds_per_step": one.median,
            "by_fedavg": ratio,
            "limit": limit,
            "turns": one.seconds[1:],
        }
    console.print(table)
    return entries


def judged(model: str, entries: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Each limit of the network with whether it is kept; a method that was not measured has not kept its own."""
    if model != LIMITED:
        return []
    measured = {entry["method"]: (label, entry["by_fedavg"]) for label, entry in entries.items()}
    found = []
    for method, limit in LIMITS.items():
        label, ratio = measured.get(method, (method, math.nan))
        told = "was not measured" if math.isnan(ratio) else f"{ratio:.3f} of FedAvg's step"
        found.append((f"{model}, {label}: {told}, limit {limit}", ratio <= limit))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--turns", type=int, default=5, help="measured rounds of each method")
    parser.add_argument("--quick", action="store_true", help="one turn of one step: does it run?")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for method_cost.json")
    options = parser.parse_intermixed_args()
    console = Console(width=100)
    results: dict[str, Any] = {"limits": LIMITS, "batch_size": 50, "threads": 1, "models": {}}
    limits: list[tuple[str, bool]] = []
    for model in options.models:
        steps = 1 if options.quick else STEPS[model]
        contestants = measure(model, steps, 1 if options.quick else options.turns, options.overrides)
        results["models"][model] = report(model, contestants, console)
        limits += judged(model, results["models"][model])
    if options.quick:
        return 0
    save("method_cost", results, options.results)
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
