"""What CBFL's and FedSER's papers claim first, at laptop size on real images: ``make balance``; an hour on two cores.

    python -m benchmarks.balance --runs FOLDER                            # gone on with after Ctrl-C
    python -m benchmarks.balance --only fedser data.name=cifar10 data.root=FOLDER

cbfl      10,000 images of Fashion-MNIST, 20 clients, a fifth of them in each of 40 rounds of which 28 are warm-up, at
          Dirichlet concentrations of 0.1 and 0.05: CBFL's global model beside FedAvg's, and its clients' local models
          (CBFL's Table 7)
fedser    2,000 of these images, 16 clients, all of them in each of 8 rounds of 5 local epochs, Dirichlet(0.5): FedSER
          beside FedAvg (FedSER's Table 1)

Nothing has to hold: the benchmark reports what does. Seeds 0, 1 and 2. The results that are kept are all of one
partition (partition.seed=0). ``cbfl.headline`` and ``fedser.headline`` are the settings where the effects can show.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from benchmarks import claims
from engine.results.claims import Claim
from engine.sweeps.definition import Sweep
from tune_configs import cbfl as cbfl_tables
from tune_configs import fedser as fedser_tables

METRICS = ("last10_accuracy", "best_accuracy", "last10_std", "local_last10_accuracy")
FAKE_LOSS = "fake_loss"  # "none" is FedAvg, "distill" CBFL: as in table 7


def cbfl(profile: str) -> Sweep:
    """CBFL and FedAvg after the same warm-up, by label skew."""
    sweep = cbfl_tables.table7(profile)
    alphas = [0.1, 0.05]
    return replace(
        sweep,
        space={**sweep.space, FAKE_LOSS: tune.grid_search(["none", "distill"]), "alpha": tune.grid_search(alphas)},
        tables=(),
        claims=tuple(
            Claim(text, "CBFL, tables 1, 2 and 7", {FAKE_LOSS: "distill"}, {FAKE_LOSS: "none"}, **about)
            for text, about in CBFL_CLAIMS.items()
        ),
    )


CBFL_CLAIMS: dict[str, dict[str, Any]] = {
    "CBFL is better than FedAvg in the last ten rounds, at each alpha.": {"metric": "last10_accuracy"},
    "It is so on the mean over alpha.": {"metric": "last10_accuracy", "every": False},
    "CBFL is better than FedAvg in its best round, at each alpha.": {"metric": "best_accuracy"},
    "Local models are better than FedAvg's, at each alpha.": {"metric": "local_last10_accuracy"},
    "Local models lack less of the global model's accuracy, at each alpha.": {
        "metric": "local_gap",
        "larger_is_better": False,
    },
    "The global model's accuracy swings less from round to round, at each alpha.": {
        "metric": "last10_std",
        "larger_is_better": False,
    },
}


def fedser(profile: str) -> Sweep:
    """FedSER and FedAvg."""
    methods = [fedser_tables.FEDAVG, fedser_tables.FEDSER]
    return Sweep(
        base=fedser_tables.base(profile),
        space={"algorithm": tune.grid_search(methods)},
        seeds=(0, 1, 2),
        claims=tuple(
            Claim(text, "FedSER, table 1", {"algorithm": methods[1]}, {"algorithm": methods[0]}, metric=metric)
            for text, metric in (
                ("FedSER is better than FedAvg in its best round.", "best_accuracy"),
                ("FedSER is better than FedAvg in the last rounds.", "last10_accuracy"),
            )
        ),
    )


PARTS = {function.__name__: f"{Path(__file__).resolve()}:{function.__name__}" for function in (cbfl, fedser)}


if __name__ == "__main__":
    raise SystemExit(claims.main(__doc__, "balance", PARTS, METRICS))
