"""Sweeps of seconds that are disturbed: four to six trials each, as a user's own file, FILE.py:function."""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.experiment import Experiment
from engine.sweeps.definition import Asha, Optuna, Pbt, Sweep

BASE: dict[str, Any] = {
    "data": {"name": "fashion_mnist_sample", "train_samples": 300, "test_samples": 60},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "participation": {"count": 3},
    "checkpoint": {"every": 1},
    "execution": {"device": "cpu"},
}
WORKLOADS = ("grid", "asha", "pbt", "optuna")


def grid(profile: str) -> Sweep:
    """Two warm-ups of which the longer one goes on from the shorter, and a method with clients' states after each."""
    stages = [
        {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": 3},
        {"name": "serve", "needs": ["warmup"], "algorithm": {"name": "scaffold"}, "rounds": 3},
    ]
    return Sweep(
        base=Experiment(**BASE, name="grid", stages=stages),  # type: ignore[arg-type]
        space={"R_w": tune.grid_search([3, 6]), "stages.serve.local.lr": tune.grid_search([0.05, 0.02])},
    )


def asha(profile: str) -> Sweep:
    """Learning rates, most of which are hopeless."""
    return Sweep(
        base=Experiment(**BASE, name="asha", rounds=8, algorithm={"name": "scaffold"}),  # type: ignore[arg-type]
        space={"local.lr": tune.grid_search([0.02, 1e-5, 0.1, 1e-4, 0.05])},
        scheduler=Asha(grace=2, factor=2),
        step=2,
        metric="accuracy",
    )


def pbt(profile: str) -> Sweep:
    """A population whose worse half copies its better half."""
    return Sweep(
        base=Experiment(**BASE, name="pbt", rounds=6, algorithm={"name": "scaffold"}),  # type: ignore[arg-type]
        space={},
        samples=4,
        scheduler=Pbt(every=2, mutations={"local.lr": tune.loguniform(1e-4, 0.2)}, quantile=0.5, resample=0.5),
        step=2,
        metric="accuracy",
    )


def optuna(profile: str) -> Sweep:
    """Settings that a searcher proposes."""
    return Sweep(
        base=Experiment(**BASE, name="optuna", rounds=4, algorithm={"name": "fedprox"}),  # type: ignore[arg-type]
        space={"local.lr": tune.loguniform(1e-4, 0.5), "mu": tune.choice([0.0, 0.1, 1.0])},
        samples=5,
        search=Optuna(random=3),
        metric="accuracy",
    )
