"""FedRep (Collins et al. 2021, arXiv:2102.07078): its table of methods by (users, classes of a user).

Profiles: ``paper`` is the setting of the released scripts: 100 rounds of a tenth of the users, batches of 10, SGD
with 0.01 and momentum 0.5, 10 epochs of the head and then 1 of the body (5 for CIFAR-100), and for the methods that
train all at once 1 epoch. For (1000, 2) the scripts have 5 epochs of the body and 5 of FedAvg, here as elsewhere 1.
``laptop`` has 50 rounds on the embedded images with fully connected layers.

The scripts' accuracy is the mean of the last 10 rounds. After them every user trains the head for 10 epochs more, and
so does it here for all methods, single models among them: ``fine_tuned_accuracy``.

The paper's figures are not at hand, so none stands beside ours. Its FEMNIST and Sent140 are not among the data sets.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.analysis.claims import Claim, PaperTable
from engine.experiment import Experiment
from engine.sweeps.definition import Sweep

PAPER = "Collins et al. 2021, table 1"
FEDREP = {"name": "fedrep", "head_epochs": 10, "body_epochs": 1}
FEDPER = {"name": "fedper"}
FEDAVG = {"name": "fedavg"}
OTHERS = [{"name": "fedprox", "mu": 0.01}, {"name": "scaffold"}, {"name": "ditto", "lam": 0.1}]
LAST = "personal_last10_accuracy"
TUNED = "fine_tuned_accuracy"


def base(profile: str, data: str) -> Experiment:
    """The experiment that both tables vary."""
    paper = profile == "paper"
    return Experiment(
        name="fedrep",
        rounds=100 if paper else 50,
        data={"name": data if paper else "fashion_mnist_sample"},
        partition=_users(100, 2),
        model={"name": "fedrep_cifar" if paper else "mlp"},
        algorithm=FEDREP,
        local={"epochs": 1, "batch_size": 10, "lr": 0.01, "momentum": 0.5},
        participation={"fraction": 0.1},
        evaluation={"personal_every": 1, "fine_tune_epochs": 10},
    )


def table1(profile: str) -> Sweep:
    """FedRep and others by (users, classes of a user), on CIFAR-10; on a laptop on the embedded images."""
    settings = [_users(100, 2), _users(100, 5), _users(1000, 2)]
    return _table(profile, "cifar10", settings if profile == "paper" else settings[:2], FEDREP)


def table1_cifar100(profile: str) -> Sweep:
    """The same on CIFAR-100, with 5 epochs of the body; on a laptop with 3 and 8 classes of the embedded images."""
    settings = [_users(100, 5), _users(100, 20)] if profile == "paper" else [_users(100, 3), _users(100, 8)]
    return _table(profile, "cifar100", settings, {**FEDREP, "body_epochs": 5})


def _users(clients: int, classes: int) -> dict[str, Any]:
    return {"name": "classes_per_client", "clients": clients, "classes": classes}


def _table(profile: str, data: str, settings: list[dict[str, Any]], fedrep: dict[str, Any]) -> Sweep:
    few = min(settings, key=lambda setting: setting["classes"])
    return Sweep(
        base=base(profile, data),
        space={
            "algorithm": tune.grid_search([fedrep, FEDPER, FEDAVG, *(OTHERS if profile == "paper" else [])]),
            "partition": tune.grid_search(settings),
        },
        seeds=(0, 1, 2),
        metric=LAST,
        tables=(
            PaperTable("Accuracy of all users, mean of the last 10 rounds", ("algorithm",), ("partition",), LAST),
            PaperTable("Accuracy of all users after 10 more epochs at the head", ("algorithm",), ("partition",), TUNED),
        ),
        claims=(
            Claim(
                text="FedRep is better than a single model by FedAvg whose head every user fine-tunes.",
                source=PAPER,
                better={"algorithm": fedrep},
                worse={"algorithm": FEDAVG},
                metric=TUNED,
            ),
            Claim(
                text="FedRep is at or above FedPer, by more than minus half a point.",
                source=PAPER,
                better={"algorithm": fedrep},
                worse={"algorithm": FEDPER},
                metric=LAST,
                margin=-0.005,
            ),
            Claim(
                text="With few classes each, users do better with heads of their own than with one model for all.",
                source=PAPER,
                better={"algorithm": FEDPER},
                worse={"algorithm": FEDAVG},
                where={"partition": few},
                metric=LAST,
            ),
        ),
    )
