"""What both benchmarks need: a run's inputs as files for the plain loop, facts about the machine, results as JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine import __version__
from engine.algorithm import seeds
from engine.base.devices import cores, cpu_name
from engine.client.nets import open_model
from engine.data import Assignment
from engine.data.samples.batches import orders
from engine.experiment import Experiment

RESULTS = Path(__file__).parent / "results"


def write_inputs(experiment: Experiment, folder: Path) -> None:
    """``data.npz`` and ``weights.npy``: the images as stored, and the experiment's initial weights."""
    dataset = experiment.data.load()
    channels = dataset.train.images.shape[1]
    np.savez(
        folder / "data.npz",
        train_images=dataset.train.images,
        train_labels=dataset.train.labels,
        test_images=dataset.test.images,
        test_labels=dataset.test.labels,
        mean=np.broadcast_to(dataset.mean, channels),
        std=np.broadcast_to(dataset.std, channels),
    )
    np.save(folder / "weights.npy", open_model(experiment, dataset, torch.device("cpu")).weights.numpy())


def write_orders(experiment: Experiment, run: Path, cohorts: dict[int, list[int]], folder: Path) -> None:
    """``orders.npz``: the engine's order of each client's rows in each round, [epochs, n]."""
    sizes = Assignment.load(run / "partition.parquet").sizes()
    local = experiment.local
    assert local.batch_size != "full" and isinstance(local.epochs, int)  # there is an order of whole passes
    drawn: dict[str, np.ndarray] = {}
    for number, cohort in cohorts.items():
        for client in cohort:
            rng = seeds.generator(experiment.seed, "batches", number, client)
            passes = islice(orders(int(sizes[client]), local.batch_size, local.last_batch, rng), local.epochs)
            drawn[f"{number}/{client}"] = np.stack([torch.cat(batches).numpy() for batches in passes])
    np.savez(folder / "orders.npz", **drawn)  # pyright: ignore[reportArgumentType]


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower and the upper one; both are a single value itself."""
    if len(values) == 1:
        return [values[0]] * 2
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


def facts() -> dict[str, Any]:
    """Versions and the machine; nothing that names it."""
    return {
        "versions": {
            "fedskew": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "ray", "numpy") if find_spec(name)},
        },
        "machine": {
            "cpu": cpu_name(),
            "cores": cores(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    }


def save(name: str, results: dict[str, Any], folder: Path) -> None:
    """``<folder>/<name>.json``, with the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**results, **facts()}, indent=2) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


def load(name: str, folder: Path) -> dict[str, Any]:
    """What :func:`save` has written; empty if it has not."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def verdict(limits: Iterable[tuple[str, bool]]) -> int:
    """Print each limit and whether it was met; the exit code."""
    missed = 0
    for text, met in limits:
        print(f"{'met   ' if met else 'MISSED'}  {text}")
        missed += not met
    return 1 if missed else 0
