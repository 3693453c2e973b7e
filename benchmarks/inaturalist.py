"""Does memory stay with the model where clients are many? 2,295 of them, as in CBFL's iNaturalist. About 10 minutes.

    python -m benchmarks.inaturalist
    python -m benchmarks.inaturalist --quick     # 60 clients of a small network: does it run? Its figures mean nothing

ResNet18 with 1,010 classes, 2,295 natural clients of long-tailed sizes, 23 of them in each of 3 rounds, on Ray with two
client actors: FedAvg, CBFL, and SCAFFOLD with its clients' states on disk. The images are small and made up, and a
client takes two steps of 8 rows, so that what there is to weigh are models: *a model* below is the bytes of one's
weights.

Weighed are the heaps of the driver actor and of the client actors (``Pss_Anon``) and Ray's object store, at their
peaks, less those of the same run of a network of next to nothing; and the files of SCAFFOLD's states, which must be one
for each client that took part, with as many numbers as the model has.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict
from benchmarks.memory import Peaks, actors_of
from engine.base.sizes import size_text
from engine.experiment import Checkpointing, Experiment
from engine.record.run_folder import RunFolder
from engine.record.state_projection import most_files, touched
from engine.run.run import Run

CLIENTS, COHORT, CLASSES, SIDE = 2295, 23, 1010, 32
ACTORS, ROUNDS, PAPER_ROUNDS = 2, 3, 1000
CACHE_MB = 512  # of states: the default
FIELDS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    # Few generated rows and steps of the generator: activations are not what is weighed.
    "cbfl": {"fake_batch": 8, "gen_steps": 4, "gen_batch": 16},
    "scaffold": {},
}
NOTHING = {"name": "mlp", "hidden": [1]}  # the network of next to nothing
BLOCKS = 12  # of two clients each: a sixteenth of the cohort, rounded up
LIMITS = {  # peaks in models, beyond NOTHING's
    # Sums and means of uploads in float64, the server's entries before and after, a state on its way to the disk.
    "driver": {"fedavg": 7.0, "cbfl": 7.0, "scaffold": 17.0},
    # Weights, gradient, what was received, a block's sums; of what it frees, glibc keeps up to 512 MB (11 models).
    "client": {"fedavg": 15.0, "cbfl": 18.0, "scaffold": 27.0},
    # What is broadcast, and the blocks' sums (each vector is two models in float64), which may all wait for the first
    # block's; SCAFFOLD's are of two vectors, and until a round is over the new states of its cohort lie there, too.
    # One more for what else goes to and fro. With the cache of states, which holds them where they came from.
    "store": {
        "fedavg": 1 + 2.0 * BLOCKS + 1,
        "cbfl": 2 + 2.0 * BLOCKS + 1,
        "scaffold": 2 + 4.0 * BLOCKS + COHORT + 1,
    },
}


@dataclass(frozen=True)
class Peak:
    """What a run held at most, in bytes."""

    driver: float
    client: float  # the larger of the client actors
    store: float
    model: int  # bytes of the weights
    states: States | None = None

    def over(self, base: Peak, part: str) -> float:
        """In models, beyond what ``base`` held."""
        return (getattr(self, part) - getattr(base, part)) / self.model


@dataclass(frozen=True)
class States:
    """What clients keep, as it lies on the disk after a run."""

    clients: int  # that have taken part
    files: int
    numbers: tuple[int, ...]  # the bytes of tensors in a file, each value once
    size: int  # bytes of all files
    projected: str  # what the run had said before its first round


def write_data(folder: Path, clients: int, classes: int, side: int) -> Path:
    """Images of ``clients`` owners as parquet: noise, long-tailed numbers of owners' images and of classes' owners.

    An owner has 2 images or more, about 10 on average and up to hundreds, of classes that a few are much more common
    of; each class has one test image.
    """
    rng = np.random.default_rng(0)
    sizes = np.minimum(2 + rng.lognormal(1.5, 1.1, clients), 500).astype(int)
    common = 1 / np.arange(1, classes + 1) ** 0.7
    kinds = [rng.choice(classes, min(classes, 1 + size // 2), replace=False, p=common / common.sum()) for size in sizes]
    labels = np.concatenate([rng.choice(own, size) for own, size in zip(kinds, sizes, strict=True)])
    splits = {
        "train": (labels, np.repeat(np.arange(clients), sizes)),
        "test": (np.arange(classes), rng.integers(0, clients, classes)),
    }
    folder.mkdir(parents=True)
    for name, (label, owner) in splits.items():
        images = [_png(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in label]
        pq.write_table(pa.table({"image": images, "label": label, "owner": owner}), folder / f"{name}.parquet")
    return folder


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", compress_level=0)
    return buffer.getvalue()


def workload(method: str, data: Path, model: Mapping[str, Any], **changes: Any) -> Experiment:
    """Three rounds of 23 clients, two steps of 8 rows each."""
    values: dict[str, Any] = {
        "name": f"inaturalist-{method}",
        "rounds": ROUNDS,
        "data": {"name": "parquet", "root": str(data), "owner_column": "owner"},
        "partition": {"name": "natural"},
        "model": dict(model),
        "algorithm": {"name": method, **FIELDS[method]},
        "local": {"steps": 2, "batch_size": 8, "lr": 0.01},
        "participation": {"count": COHORT},
        "evaluation": {"every": 0, "batch_size": 50},
        "execution": {"actors": ACTORS, "device": "cpu", "state_store": "disk", "state_cache_mb": CACHE_MB},
    }
    return Experiment(**values | changes)


def weighed(experiment: Experiment, folder: Path) -> Peak:
    """Run it in a Ray of its own."""
    try:
        with Peaks() as peaks:
            run = Run.open(experiment, folder)
            try:
                actors = actors_of(run)
                while not run.finished:
                    run.advance()
            finally:
                summary = run.close()
    finally:
        ray.shutdown()
    heaps = {name: peaks.heaps[pid] for name, pid in actors.items()}
    return Peak(
        driver=heaps.pop("driver actor"),
        client=max(heaps.values()),
        store=float(peaks.store),
        model=4 * summary["parameters"],
        states=states_of(folder),
    )


def states_of(folder: Path) -> States | None:
    """Those of the run in ``folder``, counted; nothing where clients keep none."""
    files = sorted((folder / "checkpoints" / "states").glob("*.safetensors"))
    if not files:
        return None
    clients: Any = RunFolder(folder).frame("clients")
    lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    return States(
        clients=int(clients["client"].nunique()),
        files=len(files),
        numbers=tuple(sorted({_tensor_bytes(file) for file in files})),
        size=sum(file.stat().st_size for file in files),
        projected=next(line.partition("states: ")[2] for line in lines if "states: " in line),
    )


def _tensor_bytes(file: Path) -> int:
    """What a safetensors file holds behind its header, whose length is in its first eight bytes."""
    with open(file, "rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
    return file.stat().st_size - 8 - header


def report(peaks: Mapping[str, Peak], base: Peak, console: Console) -> dict[str, Any]:
    """The table, and the same for the file."""
    model = next(iter(peaks.values())).model
    title = f"peaks in models of {size_text(model)}, beyond those of a run of next to nothing"
    table = Table("method", "driver", "client actor", "object store", "states", title=title)
    entries = {}
    for method, peak in peaks.items():
        over = {part: peak.over(base, part) for part in LIMITS}
        states = f"{peak.states.files} files, {size_text(peak.states.size)}" if peak.states else ""
        table.add_row(method, *(f"{value:.1f}" for value in over.values()), states)
        entries[method] = {
            "models_beyond_base": over,
            "bytes": {part: getattr(peak, part) for part in LIMITS},
            "states": vars(peak.states) if peak.states else None,
        }
    console.print(table)
    return {"model_bytes": model, "base_bytes": {part: getattr(base, part) for part in LIMITS}, "methods": entries}


def judged(peaks: Mapping[str, Peak], base: Peak) -> list[tuple[str, bool]]:
    """Each bound with whether it was met."""
    found = []
    for part, limits in LIMITS.items():
        for method, limit in limits.items():
            peak = peaks[method]
            cache = CACHE_MB * 2**20 / peak.model if part == "store" and peak.states else 0.0
            over = peak.over(base, part)
            bound = f"at most {limit:g}" + (f" and {cache:.1f} of cached states" if cache else "")
            found.append((f"{method}, {part}: {over:.1f} models beyond the base, {bound}", over <= limit + cache))
    states = peaks["scaffold"].states
    assert states is not None
    return found + judged_states(states, peaks["scaffold"].model)


def judged_states(states: States, model: int) -> list[tuple[str, bool]]:
    """A file for each client that took part, each of as many bytes as a model."""
    sizes = ", ".join(f"{size:,}" for size in states.numbers)
    told = f"scaffold: {states.files} states on the disk, {states.clients} clients took part"
    return [
        (told, states.files == states.clients),
        (f"scaffold: states of {sizes} bytes, a model has {model:,}", states.numbers == (model,)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60 clients of a small network: does it run?")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for inaturalist.json")
    options = parser.parse_args()
    clients, classes, side, model = (60, 40, 8, "resnet8") if options.quick else (CLIENTS, CLASSES, SIDE, "resnet18")
    network = {"name": model} | ({} if options.quick else {"stem": "large"})  # torchvision's, as for photographs
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write_data(folder / "data", clients, classes, side)
        base = weighed(workload("fedavg", data, NOTHING), folder / "base")
        peaks = {method: weighed(workload(method, data, network), folder / method) for method in FIELDS}
    results = report(peaks, base, Console(width=100))
    if options.quick:
        return 0
    share, checkpoint, one = COHORT / CLIENTS, Checkpointing(), results["model_bytes"]
    results["paper_rounds_of_scaffold"] = {
        "rounds": PAPER_ROUNDS,
        "clients": touched(CLIENTS, share, PAPER_ROUNDS),
        "bytes": one * touched(CLIENTS, share, PAPER_ROUNDS),
        "bytes_with_older_versions": one * most_files(CLIENTS, share, PAPER_ROUNDS, checkpoint),
    }
    settings = {"clients": CLIENTS, "cohort": COHORT, "classes": CLASSES, "side": SIDE, "rounds": ROUNDS}
    save("inaturalist", {"limits": LIMITS, "setting": settings | {"actors": ACTORS}, **results}, options.results)
    return verdict(judged(peaks, base))


if __name__ == "__main__":
    raise SystemExit(main())
