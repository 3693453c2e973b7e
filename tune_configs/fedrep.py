"""FedRep (Collins et al. 2021, arXiv:2102.07078): its table of methods by (users, classes of a user).

Profiles: ``paper`` is the setting of the released scripts, each run five times: 100 rounds of a tenth of the users,
batches of 10, SGD with 0.01 and momentum 0.5. ``--local_ep`` counts both of FedRep's parts and ``--local_rep_ep`` the
body's: 11 and 1 for CIFAR-10 with (100, 2), 15 and 5 for (100, 5), (1000, 2) and CIFAR-100, so that heads have 10
epochs everywhere. FedAvg has 1 epoch, and 5 with 1000 users; there is no script of the other methods that train all at
once, which have as many here. FedProx's mu of 0.1 and Ditto's lambda of 1 are the code's. ``laptop`` has 50 rounds on
the embedded images with fully connected layers, and 1 epoch of the body for two classes of a user, else 5.

The scripts' accuracy is the mean of the last 10 rounds. After them every user trains the head for 10 epochs more, and
so does it here for all methods, single models among them: ``fine_tuned_accuracy``. Every method is scored among a
user's own classes, the single models too, where the code scores all methods among all classes: what a claim compares is
scored alike, and FedRep's heads never see another class here.

The paper's figures are not at hand, so none stands beside ours. Its FEMNIST and Sent140 are not among the data sets.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep

PAPER = "Collins et al. 2021, table 1"
FEDREP = {"name": "fedrep", "head_epochs": 10}
FEDPER = {"name": "fedper"}
FEDAVG = {"name": "fedavg"}
OTHERS = [{"name": "fedprox", "mu": 0.1}, {"name": "scaffold"}, {"name": "ditto", "lam": 1.0}]
NAME = "algorithm.name"
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
        evaluation={"personal_every": 1, "fine_tune_epochs": 10, "own_classes": True},
    )


def table1(profile: str) -> Sweep:
    """FedRep and others by (users, classes of a user), on CIFAR-10; on a laptop on the embedded images."""
    settings = [_users(100, 2), _users(100, 5), _users(1000, 2)]
    return _table(profile, "cifar10", settings if profile == "paper" else settings[:2])


def table1_cifar100(profile: str) -> Sweep:
    """The same on CIFAR-100, with 5 epochs of the body; on a laptop with 3 and 8 classes of the embedded images."""
    settings = [_users(100, 5), _users(100, 20)] if profile == "paper" else [_users(100, 3), _users(100, 8)]
    return _table(profile, "cifar100", settings)


def _users(clients: int, classes: int) -> dict[str, Any]:
    return {"name": "classes_per_client", "clients": clients, "classes": classes}


def _with_body_epochs(spec: Any) -> dict[str, Any]:
    """Return the method with the epochs that the released script of the users' setting has for bodies."""
    name, users = spec.config[NAME], spec.config["partition"]
    if name == "fedrep":
        return {**FEDREP, "body_epochs": 1 if users == _users(100, 2) else 5}
    return next(method for method in (FEDPER, FEDAVG, *OTHERS) if method["name"] == name)


def _epochs(spec: Any) -> int:
    """Return the epochs of the methods that train all at once, which FedRep does not read."""
    return 5 if spec.config["partition"]["clients"] == 1000 else 1


def _table(profile: str, data: str, settings: list[dict[str, Any]]) -> Sweep:
    few = min(settings, key=lambda setting: setting["classes"])
    methods = [FEDREP, FEDPER, FEDAVG, *(OTHERS if profile == "paper" else [])]
    return Sweep(
        base=base(profile, data),
        space={
            NAME: tune.grid_search([method["name"] for method in methods]),
            "partition": tune.grid_search(settings),
            "algorithm": tune.sample_from(_with_body_epochs),
            "local.epochs": tune.sample_from(_epochs),
        },
        seeds=tuple(range(5)),
        metric=LAST,
        tables=(
            PaperTable("Accuracy of all users, mean of the last 10 rounds", (NAME,), ("partition",), LAST),
            PaperTable("Accuracy of all users after 10 more epochs at the head", (NAME,), ("partition",), TUNED),
        ),
        claims=(
            Claim(
                text="FedRep is better than a single model by FedAvg whose head every user fine-tunes.",
                source=PAPER,
                better={NAME: "fedrep"},
                worse={NAME: "fedavg"},
                metric=TUNED,
            ),
            Claim(
                text="FedRep is at or above FedPer, by more than minus half a point.",
                source=PAPER,
                better={NAME: "fedrep"},
                worse={NAME: "fedper"},
                metric=LAST,
                margin=-0.005,
            ),
            Claim(
                text="With few classes each, users do better with heads of their own than with one model for all.",
                source=PAPER,
                better={NAME: "fedper"},
                worse={NAME: "fedavg"},
                where={"partition": few},
                metric=LAST,
            ),
        ),
    )
