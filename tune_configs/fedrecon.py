"""FedRecon (Singhal et al. 2021, arXiv:2102.03448) on images: whether heads are kept, rows are split, and how long.

The paper's data, MovieLens and Stack Overflow, are no images; what is varied here are the options of its method and
of the other readings of it. Profiles: ``paper`` is CIFAR-10 with FedRep's network, 100 clients of 2 classes, a tenth
of them in each of 100 rounds; ``laptop`` is 50 rounds on the embedded images with fully connected layers. The rates
are those of the paper's experiments, 0.1 for heads and 0.3 for the body (of Stack Overflow), with plain means on the
server.

Clients are measured after the reconstruction of their heads, all of them: those that have never taken part as well as
those that have. The two are not told apart.
"""

from __future__ import annotations

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep

METRIC = "personal_last10_accuracy"


def base(profile: str) -> Experiment:
    paper = profile == "paper"
    return Experiment(
        name="fedrecon",
        rounds=100 if paper else 50,
        data={"name": "cifar10" if paper else "fashion_mnist_sample"},
        partition={"name": "classes_per_client", "clients": 100, "classes": 2},
        model={"name": "fedrep_cifar" if paper else "mlp"},
        algorithm={"name": "fedrecon", "recon_lr": 0.1},
        local={"epochs": 1, "batch_size": 16, "lr": 0.3 if paper else 0.1},
        participation={"fraction": 0.1},
        evaluation={"personal_every": 1},
    )


def options(profile: str) -> Sweep:
    """FedRecon by steps of reconstruction, with heads kept or not and with rows split or not."""
    steps = [1, 10, 50, 100] if profile == "paper" else [1, 10, 50]
    return Sweep(
        base=base(profile),
        space={
            "reset_head": tune.grid_search([True, False]),
            "support_frac": tune.grid_search([0.5, 1.0]),
            "recon_steps": tune.grid_search(steps),
        },
        seeds=(0, 1, 2),
        metric=METRIC,
        tables=(
            PaperTable("Accuracy of all clients", ("recon_steps",), ("reset_head", "support_frac"), METRIC),
            PaperTable(
                "Accuracy of the worst tenth of clients",
                ("recon_steps",),
                ("reset_head", "support_frac"),
                "personal_worst_decile_accuracy",
            ),
        ),
        claims=(
            Claim(
                text="Heads that start afresh need their steps: ten of them are better than one.",
                source="ours",
                better={"recon_steps": 10},
                worse={"recon_steps": 1},
                where={"reset_head": True},
                metric=METRIC,
            ),
            Claim(
                text="Heads that nobody keeps are within two points of heads that are kept, given fifty steps.",
                source="Singhal et al. 2021, on keeping no state",
                better={"reset_head": True},
                worse={"reset_head": False},
                where={"recon_steps": 50},
                metric=METRIC,
                kind="equal",
                margin=0.02,
            ),
            Claim(
                text="Rows of their own for either part cost no more than two points, on the mean.",
                source="ours",
                better={"support_frac": 0.5},
                worse={"support_frac": 1.0},
                metric=METRIC,
                margin=-0.02,
                every=False,
            ),
        ),
    )
