"""Client drift under label skew: FedProx's mu, SCAFFOLD's options, participation against local work, warm-up rounds.

Profiles: ``paper`` is the setting of CBFL's tables (ResNet20, CIFAR-10, 100 clients, 1,000 rounds; Li et al., table 2);
``laptop`` has the same axes on the embedded images, in minutes on two cores.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.analysis.claims import Claim, Layout, Published
from engine.experiment import Experiment
from engine.sweeps.definition import Sweep
from tune_configs.quickstart import cifar10, quickstart

PROX = "Li et al. 2020, Federated optimization in heterogeneous networks"
CBFL = "CBFL, table 2 (single runs)"
SCAFFOLD = "Karimireddy et al. 2020, SCAFFOLD"
MCMAHAN = "McMahan et al. 2017, table 2"


def base(profile: str, **changes: object) -> Experiment:
    """The experiment that all of these vary; ``changes`` are dotted keys with ``__`` for the dot."""
    experiment = cifar10() if profile == "paper" else quickstart()
    rounds = {} if profile == "paper" else {"rounds": 20, "evaluation.local_every": 0}
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
            Layout(
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
                source=f"{PROX}, figure 2",
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
        tables=(Layout("Accuracy by option and momentum", rows=("option",), columns=("local.momentum",)),),
        claims=(
            Claim(
                text="Option II, which costs no extra pass over the data, is within two points of option I.",
                source=f"{SCAFFOLD}, section 4",
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
            Layout("Rounds to the target accuracy", rows=("E",), columns=("C",), metric="rounds_to_target"),
            Layout("Accuracy after the last round", rows=("E",), columns=("C",)),
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
            "stages.serve.rounds": tune.sample_from(_Rest(total)),
        },
        seeds=(0, 1, 2) if profile == "paper" else (0,),
        tables=(Layout("Accuracy by warm-up rounds", rows=("mu",), columns=("R_w",)),),
    )


class _Rest:
    """The rounds that a warm-up leaves."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, spec: Any) -> int:
        return self.total - spec.config["R_w"]
