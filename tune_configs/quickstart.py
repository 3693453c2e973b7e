"""Experiments to start from: ``fedskew run NAME``."""

from __future__ import annotations

from engine.experiment import Experiment


def quickstart() -> Experiment:
    """FedAvg on the embedded Fashion-MNIST images, 20 clients with skewed labels, half a minute on two cores."""
    return Experiment(
        name="quickstart",
        rounds=40,
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.3},
        model={"name": "mlp"},
        local={"epochs": 2, "batch_size": 32, "lr": 0.1},
        participation={"count": 8},
        evaluation={"local_every": 5},
        execution={"actors": 2},
    )


def fashion_mnist() -> Experiment:
    """The whole of Fashion-MNIST: 100 clients, Dirichlet(0.1), 10 per round, 30 rounds."""
    return Experiment(
        name="fashion_mnist",
        rounds=30,
        data={"name": "fashion_mnist"},
        partition={"name": "dirichlet", "clients": 100, "alpha": 0.1},
        model={"name": "cnn"},
        local={"epochs": 1, "batch_size": 32, "lr": 0.05},
        participation={"count": 10},
    )


def cifar10() -> Experiment:
    """The base setting of CBFL's tables: ResNet20 on CIFAR-10, 100 clients, Dirichlet(0.1), 1,000 rounds."""
    return Experiment(
        name="cifar10",
        rounds=1000,
        data={"name": "cifar10"},
        partition={"name": "dirichlet", "clients": 100, "alpha": 0.1},
        model={"name": "resnet20"},
        local={
            "epochs": 5,
            "batch_size": 50,
            "lr": 0.1,
            "lr_decay": 0.996,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "augment": "crop_flip",
        },
        participation={"fraction": 0.1},
        evaluation={"every": 10},
    )
