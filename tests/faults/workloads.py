"""What is disturbed: runs of a few seconds, each of which uses the engine in another way."""

from __future__ import annotations

from typing import Any

from engine.experiment import Experiment

BASE: dict[str, Any] = {
    "data": {"name": "fashion_mnist_sample", "train_samples": 1000, "test_samples": 200},
    "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 2, "batch_size": 16, "lr": 0.05},
    "participation": {"count": 8},
    "evaluation": {"every": 4},
    "checkpoint": {"every": 3},
    "execution": {"device": "cpu", "block": 2},
}
WORKLOADS: dict[str, Experiment] = {
    "fedavg": Experiment(**BASE, name="fedavg", rounds=45, algorithm={"name": "fedavg"}),
    # Clients' states: in the object store, or in files.
    "scaffold": Experiment(**BASE, name="scaffold", rounds=30, algorithm={"name": "scaffold"}),
    "scaffold on disk": Experiment(
        **{**BASE, "execution": {**BASE["execution"], "state_store": "disk", "state_cache_mb": 0}},
        name="scaffold-disk",
        rounds=30,
        algorithm={"name": "scaffold"},
    ),
    # Two stages, the second of which asks every client and has no rounds.
    "ccvr": Experiment(
        **BASE,
        name="ccvr",
        stages=[
            {"name": "train", "rounds": 30, "algorithm": {"name": "fedavg"}},
            {"name": "calibrate", "rounds": 0, "needs": ["train"], "algorithm": {"name": "ccvr"}},
        ],
    ),
    # Heads of clients' own, each measured on its own test rows.
    "fedper": Experiment(**BASE, name="fedper", rounds=30, algorithm={"name": "fedper"}),
}
