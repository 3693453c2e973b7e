"""Equal bits: one experiment in process, on 1, 2 and 3 actors, with an actor killed in mid-round, stopped and resumed.

    python -m benchmarks.bits [--cifar10 FOLDER] [--rounds 10]

Two experiments (``resnet20`` with BatchNorm on 1,000 CIFAR-10 images, ``mlp`` on Fashion-MNIST; 20 clients,
Dirichlet 0.1, 5 clients a round, 1 epoch, batch 32) for every registered algorithm that has rounds and takes the model
(those without rounds are in ``tests/ray/test_ray.py``). Each row of the table must show
one hash; a different seed must show another. Without a CIFAR-10 folder the network with BatchNorm runs on the
embedded Fashion-MNIST images, and the table says so. Writes each row to ``benchmarks/results/bits.json`` as it comes,
and goes on where it stopped, unless sources, versions or the machine have changed; exits with 1 if a cell differs.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from algorithms import ALGORITHMS
from benchmarks.common import RESULTS, facts, load, save
from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.run.driver_actor import RemoteDriver  # before ray: it sets what Ray reads at import
from engine.run.run import Run, run

import ray  # isort: skip

ROOT = Path(__file__).parents[1]
STOP = 5  # the round after which a run is stopped
OWN: dict[str, dict[str, Any]] = {"cbfl": {"gen_steps": 2}}  # a generator of 1,000 steps takes an hour, to no other end


def experiments(cifar10: str | None, rounds: int) -> dict[str, Callable[[str, int, int], Experiment]]:
    """Label -> a function of (algorithm, actors, seed)."""
    small = {"train_samples": 1000, "test_samples": 500}
    images = {"name": "cifar10", "root": cifar10, **small} if cifar10 else {"name": "fashion_mnist_sample", **small}
    settings = {
        "mlp on fashion_mnist_sample": ({"name": "fashion_mnist_sample"}, {"name": "mlp"}),
        f"resnet20 on {images['name']}": (images, {"name": "resnet20"}),
    }

    def make(data: dict[str, Any], model: dict[str, Any]) -> Callable[[str, int, int], Experiment]:
        return lambda algorithm, actors, seed: Experiment(
            seed=seed,
            rounds=rounds,
            data=data,
            partition={"name": "dirichlet", "clients": 20, "alpha": 0.1},
            model={**model, **ALGORITHMS[algorithm].requires.model},
            algorithm={"name": algorithm, **OWN.get(algorithm, {})},
            local={"epochs": 1, "batch_size": 32, "lr": 0.05},
            participation={"count": 5},
            evaluation={"every": rounds},
            execution={"actors": actors, "device": "cpu"},
        )

    return {label: make(*setting) for label, setting in settings.items()}


def killed(experiment: Experiment, out: Path) -> str:
    """A run of which one actor is killed while it holds blocks of a round."""
    under_way = Run.open(experiment, out)
    under_way.advance()
    driver = under_way.driver
    assert isinstance(driver, RemoteDriver)
    victim = driver.placement()[-1]["pid"]
    os.kill(victim, signal.SIGSTOP)  # so that it cannot have finished its blocks when it dies
    begun = driver.begin(0.0)
    time.sleep(0.5)
    os.kill(victim, signal.SIGKILL)
    if not any("will run again" in text for text in driver.end(begun).messages):
        raise RuntimeError("the killed actor held no block: the kill proves nothing")
    while not under_way.finished:
        under_way.advance()
    return under_way.close()["weights_sha256"]


def stopped(experiment: Experiment, out: Path) -> str:
    """A run that is closed in the middle and opened again, on another number of actors."""
    under_way = Run.open(experiment, out)
    while under_way.round < min(STOP, experiment.rounds - 1):
        under_way.advance()
    under_way.close()
    return run(experiment.override(["execution.actors=1"]), out)["weights_sha256"]


def row(make: Callable[[int, int], Experiment]) -> dict[str, str]:
    """Where it ran -> the hash of its weights; ``make``: of actors and seed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        found = {"in process": run(make(0, 0), out / "0")["weights_sha256"]}
        for actors in (1, 2, 3):
            found[f"{actors} actors"] = run(make(actors, 0), out / f"{actors}")["weights_sha256"]
        found["killed"] = killed(make(2, 0), out / "killed")
        found["stopped, resumed"] = stopped(make(2, 0), out / "stopped")
        found["seed 1"] = run(make(0, 1), out / "seed")["weights_sha256"]
    return found


def sources() -> str:
    """A hash of the sources of engine and algorithms."""
    paths = sorted(path for package in ("engine", "algorithms") for path in (ROOT / package).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def agrees(found: dict[str, str]) -> bool:
    """Whether a row has one hash, and another one for another seed."""
    hashes = {sha for place, sha in found.items() if place != "seed 1"}
    return len(hashes) == 1 and found["seed 1"] not in hashes


def main() -> int:
    """Run the matrix; 0 if every row has one hash."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cifar10", help="a folder with CIFAR-10, in any layout that data.name=cifar10 reads")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    logging.getLogger("fedskew").addHandler(logging.NullHandler())
    key = {"rounds": arguments.rounds, "cifar10": arguments.cifar10 is not None, "sources": sources()}
    before = load("bits", RESULTS)
    kept = before if before.items() >= (key | facts()).items() else {}
    rows: dict[str, dict[str, str]] = {name: found for name, found in kept.get("rows", {}).items() if agrees(found)}
    seconds = kept.get("seconds", 0)
    began = time.perf_counter()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for label, make in experiments(arguments.cifar10, arguments.rounds).items():
        for algorithm in ALGORITHMS:
            name = f"{label}, {algorithm}"
            try:
                make(algorithm, 0, 0)
            except ConfigError as error:  # without rounds of its own, or not for this model
                print(f"{name}\n  left out: {error}", flush=True)
                continue
            if name not in rows:
                rows[name] = row(partial(make, algorithm))
                spent = round(seconds + time.perf_counter() - began)
                save("bits", {**key, "seconds": spent, "rows": rows}, RESULTS)
            print(f"{name}\n  " + "  ".join(f"{place}: {sha[:8]}" for place, sha in rows[name].items()), flush=True)
    ray.shutdown()
    wrong = [name for name, found in rows.items() if not agrees(found)]
    print(f"{len(rows)} rows, {len(wrong)} of them WRONG: {', '.join(wrong)}" if wrong else f"{len(rows)} rows agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
