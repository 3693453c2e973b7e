"""FedProx over a grid as one would write it by hand: function trainables of Ray Tune over a loop in plain PyTorch.

    python -m benchmarks.plain_tune experiment.yaml folder      # as benchmarks.sweep_share starts it

24 trials of mu, alpha and seed on the experiment's images, clients, cohort, local work and rounds; one core a trial, an
evaluation in every round. What a trial shares with others (images) goes through Ray's store. Shares no code with the
engine but the reading of the experiment and its images.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.nn.functional as F
from ray import tune

from benchmarks.networks import network
from engine.experiment import Experiment

GRID = {"mu": [0.0, 0.001, 0.1, 1.0], "alpha": [0.05, 0.5], "seed": [0, 1, 2]}


def dirichlet(labels: torch.Tensor, clients: int, alpha: float, seed: int) -> list[torch.Tensor]:
    """Rows of each client that has any: each class is divided by a draw of its own."""
    rng, parts = np.random.default_rng(seed), [[] for _ in range(clients)]
    for label in range(int(labels.max()) + 1):
        rows = rng.permutation(np.flatnonzero(labels.numpy() == label))
        cuts = (np.cumsum(rng.dirichlet([alpha] * clients)) * len(rows)).astype(int)[:-1]
        for part, chunk in zip(parts, np.split(rows, cuts), strict=True):
            part.append(chunk)
    joined = [torch.from_numpy(np.concatenate(part)) for part in parts]
    return [rows for rows in joined if len(rows)]


def trial(config: dict[str, Any], images: list[np.ndarray], setting: dict[str, Any]) -> None:
    """One point of the grid; reports the accuracy after each round."""
    torch.set_num_threads(1)
    x, y, test_x, test_y = (torch.from_numpy(np.array(one)) for one in images)
    clients = dirichlet(y, setting["clients"], config["alpha"], config["seed"])
    torch.manual_seed(config["seed"])
    model = network(setting["model"], x.shape[1], x.shape[2], int(y.max()) + 1)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    rng = np.random.default_rng(config["seed"])
    for _ in range(setting["rounds"]):
        cohort = rng.choice(len(clients), min(setting["cohort"], len(clients)), replace=False)
        mean, total = [torch.zeros_like(one) for one in weights], sum(len(clients[k]) for k in cohort)
        for rows in (clients[k] for k in cohort):
            _load(model, weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=setting["lr"])
            for _ in range(setting["epochs"]):
                for batch in rows[torch.from_numpy(rng.permutation(len(rows)))].split(setting["batch_size"]):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[batch]), y[batch]).backward()
                    if config["mu"]:
                        for parameter, start in zip(model.parameters(), weights, strict=True):
                            assert parameter.grad is not None
                            parameter.grad.add_(parameter.detach() - start, alpha=config["mu"])
                    optimizer.step()
            for one, parameter in zip(mean, model.parameters(), strict=True):
                one.add_(parameter.detach(), alpha=len(rows) / total)
        weights = mean
        _load(model, weights)
        with torch.no_grad():
            tune.report({"accuracy": float((model(test_x).argmax(1) == test_y).float().mean())})


@torch.no_grad()
def _load(model: torch.nn.Module, weights: list[torch.Tensor]) -> None:
    for parameter, one in zip(model.parameters(), weights, strict=True):
        parameter.copy_(one)


def normalised(experiment: Experiment) -> list[np.ndarray]:
    """Images float32 and labels, of training and of test."""
    data, found = experiment.data.load(), []
    for split in (data.train, data.test):
        mean, std = (np.reshape(one, (-1, 1, 1)) for one in (data.mean, data.std))
        found += [((split.images / 255 - mean) / std).astype(np.float32), split.labels]
    return found


def main() -> None:
    experiment, folder = Experiment.from_yaml(Path(sys.argv[1])), Path(sys.argv[2])
    local = experiment.local
    setting = {
        "clients": experiment.partition.clients,
        "cohort": experiment.participation.count,
        "model": experiment.to_mapping()["model"]["name"],
        "rounds": experiment.rounds,
        "epochs": local.epochs,
        "batch_size": local.batch_size,
        "lr": local.lr,
    }
    ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    trainable = tune.with_parameters(trial, images=normalised(experiment), setting=setting)
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={name: tune.grid_search(values) for name, values in GRID.items()},
        run_config=tune.RunConfig(verbose=0, storage_path=str(folder.absolute())),
    ).fit()
    assert not results.errors
    print(f"mean accuracy {np.mean([result.metrics['accuracy'] for result in results if result.metrics]):.4f}")


if __name__ == "__main__":
    main()
