"""FedBABU (Oh, Kim and Yun 2022, arXiv:2106.06042): methods by classes of a client and by participation, fine-tuned.

Profiles: ``paper`` is the setting of the released scripts: CIFAR-100, 100 clients, SGD with 0.1 and momentum 0.9,
batches of 50, 320 epochs in all, in one of three ways: 320 rounds of 1 epoch, 80 of 4, 32 of 10. The learning rate
falls to a tenth after half of the rounds and again after three quarters. Their network is MobileNet; ``mobilenetv2``
is the nearest that is here. ``laptop`` is 40 epochs on the embedded images with fully connected layers, batches of
10, 0.01, and 2, 5 or 10 classes. FedRep's heads have as many epochs as the others' models, and then its body one, with
the momentum of 0.5 that the released code has where a script does not say, as FedRep's do not.

A schedule names rounds, so each of the three ways is a sweep of its own.

At the end every client fine-tunes the whole model for 5 epochs at 0.001, the code's last rate, FedRep with its own
momentum. It is scored among its own classes, whatever the method, and the mean is over clients, each with the same
weight: ``fine_tuned_client_accuracy``. Before that it is ``personal_client_accuracy``: of FedAvg and FedBABU, whose
head nobody trains, the global model on the client's test rows.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep

PAPER = "Oh et al. 2022, tables of personalised accuracy"
FEDBABU = {"name": "fedbabu"}
FEDAVG = {"name": "fedavg"}
CLASSES = "partition.classes"
BEFORE, AFTER = "personal_client_accuracy", "fine_tuned_client_accuracy"


def base(profile: str, epochs: int) -> Experiment:
    """Return the experiment with the rounds that all its epochs come to by ``epochs`` local ones in each."""
    paper = profile == "paper"
    rounds, lr = (320 if paper else 40) // epochs, 0.1 if paper else 0.01
    return Experiment(
        name="fedbabu",
        rounds=rounds,
        data={"name": "cifar100" if paper else "fashion_mnist_sample"},
        partition={"name": "classes_per_client", "clients": 100},
        model={"name": "mobilenetv2" if paper else "mlp"},
        algorithm=FEDBABU,
        local={"epochs": epochs, "batch_size": 50 if paper else 10, "lr": lr, "momentum": 0.9},
        schedule=[
            {"round": rounds // 2 + 1, "set": {"local.lr": lr / 10}},
            {"round": rounds * 3 // 4 + 1, "set": {"local.lr": lr / 100}},
        ],
        participation={"fraction": 0.1},
        evaluation={
            "every": 10,
            "personal_every": rounds,  # the end alone
            "fine_tune_epochs": 5,
            "fine_tune_part": "all",
            "fine_tune_lr": 0.001,
            "own_classes": True,
        },
    )


def grid_1_epoch(profile: str) -> Sweep:
    """FedBABU and others after fine-tuning: most rounds, one local epoch in each."""
    return _grid(profile, 1)


def grid_4_epochs(profile: str) -> Sweep:
    """FedBABU and others after fine-tuning: a quarter of the rounds, four local epochs in each."""
    return _grid(profile, 4)


def grid_10_epochs(profile: str) -> Sweep:
    """FedBABU and others after fine-tuning: a tenth of the rounds, ten local epochs in each."""
    return _grid(profile, 10)


def _momentum(spec: Any) -> float:
    return 0.5 if spec.config["algorithm"]["name"] == "fedrep" else 0.9


def _grid(profile: str, epochs: int) -> Sweep:
    classes = [10, 50, 100] if profile == "paper" else [2, 5, 10]
    fedrep = {"name": "fedrep", "head_epochs": epochs, "body_epochs": 1}
    return Sweep(
        base=base(profile, epochs),
        space={
            "algorithm": tune.grid_search([FEDBABU, FEDAVG, {"name": "fedper"}, fedrep]),
            CLASSES: tune.grid_search(classes),
            "C": tune.grid_search([0.1, 1.0]),
            "local.momentum": tune.sample_from(_momentum),
        },
        seeds=(0, 1, 2),
        metric=BEFORE,
        tables=(
            PaperTable("Accuracy before fine-tuning, mean over clients", ("algorithm",), ("C", CLASSES), BEFORE),
            PaperTable("Accuracy after fine-tuning, mean over clients", ("algorithm",), ("C", CLASSES), AFTER),
        ),
        claims=(
            Claim(
                text="Fine-tuned, FedBABU is better than FedAvg on the mean of all settings.",
                source=PAPER,
                better={"algorithm": FEDBABU},
                worse={"algorithm": FEDAVG},
                metric=AFTER,
                every=False,
            ),
            Claim(
                text="Fine-tuned, FedBABU is better than FedAvg where a client has few classes.",
                source=PAPER,
                better={"algorithm": FEDBABU},
                worse={"algorithm": FEDAVG},
                where={CLASSES: classes[0]},
                metric=AFTER,
            ),
            Claim(
                text="Fine-tuned, FedBABU does better the fewer classes a client has.",
                source=PAPER,
                better={CLASSES: classes[0]},
                worse={CLASSES: classes[-1]},
                where={"algorithm": FEDBABU},
                metric=AFTER,
            ),
        ),
    )
