"""What a GPU that is at hand for a quarter of an hour can tell of ``benchmarks.gpu``'s settings, what tells most first.

    benchmarks/gpu_quarter_hour.sh 9             # nine minutes; again, until it has nothing left to do
    benchmarks/gpu_quarter_hour.sh --rehearse    # on the processor, in small

All settings get ready side by side, since compiling a step takes a minute or more, and are then timed one by one
(``turns.py``). ``gpu.json`` is as ``benchmarks.gpu`` writes it, and is written whenever something has ended. Beside
its rounds a setting has

* "warm": seconds to its third round, and digests of the server's entries after the second and the third;
* "again": those of a second run, which is stopped after two rounds and resumed;
* "kernels" of one round;
* "distance": of the weights after three rounds from those of the same setting uncompiled, by the norm of these.

Beside "settings" there are "ceilings" of the card, "plain" (a loop in plain PyTorch), "weight_gradient", "equal_bits",
and "table1": how far the time that was left has brought a run of CBFL's Table 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from benchmarks import weight_gradient
from benchmarks.common import load, save
from benchmarks.gpu import COHORT, Setting, isolated, thousand, timed, went_on, write_cifar10
from benchmarks.turns import Job, Turns
from benchmarks.worker import Worker
from engine.experiment import Experiment
from engine.models import build_model
from engine.run.run import Run

Device = Literal["cpu", "cuda"]
TF32, BFLOAT16, COMPILED = "execution.tf32=true", "execution.autocast=bfloat16", "execution.compiled=true"
PRECISIONS = ((TF32,), (BFLOAT16,), ())
LANES = 8
AT_ONCE = 16  # processes
PATIENCE, LONGEST = 150.0, 60.0  # seconds: for the rest to be ready, for a part that is timed
RESERVE = 15.0  # seconds to end in
SECONDS = 3.0  # of rounds, at least three
LARGEST = 40  # kernels that are named
ALONE = frozenset({"rounds", "kernels", "ceilings", "plain", "weight_gradient"})
TABLE1 = ["stages.warmup.rounds=700", "stages.cbfl.rounds=300", "evaluation.every=100"]
SMALL = [
    "model.name=resnet8",
    "partition.clients=20",
    "participation.count=2",
    "data.train_samples=200",
    "local.epochs=1",
]
SMALL_CBFL = [f"stages.cbfl.algorithm.gen_{key}" for key in ("steps=2", "batch=8", "width=8")]


def settings() -> list[Setting]:
    """Compiled steps and what they are compared with, then lanes that are to have equal bits, then all others."""

    def stacked(part: str, *overrides: str) -> Setting:
        return Setting(part, "block_graph", 0, overrides)

    def lanes(part: str, count: int, *overrides: str) -> Setting:
        return Setting(part, "graph", 0, overrides, count)

    first = [
        stacked("a", COMPILED, TF32),
        stacked("a", COMPILED, BFLOAT16),
        stacked("b", COMPILED, TF32),
        stacked("c", COMPILED, TF32),
        stacked("a", TF32),
        stacked("b", COMPILED, BFLOAT16),
        stacked("c", COMPILED, BFLOAT16),
        stacked("a", COMPILED),
        stacked("a", BFLOAT16),
        *(lanes("a", count, TF32) for count in (LANES, 4, 1)),
    ]
    others = [
        make for part, own in product("bca", PRECISIONS) for make in (stacked(part, *own), lanes(part, LANES, *own))
    ]
    last = [stacked("b", COMPILED), stacked("c", COMPILED)]
    last += [Setting(part, "loop", 0, own) for own, part in product(PRECISIONS, "abc")]
    return list(dict.fromkeys([*first, *others, *last]))


def rehearsed() -> list[Setting]:
    """What a processor can do: ``block`` has all parts that compiled steps have."""
    return [
        Setting("a", "block", 0),
        Setting("a", "block", 0, (BFLOAT16,)),
        Setting("c", "loop", 0),
        Setting("a", "graph", 0),  # is refused there
    ]


def job(setting: Setting, data: Path, device: Device) -> Job:
    """A setting's. Kernels are named of what is compiled, but not of CBFL, whose generator has most of them; to be done
    again takes a compilation from the disk, and clients of many sizes have three.
    """
    parts = ["warm", "rounds"]
    if setting.part != "c" and (COMPILED in setting.overrides or device == "cpu"):
        parts.append("kernels")
    if setting.part == "a" and setting.executor != "loop":
        parts.append("again")
    changes = [*SMALL, *(SMALL_CBFL if setting.part == "c" else [])] if device == "cpu" else []
    return Job(setting.key, tuple(parts), measured, (setting, data, device, changes, tuple(parts)))


# --- one setting --------------------------------------------------------------------------------------


def measured(
    setting: Setting, data: Path, device: Device, changes: Sequence[str], parts: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """What each of a setting's parts comes to, and once the "weights" after three rounds."""
    began = time.perf_counter()
    experiment = setting.experiment(data, device, changes)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with opened(experiment, folder / "run") as run:
            digests = [digest_after(run, 2), digest_after(run, 3)]
            weights = run.driver.driver.lineage.server["weights"].double().cpu().numpy()
            yield {"seconds": time.perf_counter() - began, "digests": digests, "weights": weights}
            yield timed(run, SECONDS)
            if "kernels" in parts:
                yield kernels(run, device)
        if "again" in parts:
            digests = []
            for rounds in (2, 3):
                with opened(experiment, folder / "again") as run:
                    digests.append(digest_after(run, rounds))
            yield {"digests": digests}


@contextmanager
def opened(experiment: Experiment, folder: Path) -> Iterator[Any]:
    """A run in this process, which is stopped at the end; without its pictures."""
    run = Run.open(experiment, folder)
    try:
        yield run
    finally:
        run.driver.close()


def digest_after(run: Any, rounds: int) -> str:
    """The digest of all of the server's entries."""
    while run.round < rounds:
        run.advance(until=rounds)
    entries = sorted(run.driver.driver.lineage.server.items())
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for _, tensor in entries)).hexdigest()[:16]


def kernels(run: Run, device: Device) -> dict[str, Any]:
    """Of one round: how many ran, their summed time, and those that took most of it."""
    cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        run.advance(until=run.round + 1)
        if cuda:
            torch.cuda.synchronize()
    took = [
        (one.self_device_time_total if cuda else one.self_cpu_time_total, one.count, one.key)
        for one in found.key_averages()
    ]
    took.sort(reverse=True)
    return {
        "count": sum(count for _, count, _ in took),
        "milliseconds": sum(micros for micros, _, _ in took) / 1e3,
        "largest": [
            {"kernel": key[:160], "count": count, "milliseconds": micros / 1e3} for micros, count, key in took[:LARGEST]
        ],
    }


# --- the card -----------------------------------------------------------------------------------------


def ceilings(device: Device) -> Iterator[dict[str, Any]]:
    """Gigabytes read and written a second by a copy, and 10^12 operations of a matrix product by its precision."""
    side = 8192 if device == "cuda" else 256
    one = torch.randn(side, side, device=device)
    yield {}
    found = {"copy_gb_per_s": 2 * one.nbytes / seconds_of("other.copy_(one)", one=one, other=one.clone()) / 1e9}
    for name, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found[f"{name}_tflops"] = 2 * side**3 / seconds_of("one @ one", one=one.to(dtype)) / 1e12
    yield found


def seconds_of(statement: str, **names: Any) -> float:
    return Timer(statement, globals=names).blocked_autorange(min_run_time=0.3).median


def plain(data: Path, device: Device) -> Iterator[dict[str, Any]]:
    """Seconds of a round of (a) in plain PyTorch, eagerly: ten times a client's, without augmentation, by precision."""
    experiment = Setting("a", "loop", 0).experiment(data, device, SMALL if device == "cpu" else [])
    dataset, local = experiment.data.load(), experiment.local
    model = build_model(experiment.model, dataset.shape, len(dataset.classes), torch.Generator()).to(device)
    rows = len(dataset.train.labels) // experiment.partition.clients
    x = torch.from_numpy(dataset.train.images[:rows]).to(device).float() / 255
    y = torch.from_numpy(np.asarray(dataset.train.labels[:rows])).long().to(device)

    def client(autocast: bool) -> float:
        began = time.perf_counter()
        optimizer = torch.optim.SGD(model.parameters(), local.lr, local.momentum, weight_decay=local.weight_decay)
        for _ in range(int(local.epochs)):
            for batch in torch.randperm(rows, device=device).split(int(local.batch_size)):
                optimizer.zero_grad()
                with torch.autocast(device, torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                optimizer.step()
        next(model.parameters()).sum().item()  # waits for the device
        return time.perf_counter() - began

    client(autocast=False)
    yield {}
    found: dict[str, Any] = {}
    for name in ("float32", "tf32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
        found[name] = COHORT * sorted(client(autocast=name == "bfloat16") for _ in range(3))[1]
    yield {"seconds_per_round": found}


# --- all of them --------------------------------------------------------------------------------------


def equal_bits(settings: dict[str, Any]) -> dict[str, bool]:
    """Whether each setting has the same bits twice and after it was resumed, and in any number of lanes."""
    found: dict[str, bool] = {}
    lanes: dict[str, set[str]] = {}
    for key, entry in settings.items():
        first, again = (entry.get(part, {}).get("digests") for part in ("warm", "again"))
        if first and again:
            found |= {f"{key}: twice": first[0] == again[0], f"{key}: resumed": first[1] == again[1]}
        if first and Setting.of(key).executor == "graph":
            one = replace(Setting.of(key), lanes=1).key
            lanes.setdefault(one, set()).add(first[1])
            found[f"{one}: in any lanes"] = len(lanes[one]) == 1
    return found


class Results:
    """``gpu.json`` in a folder, written whenever something has ended."""

    def __init__(self, folder: Path, card: str, images: str) -> None:
        self.folder = folder
        before = load("gpu", folder)  # of another card: nothing to go on with
        self.values: dict[str, Any] = before if before.get("card") == card else {"card": card, "settings": {}}
        self.values["images"] = images
        self._weights: dict[str, np.ndarray] = {}
        self._began = time.perf_counter()

    def lacks(self, job: Job) -> bool:
        """Whether something of a job is missing, or has failed."""
        entry = self.values["settings"].get(job.key)
        if entry is None:
            found = self.values.get(job.key)
            return found is None or "failed" in found
        parts = [entry if part == "rounds" else entry.get(part, {"failed": ""}) for part in job.parts]
        return "seconds_per_round" not in entry or any("failed" in part for part in parts)

    def keep(self, job: Job, part: str, answer: dict[str, Any]) -> None:
        """Take over what a part of a job came to."""
        if job.work is not measured:
            if answer:
                self.values[job.key] = answer
        else:
            entry = self.values["settings"].setdefault(job.key, {})
            if "weights" in answer:
                self._weights[job.key] = answer.pop("weights")
                self._compare()
            if "failed" in answer and "seconds_per_round" not in entry:
                entry["failed"] = f"{part}: {answer['failed']}"
            elif part == "rounds":
                self.values["settings"][job.key] = {
                    key: value for key, value in entry.items() if key not in ("failed", "beside")
                } | answer
            else:
                entry[part] = answer
            self.values["equal_bits"] = equal_bits(self.values["settings"])
        self.save(f"{job.key}: {part}", answer)

    def save(self, name: str, answer: dict[str, Any]) -> None:
        save("gpu", self.values, self.folder)
        short = {key: value for key, value in answer.items() if key not in ("rounds", "largest", "digests")}
        print(f"[{time.perf_counter() - self._began:6.1f}] {name} {str(short)[:120]}", flush=True)

    def _compare(self) -> None:
        """Note how far the weights of compiled steps are from those of the others."""
        for key, weights in self._weights.items():
            setting = Setting.of(key)
            if COMPILED in setting.overrides:
                overrides = tuple(one for one in setting.overrides if one != COMPILED)
                other = self._weights.get(replace(setting, overrides=overrides).key)
                if other is not None:
                    distance = np.linalg.norm(weights - other) / np.linalg.norm(other)
                    self.values["settings"].setdefault(key, {})["distance"] = float(distance)


def table1(results: Results, data: Path, device: Device, folder: Path, seconds: float) -> None:
    """Go on with a run of CBFL's Table 1, with the setting of (c) that is fastest."""
    before = results.values.get("table1")
    entries = results.values["settings"].items()
    found = {key: one["seconds_per_round"] for key, one in entries if key[0] == "c" and "seconds_per_round" in one}
    if not found:
        return
    setting = Setting.of(before["setting"] if before and folder.exists() else min(found, key=found.__getitem__))
    experiment = setting.experiment(data, device, [*TABLE1, *([*SMALL, *SMALL_CBFL] if device == "cpu" else [])])
    chunk = isolated(seconds + RESERVE, thousand, experiment, folder, seconds)
    if "failed" not in chunk:
        results.values["table1"] = went_on(before, setting, chunk)
    results.save("table1", chunk)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=9.0, help="after which it ends, to be called again")
    parser.add_argument("--rehearse", action="store_true", help="on the processor, in small")
    parser.add_argument("--results", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--kept", type=Path, required=True, help="folder for logs and the run of Table 1")
    parser.add_argument("--cifar10", type=Path, help="a folder with the real CIFAR-10; else images are made up")
    options = parser.parse_args(arguments)
    over = time.perf_counter() + 60 * options.minutes - RESERVE
    device: Device = "cpu" if options.rehearse else "cuda"
    card = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the processor"
    results = Results(options.results, card, "real" if options.cifar10 else "made up")
    logs = options.kept / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    def left() -> float:
        return over - time.perf_counter()

    def start(job: Job) -> Worker:
        name = "".join(letter if letter.isalnum() else "-" for letter in job.key)
        return Worker(job.work, *job.arguments, log=logs / f"{name}.log")

    with tempfile.TemporaryDirectory() as temporary:
        images = 40 if options.rehearse else 10_000
        data = (options.cifar10 or write_cifar10(Path(temporary) / "cifar10", images)).resolve()
        own = [job(setting, data, device) for setting in (rehearsed() if options.rehearse else settings())]
        card_jobs = [
            Job("ceilings", ("warm", "ceilings"), ceilings, (device,)),
            Job("plain", ("warm", "plain"), plain, (data, device)),
        ]
        if device == "cuda":
            card_jobs.append(Job("weight_gradient", ("warm", "weight_gradient"), weight_gradient.parts))
        jobs = [*own[:4], *card_jobs, *own[4:]]
        at_once = 2 if options.rehearse else AT_ONCE
        todo = [one for one in jobs if results.lacks(one)]
        Turns(todo, ALONE, left, results.keep, at_once, PATIENCE, LONGEST, start).run()
        if left() > 2 * RESERVE:
            table1(results, data, device, options.kept / "table1", 5.0 if options.rehearse else left() - RESERVE)
    print("left to do:", [one.key for one in jobs if results.lacks(one)] or "Table 1")


if __name__ == "__main__":
    sys.exit(main())
