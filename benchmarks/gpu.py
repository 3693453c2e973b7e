"""Seconds per round of ResNet20 on CIFAR-10 on one GPU, by executor and by actors that share the card.

    python -m benchmarks.gpu --minutes 9                          # again, until it says that nothing is left to do
    python -m benchmarks.gpu --minutes 9 --thousand FOLDER        # 1,000 rounds of (a) with the fastest setting found
    python -m benchmarks.gpu --cifar10 FOLDER ...                 # real images; else images are made up
    python -m benchmarks.gpu --executors graph block_graph --actors 0   # lanes beside stacking

100 clients, 10 of them in a round, 5 local epochs of batches of 50, and what else CBFL's tables have: (a) iid, 500
images each; (b) Dirichlet(0.1), ragged; (c) the rounds of CBFL on (b), after one of warm-up, in whole turns from one
new generator to the next. ``graph`` has 1, 2, 4 and 8 lanes, where a block has as many clients. A block is a worker's
share of the cohort. A round's time does not depend on what images show, so made-up ones do. Each setting has a process
of its own, and ``gpu.json`` is written after it: what is there already is not measured again, what failed is tried
again. Without Ray there are no actors; without a GPU the processor is measured.
"""

from __future__ import annotations

import argparse
import pickle
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, load, save, verdict
from benchmarks.worker import Worker
from engine.base.errors import FedskewError
from engine.experiment import Execution, Experiment
from engine.run.run import Run
from fedskew.lab.floor.measured import measure_floor
from tune_configs.quickstart import cifar10

PARTITIONS: dict[str, dict[str, Any]] = {
    "a": {"name": "iid", "clients": 100},
    "b": {"name": "dirichlet", "clients": 100, "alpha": 0.1},
    "c": {"name": "dirichlet", "clients": 100, "alpha": 0.1},
}
COHORT = 10  # clients of a round
CBFL = [
    {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": 1},
    {"name": "cbfl", "needs": ["warmup"], "algorithm": {"name": "cbfl"}, "rounds": 999},
]
ACTORS = (0, 1, 2, 4, 8)
LANES = (1, 2, 4, 8)  # of graph
WARM_UP, LEAST = 2, 3  # rounds that are not timed, that are at least
RESERVE = 45.0  # seconds that must be left to begin with another setting
THOUSAND, THOUSAND_LIMIT = 1000, 600.0  # rounds of (a), seconds
FLOOR_ROUNDS = 3


def executors() -> list[str]:
    """All that the engine has, by name."""
    names = get_args(Execution.model_fields["executor"].annotation)
    return [name for name in names if name != "auto"]


@dataclass(frozen=True)
class Setting:
    part: str  # a key of PARTITIONS
    executor: str
    actors: int  # that share the card; 0: none, in process
    overrides: tuple[str, ...] = ()  # key=value pairs that make it another setting
    lanes: int = 1  # clients whose steps are replayed side by side

    @property
    def key(self) -> str:
        """Its name among the results: settings that differ in overrides alone are kept apart."""
        lanes = (f"lanes={self.lanes}",) if self.lanes > 1 else ()
        return ", ".join((self.part, self.executor, f"actors={self.actors}", *lanes, *self.overrides))

    @property
    def block(self) -> int:
        """Clients of a block: a worker's share of the cohort."""
        return max(1, COHORT // max(1, self.actors))

    @classmethod
    def of(cls, key: str) -> Setting:
        """Return the setting of a key; an override's value may hold commas, as lists do."""
        part, executor, rest = key.split(", ", 2)
        actors, *overrides = re.split(r", (?=[\w.]+=)", rest)
        lanes = int(overrides.pop(0).removeprefix("lanes=")) if overrides and overrides[0].startswith("lanes=") else 1
        return cls(part, executor, int(actors.removeprefix("actors=")), tuple(overrides), lanes)

    def experiment(self, data: Path, device: Literal["cpu", "cuda"], changes: Sequence[str] = ()) -> Experiment:
        """``data``: a folder with CIFAR-10's batches. ``changes``: beside the setting's own overrides."""
        values = cifar10().to_mapping()
        values["name"] = f"gpu-{self.part}"
        values["data"]["root"] = str(data)
        values["partition"] = PARTITIONS[self.part]
        values["evaluation"]["every"] = 0
        if self.part == "c":
            del values["algorithm"], values["rounds"]
            values["stages"] = CBFL
        share = 1 / self.actors if self.actors and device == "cuda" else 0.0
        values["execution"] |= {
            "executor": self.executor,
            "actors": self.actors,
            "lanes": self.lanes,
            "block": self.block,
            "device": device,
            "gpus_per_actor": share,
        }
        return Experiment.from_mapping(values).override([*self.overrides, *changes])


def settings(
    parts: Sequence[str],
    names: Sequence[str],
    actors: Sequence[int],
    overrides: Sequence[str] = (),
    lanes: Sequence[int] = LANES,
) -> list[Setting]:
    """What tells most first: all executors in process, then more and more actors. No more lanes than a block fills."""
    there = [count for count in actors if count == 0 or find_spec("ray")]
    found = [
        Setting(part, executor, count, tuple(overrides), own)
        for count, part, executor in product(there, parts, names)
        for own in (lanes if executor == "graph" else (1,))
    ]
    return [setting for setting in found if setting.lanes <= setting.block]


def write_cifar10(folder: Path, images: int = 10_000) -> Path:
    """CIFAR-10's six files with ``images`` made-up images each, of equally many of each class."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        content = {
            "data": rng.integers(0, 256, (images, 3072), dtype=np.uint8),
            "labels": rng.permutation(np.arange(images) % 10).tolist(),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder


# --- one setting --------------------------------------------------------------------------------------


def measure(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Seconds of each round after the warm-up, for about ``seconds``; and the share of the floor, or why it has none.

    A floor that is refused, as with autocast, takes no timing away.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(experiment, Path(folder) / "run")
        try:
            while run.round < WARM_UP:
                run.advance(until=WARM_UP)
            found = timed(run, seconds)
        finally:
            run.driver.close()  # without the run's pictures
    try:
        return {**found, "floor_share": measure_floor(experiment, FLOOR_ROUNDS).typical.share}
    except FedskewError as error:
        return {**found, "no_floor": str(error)}


def timed(run: Run, seconds: float) -> dict[str, Any]:
    """The next rounds of a run, for about ``seconds``, in whole turns."""
    rounds: list[float] = []
    turn = getattr(run.experiment.chain[-1].algorithm, "refresh", 1)
    while len(rounds) < LEAST or sum(rounds) < seconds or len(rounds) % turn:
        began = time.perf_counter()
        run.advance(until=run.round + 1)
        rounds.append(time.perf_counter() - began)
    return {"seconds_per_round": typical(rounds, turn), "rounds": rounds}


def typical(rounds: Sequence[float], turn: int) -> float:
    """Return the median over turns of a round's mean seconds; in each turn the server trains once, if it does."""
    return statistics.median(statistics.fmean(rounds[begin : begin + turn]) for begin in range(0, len(rounds), turn))


def thousand(experiment: Experiment, folder: Path, seconds: float) -> dict[str, Any]:
    """Go on with a run in ``folder`` for about ``seconds``, at least one round: which rounds, and what they took."""
    began = time.perf_counter()
    run = Run.open(experiment, folder)
    first = run.round
    try:
        while not run.finished:
            run.advance(seconds=min(5.0, max(0.0, seconds - (time.perf_counter() - began))))
            if time.perf_counter() - began >= seconds:
                break
    finally:
        run.driver.close()
    return {"rounds": [first, run.round], "seconds": time.perf_counter() - began, "finished": run.finished}


def isolated(limit: float, work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What ``work`` returns in a process of its own, or {"failed": why} if it raises or takes longer than ``limit``."""
    worker = Worker(work, *arguments)
    try:
        return worker.answer(limit)
    finally:
        worker.close()


# --- all of them --------------------------------------------------------------------------------------


def missing(wanted: Sequence[Setting], results: dict[str, Any]) -> list[Setting]:
    """Those that were not measured yet."""
    return [setting for setting in wanted if "seconds_per_round" not in results["settings"].get(setting.key, {})]


def fastest(results: dict[str, Any], part: str, overrides: Sequence[str] = ()) -> Setting:
    """Of those measured with the same overrides."""
    wanted = part, tuple(overrides)
    found = {
        setting: entry["seconds_per_round"]
        for setting, entry in ((Setting.of(key), entry) for key, entry in results["settings"].items())
        if "seconds_per_round" in entry and (setting.part, setting.overrides) == wanted
    }
    if not found:
        raise SystemExit(f"part {part}: nothing is measured yet; measure without --thousand, to know what is fastest")
    return min(found, key=found.__getitem__)


def went_on(before: dict[str, Any] | None, setting: Setting, chunk: dict[str, Any]) -> dict[str, Any]:
    """The thousand rounds with one more chunk; one that begins at round 0 begins anew, one without rounds is none."""
    if before and chunk["rounds"][0] == chunk["rounds"][1]:
        return before
    chunks = [*(before["chunks"] if before and chunk["rounds"][0] else []), chunk]
    return {"setting": setting.key, "chunks": chunks, "seconds": sum(one["seconds"] for one in chunks)}


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("setting", "s per round", "rounds", "share of the floor", title=results["card"])
    for key, entry in results["settings"].items():
        if "failed" in entry:
            table.add_row(key, "failed", "", entry["failed"][:60])
        else:
            share = f"{100 * entry['floor_share']:.0f} %" if "floor_share" in entry else "none"
            table.add_row(key, f"{entry['seconds_per_round']:.3f}", str(len(entry["rounds"])), share)
    console.print(table)


def judged(results: dict[str, Any]) -> list[tuple[str, bool]]:
    """The limit of the thousand rounds, once they are done."""
    run = results.get("thousand")
    if run is None or not run["chunks"][-1]["finished"]:
        return []
    rounds = run["chunks"][-1]["rounds"][1]
    text = f"{rounds:,} rounds of (a) with {run['setting']}: {run['seconds']:.0f} s, limit {THOUSAND_LIMIT:.0f}"
    return [(text, run["seconds"] <= THOUSAND_LIMIT)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which it stops, to be called again")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help=f"of rounds for each setting, at least {LEAST} rounds"
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTITIONS), default=list(PARTITIONS))
    parser.add_argument("--executors", nargs="+", choices=executors(), default=executors())
    parser.add_argument("--actors", nargs="+", type=int, default=list(ACTORS), help="that share the card")
    parser.add_argument("--lanes", nargs="+", type=int, default=list(LANES), help="of graph")
    parser.add_argument("--thousand", type=Path, metavar="FOLDER", help="1,000 rounds of (a), kept in this folder")
    parser.add_argument("--cifar10", type=Path, help="a folder with the real CIFAR-10")
    parser.add_argument("--images", type=int, default=10_000, help="made-up images in each of CIFAR-10's six files")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for gpu.json")
    options = parser.parse_intermixed_args(arguments)
    over = time.perf_counter() + 60 * options.minutes
    console = Console(width=100)
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    card = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the processor"
    file, results = options.results / "gpu.json", load("gpu", options.results) or {"card": card, "settings": {}}
    if results["card"] != card:
        raise SystemExit(f"{file}: was measured on {results['card']} and this is {card}; name another --results folder")

    with tempfile.TemporaryDirectory() as temporary:
        data = (options.cifar10 or write_cifar10(Path(temporary) / "cifar10", options.images)).resolve()
        results["images"] = "real" if options.cifar10 else "made up"
        if options.thousand:
            begun = results["thousand"]["setting"] if (options.thousand / "experiment.yaml").exists() else None
            setting = Setting.of(begun) if begun else fastest(results, "a", options.overrides)
            changes = [f"rounds={THOUSAND}", "evaluation.every=100"]
            experiment = setting.experiment(data, device, changes)
            left = over - time.perf_counter()
            chunk = isolated(left + RESERVE, thousand, experiment, options.thousand, left - RESERVE)
            if "failed" in chunk:
                raise SystemExit(chunk["failed"])
            results["thousand"] = went_on(results.get("thousand"), setting, chunk)
            print(f"rounds {chunk['rounds'][0]} to {chunk['rounds'][1]} in {chunk['seconds']:.0f} s")
            save("gpu", results, options.results)
        else:
            wanted = settings(options.parts, options.executors, options.actors, options.overrides, options.lanes)
            for setting in missing(wanted, results):
                left = over - time.perf_counter()
                if left < RESERVE:
                    break
                print(setting.key, flush=True)
                experiment = setting.experiment(data, device)
                results["settings"][setting.key] = isolated(left, measure, experiment, options.seconds)
                save("gpu", results, options.results)
            console.print(f"left to do: {[setting.key for setting in missing(wanted, results)] or 'nothing'}")
    show(results, console)
    return verdict(judged(results))


if __name__ == "__main__":
    sys.exit(main())
