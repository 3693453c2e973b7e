"""What does a method's local work cost, against as much of FedAvg's on the same network? About 15 minutes on one core.

    python -m benchmarks.method_cost
    python -m benchmarks.method_cost --quick        # a smoke test; its figures mean nothing

Every method of a workload is a run of its own in this process, with one thread. They take turns of one round, in
another order each time; the first round is dropped (it warms up, and MOON has nothing to contrast with in it), and the
median of the others counts. A turn is measured in processor time, from dispatch to aggregation, and divided by the
local steps that FedAvg takes in it. A method that needs a field of the model (MOON: a projection) is compared with
FedAvg on a model that has it, and CBFL, whose step has 70 generated rows beside 50 of its own, with FedAvg on batches
of 120; its generator is trained in the dropped round alone.

Beside these, CCVR's moments of 512 features in 100 classes, against the bare matrix products that they take.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from algorithms import ALGORITHMS
from benchmarks.common import RESULTS, save, verdict
from engine.algorithm.moments import moments_of
from engine.experiment import Experiment
from engine.run.run import Run

CLIENTS = 2
BATCHES = {  # limits on networks of which a step takes milliseconds
    **dict.fromkeys(("fedprox", "scaffold", "fednova", "feddc"), 1.1),  # vector arithmetic
    "moon": 1.4,  # two more forward passes, of what no training changes
    "fedmix": 3.0,  # a gradient of a gradient
    "fedser": 4.0,  # 0.8 (1 + 2 n), with n = 2 sub-networks
    "cbfl": 2.0,  # a teacher's forward pass and generated images
}
OTHERS = ("fedavgm", "clsprox", "clsnorm", "naivemix", "mixup_local")  # are reported
OWN: dict[str, dict[str, Any]] = {"cbfl": {"gen_steps": 1, "refresh": 10**6}}  # fields of a method
BESIDE = {"cbfl": ("local.batch_size=120",)}  # of the FedAvg that it is compared with
FULL = ("local.batch_size=full", "data.train_samples=1200")  # 600 rows a client, as in the personal tables
HALF = {"pflego": 0.06}  # of 50 gradients 49 are the head's; they took 0.12


@dataclass(frozen=True)
class Workload:
    """What a client does in a turn, which methods do it, and what they may take."""

    model: str
    steps: int  # local steps of a client in a turn: about a second
    limits: Mapping[str, float]
    others: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return (*self.limits, *self.others)


ANYWHERE = tuple(name for name in BATCHES if name not in ("fedser", "cbfl"))  # whatever the network
WORKLOADS = {
    "resnet20": Workload("resnet20", 10, BATCHES, OTHERS),
    "mlp": Workload("mlp", 200, {}, (*ANYWHERE, *OTHERS)),
    "heads": Workload("pflego_mlp", 50, HALF, (), (*FULL, "execution.executor=loop")),
    "heads of a block": Workload("pflego_mlp", 50, HALF, (), (*FULL, "execution.executor=block", "execution.block=2")),
}
FEATURES, CLASSES, ROWS = 512, 100, 20  # of CCVR's moments; rows of each class
MOMENTS_LIMIT = 2.0  # of the bare products' time


@dataclass
class Contestant:
    """A run that is advanced round by round, and what its rounds cost."""

    method: str
    fields: dict[str, Any]  # of the model, as the method needs them
    beside: tuple[str, ...]  # overrides of FedAvg: its own, or of the one that it is compared with
    steps: int  # FedAvg's in a turn
    run: Run
    seconds: list[float] = field(default_factory=list)  # per step of FedAvg

    def turn(self) -> None:
        began = time.process_time()
        self.run.advance()
        self.seconds.append((time.process_time() - began) / self.steps)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds[1:])


def experiment(method: str, fields: dict[str, Any], work: Workload, steps: int, overrides: Sequence[str]) -> Experiment:
    """All of two clients in every round, nothing evaluated."""
    return Experiment(
        name=f"cost-{work.model}-{method}",
        rounds=10**6,
        data={"name": "fashion_mnist_sample"},
        partition={"name": "iid", "clients": CLIENTS},
        model={"name": work.model, **fields},
        algorithm={"name": method, **OWN.get(method, {}), **({"tau": steps} if method == "pflego" else {})},
        local={"steps": steps, "batch_size": 50, "lr": 0.01},
        evaluation={"every": 0, "client_loss": False},
        checkpoint={"every": 10**6, "seconds": None},
        execution={"actors": 0, "device": "cpu", "workers": 1},
    ).override([*work.overrides, *overrides])


def measure(work: Workload, steps: int, turns: int, overrides: list[str]) -> list[Contestant]:
    """Every method and the FedAvg beside it, after 1 + ``turns`` rounds each."""
    needs = [(name, dict(ALGORITHMS[name].requires.model), BESIDE.get(name, ())) for name in work.methods]
    baselines = {_key(fields, beside): ("fedavg", fields, beside) for _, fields, beside in [("", {}, ()), *needs]}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = []
        for number, (name, fields, beside) in enumerate([*baselines.values(), *needs]):
            changes = [*(beside if name == "fedavg" else ()), *overrides]
            run = Run.open(experiment(name, fields, work, steps, changes), folder / str(number))
            stack.callback(run.close)
            contestants.append(Contestant(name, fields, beside, CLIENTS * steps, run))
        for turn in range(turns + 1):
            first = turn % len(contestants)  # nobody always follows the same one
            for contestant in contestants[first:] + contestants[:first]:
                contestant.turn()
    return contestants


def _key(fields: dict[str, Any], beside: tuple[str, ...]) -> str:
    return json.dumps([fields, beside], sort_keys=True)


def moments(turns: int) -> dict[str, Any]:
    """Seconds of all classes' moments, as a client of CCVR makes them, and of the bare products, in turns."""
    features = torch.randn(CLASSES, ROWS, FEATURES, generator=torch.Generator().manual_seed(0))
    exact = features.double()
    works = {
        "moments": lambda: [moments_of(z) for z in features],
        "products": lambda: [z.T @ z for z in exact],
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name in list(works)[:: 1 if turn % 2 else -1]:
            began = time.process_time()
            works[name]()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(found[1:]) for name, found in seconds.items()}
    return {"seconds": medians, "by_products": medians["moments"] / medians["products"], "limit": MOMENTS_LIMIT}


def report(name: str, contestants: list[Contestant], console: Console) -> dict[str, Any]:
    """The table of one workload, and the same for the file."""
    work = WORKLOADS[name]
    table = Table("method", "ms per step of FedAvg", "by FedAvg's", "limit", title=name)
    baselines = {_key(one.fields, one.beside): one for one in contestants if one.method == "fedavg"}
    entries = {}
    for one in contestants:
        ratio = one.median / baselines[_key(one.fields, one.beside)].median
        limit = work.limits.get(one.method)
        changed = one.beside if one.method == "fedavg" else ()
        label = " ".join([one.method, *(f"{key}={value}" for key, value in one.fields.items()), *changed])
        table.add_row(label, f"{1e3 * one.median:.2f}", f"{ratio:.3f}", "" if limit is None else f"{limit}")
        entries[label] = {
            "method": one.method,
            "model_fields": one.fields,
            "beside": one.beside,
            "seconds_per_step": one.median,
            "by_fedavg": ratio,
            "limit": limit,
            "turns": one.seconds[1:],
        }
    console.print(table)
    return entries


def judged(name: str, entries: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Each limit of the workload with whether it is kept; a method that was not measured has not kept its own."""
    measured = {entry["method"]: (label, entry["by_fedavg"]) for label, entry in entries.items()}
    found = []
    for method, limit in WORKLOADS[name].limits.items():
        label, ratio = measured.get(method, (method, math.nan))
        told = "was not measured" if math.isnan(ratio) else f"{ratio:.3f} of FedAvg's time"
        found.append((f"{name}, {label}: {told}, limit {limit}", ratio <= limit))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS, "moments"], default=[*WORKLOADS, "moments"])
    parser.add_argument("--turns", type=int, default=5, help="measured rounds of each method")
    parser.add_argument("--quick", action="store_true", help="one turn of two steps: does it run?")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for method_cost.json")
    options = parser.parse_intermixed_args()
    console = Console(width=100)
    results: dict[str, Any] = {"batch_size": 50, "threads": 1, "workloads": {}}
    limits: list[tuple[str, bool]] = []
    turns = 1 if options.quick else options.turns
    for name in (name for name in WORKLOADS if name in options.only):
        work = WORKLOADS[name]
        steps = min(2, work.steps) if options.quick else work.steps
        contestants = measure(work, steps, turns, options.overrides)
        results["workloads"][name] = report(name, contestants, console)
        limits += judged(name, results["workloads"][name])
    if "moments" in options.only:
        torch.set_num_threads(1)
        found = results["moments"] = moments(turns)
        told = f"CCVR's moments: {found['by_products']:.2f} of the bare products' time, limit {MOMENTS_LIMIT}"
        console.print(told)
        limits.append((told, found["by_products"] <= MOMENTS_LIMIT))
    if options.quick:
        return 0
    save("method_cost", results, options.results)
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
