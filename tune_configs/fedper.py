"""FedPer (Arivazhagan et al. 2019, arXiv:1912.00818) by the classes of a client and by the number of personal layers.

Profiles: ``paper`` is the setting of Flower's reproduction: CIFAR-10, 10 clients, all of them in each of 50 rounds, 4
local epochs, batches of 128, SGD with 0.01; its networks are ResNet-34 and MobileNet, and the nearest that are here
are ``resnet18`` and ``mobilenetv2``. ``laptop`` is the same on the embedded images with fully connected layers, and
0.05.

All clients are measured on their own test rows, FedAvg's with the global model.
"""

from __future__ import annotations

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep

FEDPER = {"name": "fedper"}
FEDAVG = {"name": "fedavg"}
CLASSES = "partition.classes"
METRIC = "personal_last10_accuracy"
TITLE = "Accuracy of all clients on their own test rows"


def base(profile: str) -> Experiment:
    """The experiment that both sweeps vary."""
    paper = profile == "paper"
    return Experiment(
        name="fedper",
        rounds=50,
        data={"name": "cifar10" if paper else "fashion_mnist_sample"},
        partition={"name": "classes_per_client", "clients": 10, "classes": 4},
        model={"name": "resnet18"} if paper else {"name": "mlp", "hidden": [100, 100, 100, 100]},
        algorithm=FEDPER,
        local={"epochs": 4, "batch_size": 128, "lr": 0.01 if paper else 0.05},
        evaluation={"personal_every": 1},
    )


def heterogeneity(profile: str) -> Sweep:
    """FedPer and FedAvg by the number of classes of a client."""
    networks = ["resnet18", "mobilenetv2"] if profile == "paper" else ["mlp", "moon_cnn"]
    return Sweep(
        base=base(profile),
        space={
            "model.name": tune.grid_search(networks),
            "algorithm": tune.grid_search([FEDPER, FEDAVG]),
            CLASSES: tune.grid_search([4, 8, 10]),
        },
        seeds=(0, 1, 2),
        metric=METRIC,
        tables=(PaperTable(TITLE, ("algorithm",), (CLASSES, "model.name"), METRIC),),
        claims=(
            Claim(
                text="With four classes each, clients do better with a head of their own than with the global one.",
                source="Arivazhagan et al. 2019, figure of CIFAR-10",
                better={"algorithm": FEDPER},
                worse={"algorithm": FEDAVG},
                where={CLASSES: 4},
                metric=METRIC,
            ),
            Claim(
                text="Heads of their own do better the fewer classes they tell apart.",
                source="ours",
                better={CLASSES: 4},
                worse={CLASSES: 10},
                where={"algorithm": FEDPER},
                metric=METRIC,
            ),
        ),
    )


def heads(profile: str) -> Sweep:
    """FedPer by the number of personal layers, counted from the head."""
    return Sweep(
        base=base(profile),
        space={"layers": tune.grid_search([1, 2, 3, 4]), CLASSES: tune.grid_search([4, 8, 10])},
        seeds=(0, 1, 2),
        metric=METRIC,
        tables=(
            PaperTable(TITLE, ("layers",), (CLASSES,), METRIC),
            PaperTable("Numbers sent up in all", ("layers",), (CLASSES,), "floats_up"),
        ),
        claims=(
            Claim(
                text="It matters little how many of the last layers are personal: four are within two points of one.",
                source="ours",
                better={"layers": 4},
                worse={"layers": 1},
                metric=METRIC,
                kind="equal",
                margin=0.02,
            ),
        ),
    )
