"""What CBFL's and FedSER's papers claim first, at laptop size on real images: ``make balance``; an hour on two cores.

    python -m benchmarks.balance --runs FOLDER                            # gone on with after Ctrl-C
    python -m benchmarks.balance --only fedser data.name=cifar10 data.root=FOLDER

cbfl      10,000 images of Fashion-MNIST, 20 clients, a fifth of them in each of 40 rounds of which 28 are warm-up, at
          Dirichlet concentrations of 0.1 and 0.05: CBFL's global model beside FedAvg's, and its clients' local models
          (CBFL's Table 7)
fedser    2,000 of these images, 16 clients, all of them in each of 8 rounds of 5 local epochs, Dirichlet(0.5): FedSER
          beside FedAvg (FedSER's Table 1)

Nothing has to hold: the benchmark reports what does. Seeds 0, 1 and 2, on partitions of their own.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from rich.console import Console

from benchmarks import claims
from benchmarks.common import RESULTS, save
from engine.analysis.claims import Claim
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
    "Local models are better by more than ten points, at each alpha.": {
        "metric": "local_last10_accuracy",
        "margin": 0.1,
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting, of every part")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts alone")
    parser.add_argument("--runs", type=Path, help="where the sweeps go, and are gone on with; none: a temporary folder")
    parser.add_argument("--name", default="balance", help="of the file of results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for it")
    options = parser.parse_intermixed_args()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        found = {
            part: claims.measure(console, PARTS[part], options.overrides, runs / part, METRICS) for part in options.only
        }
    console.print(claims.table(found))
    save(options.name, found, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
