"""Client drift under label skew: FedProx's mu, SCAFFOLD's options, participation and local work, also an unequal one.

Profiles: ``paper`` is the setting of CBFL's tables (ResNet20, CIFAR-10, 100 clients, 1,000 rounds; Li et al., table 2);
``laptop`` has the same axes on the embedded images, in minutes on two cores.

Methods side by side are on the board (``board.py``), and in FedSER's tables (``fedser.py``).
"""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable, Published
from engine.sweeps.definition import Sweep
from tune_configs.cbfl import AUTHORS_INIT
from tune_configs.quickstart import cifar10, quickstart
from tune_configs.warm_up import Rest

PROX = "Li et al. 2020, Federated optimization in heterogeneous networks"
CBFL = "CBFL, table 2 (single runs)"
KARIMIREDDY = "Karimireddy et al. 2020, SCAFFOLD"
MCMAHAN = "McMahan et al. 2017, table 2"
NOVA = "Wang et al. 2020, Tackling the objective inconsistency problem"
FEDAVG = {"name": "fedavg"}
FEDNOVA = {"name": "fednova"}


def base(profile: str, **changes: object) -> Experiment:
    """The experiment that all of these vary; ``changes`` are dotted keys with ``__`` for the dot."""
    paper = profile == "paper"
    experiment = cifar10().replace({"model.conv_init": AUTHORS_INIT}) if paper else quickstart()
    rounds = {} if paper else {"rounds": 20, "evaluation.local_every": 0}
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return experiment.replace({"name": "drift", **rounds, **dotted})


def fedprox_mu(profile: str) -> Sweep:
    """FedProx: the proximal term mu against label skew alpha."""
    paper = profile == "paper"
    alphas = [0.1, 0.05, 0.01] if paper else [0.05, 0.5]
    published = {0.1: (0.8413, 0.8415), 0.05: (0.7900, 0.7898), 0.01: (0.4121, 0.4105)}
    return Sweep(
        base=base(profile, algorithm__name="fedprox"),
        space={
            "mu": tune.grid_search([0.0, 0.001, 0.1, 1.0]),
            "alpha": tune.grid_search(alphas),
        },
        seeds=(0, 1, 2),
        target_accuracy=0.8 if paper else 0.75,
        tables=(
            PaperTable(
                title="Accuracy by label skew and proximal term",
                rows=("mu",),
                columns=("alpha",),
                metric="best_accuracy" if paper else "last10_accuracy",
                source=CBFL,
                published=tuple(
                    Published(
                        {"alpha": alpha, "mu": mu},
                        value,
                        same_setting=paper and alpha == 0.1,
                        note="" if alpha == 0.1 else "the paper's code partitions in another way below 0.1",
                    )
                    for alpha, values in published.items()
                    if alpha in alphas
                    for mu, value in zip((0.0, 0.001), values, strict=True)
                ),
            ),
        ),
        claims=(
            Claim(
                text="A proximal term of 0.001 changes accuracy by no more than one point.",
                source="CBFL, tables 1 and 2: FedProx against FedAvg",
                better={"mu": 0.001},
                worse={"mu": 0.0},
                kind="equal",
                margin=0.01,
            ),
            Claim(
                text="Under strong skew a proximal term of 1 is better than none.",
                source=f"{PROX}, figure 2",
                better={"mu": 1.0},
                worse={"mu": 0.0},
                where={"alpha": 0.05},
            ),
            Claim(
                text="Under strong skew a proximal term of 0.1 is better than none.",
                source="ours",
                better={"mu": 0.1},
                worse={"mu": 0.0},
                where={"alpha": 0.05},
            ),
        ),
    )


def scaffold_options(profile: str) -> Sweep:
    """SCAFFOLD: how control variates are formed (option I or II) against client momentum."""
    return Sweep(
        base=base(profile, algorithm__name="scaffold"),
        space={
            "option": tune.grid_search(["I", "II"]),
            "local.momentum": tune.grid_search([0.0, 0.5, 0.9]),
        },
        seeds=(0, 1, 2),
        target_accuracy=0.8 if profile == "paper" else 0.75,
        tables=(PaperTable("Accuracy by option and momentum", rows=("option",), columns=("local.momentum",)),),
        claims=(
            Claim(
                text="Option II, which costs no extra pass over the data, is within two points of option I.",
                source=f"{KARIMIREDDY}, section 4",
                better={"option": "II"},
                worse={"option": "I"},
                kind="equal",
                margin=0.02,
            ),
        ),
    )


def participation_epochs(profile: str) -> Sweep:
    """Rounds to a target accuracy by participation C and local epochs E."""
    return Sweep(
        base=base(profile),
        space={
            "C": tune.grid_search([0.1, 0.2, 0.5]),
            "E": tune.grid_search([1, 5]),
        },
        seeds=(0, 1, 2),
        target_accuracy=0.7,
        tables=(
            PaperTable("Rounds to the target accuracy", rows=("E",), columns=("C",), metric="rounds_to_target"),
            PaperTable("Accuracy after the last round", rows=("E",), columns=("C",)),
        ),
        claims=(
            Claim(
                text="Five local epochs need fewer rounds to the target than one.",
                source=MCMAHAN,
                better={"E": 5},
                worse={"E": 1},
                metric="rounds_to_target",
                larger_is_better=False,
            ),
        ),
    )


def warmup(profile: str) -> Sweep:
    """FedAvg for R_w rounds, then FedProx for the rest: trials share the rounds of the shorter warm-ups."""
    total = 1000 if profile == "paper" else 24
    warm = [100, 300, 500, 700, 900] if profile == "paper" else [6, 12, 18]
    stages = [
        {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": warm[0]},
        {"name": "serve", "needs": ["warmup"], "algorithm": {"name": "fedprox", "mu": 0.1}, "rounds": total - warm[0]},
    ]
    return Sweep(
        base=Experiment.from_mapping({**base(profile).to_mapping(), "stages": stages}),
        space={
            "R_w": tune.grid_search(warm),
            "mu": tune.grid_search([0.1, 1.0]),
            "stages.serve.rounds": tune.sample_from(Rest(total)),
        },
        seeds=(0, 1, 2),
        tables=(PaperTable("Accuracy by warm-up rounds", rows=("mu",), columns=("R_w",)),),
        claims=(
            Claim(
                text="It matters little when a weak proximal term sets in: no more than two points.",
                source="ours",
                better={"R_w": warm[-1]},
                worse={"R_w": warm[0]},
                where={"mu": 0.1},
                kind="equal",
                margin=0.02,
            ),
        ),
    )


# --- unequal local work -----------------------------------------------------------------------------------


def stragglers(profile: str) -> Sweep:
    """FedProx and FedAvg, each with the partial work of stragglers and without these, by their share.

    The ``paper`` profile is its MNIST: 1,000 clients of two classes each, of equal sizes here, logistic regression, 10
    clients a round, 20 epochs.
    """
    paper, prox = profile == "paper", {"name": "fedprox", "mu": 1.0}
    mnist: dict[str, Any] = {
        "data": {"name": "mnist"},
        "partition": {"name": "classes_per_client", "clients": 1000, "classes": 2},
        "model": {"name": "logistic"},
        "local.batch_size": 10,
        "local.lr": 0.03,
        "rounds": 200,
    }
    setting = mnist if paper else {"rounds": 20, "partition.alpha": 0.1}
    changes = {**setting, "participation.count": 10, "local.epochs": 20 if paper else 10, "evaluation.local_every": 0}
    return Sweep(
        base=quickstart().replace({"name": "stragglers", **changes}),
        space={
            "algorithm": tune.grid_search([FEDAVG, prox]),
            "work.cut": tune.grid_search(["drop", "partial"]),
            "work.stragglers": tune.grid_search([0.5, 0.9]),
        },
        seeds=(0, 1, 2),
        tables=(PaperTable("Accuracy by what becomes of stragglers", ("algorithm", "work.cut"), ("work.stragglers",)),),
        claims=(
            Claim(
                text="With 90 % stragglers FedProx with their partial work is better than FedAvg that drops them.",
                source=f"{PROX}, figure 1",
                better={"algorithm": prox, "work.cut": "partial"},
                worse={"algorithm": FEDAVG, "work.cut": "drop"},
                where={"work.stragglers": 0.9},
            ),
            Claim(
                text="Their partial work alone, without a proximal term, is better than to drop them.",
                source=f"{PROX}, figure 1, mu = 0",
                better={"work.cut": "partial"},
                worse={"work.cut": "drop"},
                where={"algorithm": FEDAVG, "work.stragglers": 0.9},
            ),
        ),
    )


def unequal_epochs(profile: str) -> Sweep:
    """FedNova and FedAvg where each of 16 clients has 2 to 5 epochs, drawn once or in every round.

    The ``paper`` profile has its data, split, optimizer and epochs; its network is VGG-11, here ResNet20.
    """
    paper = {"local__batch_size": 32, "local__lr_decay": 1.0, "rounds": 100} if profile == "paper" else {}
    everybody = {"partition__clients": 16, "participation__count": None, "participation__fraction": 1.0}
    local = {"local__lr": 0.02, "local__momentum": 0.9, "partition__alpha": 0.1}
    return Sweep(
        base=base(profile, work__low=2, work__high=5, **everybody, **local, **paper),
        space={"algorithm": tune.grid_search([FEDAVG, FEDNOVA]), "work.drawn": tune.grid_search(["run", "round"])},
        seeds=(0, 1, 2),
        tables=(PaperTable("Accuracy by when epochs are drawn", ("algorithm",), ("work.drawn",)),),
        claims=tuple(
            Claim(
                text=f"FedNova is better than FedAvg where each client has 2 to 5 epochs, drawn {when}.",
                source=f"{NOVA}, table 2",
                better={"algorithm": FEDNOVA},
                worse={"algorithm": FEDAVG},
                where={"work.drawn": drawn},
            )
            for drawn, when in (("run", "once"), ("round", "in every round"))
        ),
    )
