"""Experiments to start from: ``fedskew run NAME``."""

from __future__ import annotations

from typing import Any

from engine.experiment import Experiment

SMALL_CBFL: dict[str, Any] = {  # a generator that two cores train in half a minute
    "name": "cbfl",
    "refresh": 5,
    # Against a teacher of 78 % accuracy 51 % of the images are taken for the class asked for after 300 steps with
    # gamma = 10 (24 % after 50), 92 % with 1, and chance is 10; both chosen by that share, and not by accuracy.
    "gamma": 1.0,
    "gen_steps": 400,
    "gen_batch": 64,
    "gen_width": 32,
    "fake_batch": 50,
}


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
        participation={"count": 10},  # t = K c; a fraction would be of the clients that hold data, fewer at alpha 0.01
        evaluation={"every": 10},
    )


def small_cbhma() -> Experiment:
    """CBHMA in small: five devices of five architectures answer, one student learns; one device alone knows class 1.

    The embedded images, a minute on two cores.
    """
    return Experiment(
        name="cbhma",
        partition={"name": "class_sets", "sets": "IS-1", "per_class": 160, "public_per_class": 200},
        client_models=[{"name": name} for name in ("mlp", "lenet", "cnn3", "resnet8", "resnet20")],
        model={"name": "resnet8"},
        local={"batch_size": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
        evaluation={"every": 0, "client_loss": False},
        stages=[
            {"name": "teachers", "rounds": 1, "algorithm": {"name": "local"}, "local": {"epochs": 10}},
            {"name": "answers", "rounds": 0, "needs": ["teachers"], "algorithm": {"name": "answers"}},
            {"name": "distil", "rounds": 0, "needs": ["answers"], "algorithm": {"name": "cbhma"}},
        ],
        execution={"actors": 2},
    )


def small_cbfl() -> Experiment:
    """CBFL in small: ResNet8 on the embedded images, 28 rounds of FedAvg, then 12 with generated images; a few minutes.

    The shares of the paper's setting are kept: seven rounds of ten are warm-up, and the learning rate falls as far.
    """
    return Experiment(
        name="cbfl",
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.1},
        model={"name": "resnet8"},
        algorithm=SMALL_CBFL,
        local={
            "epochs": 2,
            "batch_size": 50,
            "lr": 0.1,
            "lr_decay": 0.996**25,
            "momentum": 0.9,
            "weight_decay": 1e-4,
        },
        participation={"count": 4},
        evaluation={"local_every": 4},
        stages=[
            {"name": "warmup", "rounds": 28, "algorithm": {"name": "fedavg"}},
            {"name": "cbfl", "rounds": 12, "needs": ["warmup"]},
        ],
        execution={"actors": 2},
    )


def scaling() -> Experiment:
    """The run of 'fedskew scale': 32 of 200 clients with 50 embedded images each, rounds of a fifth of a second."""
    return Experiment(
        name="scaling",
        rounds=20,
        partition={"name": "iid", "clients": 200},
        model={"name": "moon_cnn"},
        local={"epochs": 1, "batch_size": 25, "lr": 0.05},
        participation={"count": 32},
    )
