"""What CCVR's paper claims of label skew, on two real data sets at laptop size: ``make calibration CIFAR10=FOLDER``.

Gates of the specification: (a) clients' layers are least alike at the logits, (c) CCVR gains under strong skew, (h)
the oracle bounds CCVR. 10,000 training images, 10 clients in every round, 12 rounds of 2 local epochs, seeds 0 to 2.
Nothing here passes or fails: the table says what held, with effects and intervals.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import tune
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save
from engine import cli_sweeps
from engine.analysis import tables
from engine.analysis.claims import Claim, Layout, judge
from engine.sweeps.definition import Sweep
from engine.sweeps.running import How
from tune_configs import ccvr

ROUNDS = 12
DATA = {"fashion_mnist": [], "cifar10": ["data.root={}"]}


def gain(profile: str) -> Sweep:
    """FedAvg under strong skew: as it is, with CCVR, with the oracle."""
    calibration = ccvr.CALIBRATION
    none, ours, oracle = ccvr.NONE, ccvr.CCVR, ccvr.ORACLE
    return Sweep(
        base=ccvr.calibrated(profile).replace({"stages.train.rounds": ROUNDS}),
        space={calibration: tune.grid_search([none, ours, oracle]), "alpha": tune.grid_search([0.1, 0.05])},
        seeds=(0, 1, 2),
        metric="accuracy",
        tables=(Layout("Accuracy", (calibration,), ("alpha",), metric="accuracy"),),
        claims=(
            Claim("(c) CCVR gains at every alpha", "spec", {calibration: ours}, {calibration: none}, metric="accuracy"),
            Claim(
                "(c) CCVR gains on the mean over alpha",
                "spec",
                {calibration: ours},
                {calibration: none},
                metric="accuracy",
                every=False,
            ),
            Claim(
                "(h) the oracle is no more than a point below CCVR",
                "spec",
                {calibration: oracle},
                {calibration: ours},
                metric="accuracy",
                margin=-0.01,
            ),
        ),
    )


def measured(folder: Path) -> dict[str, Any]:
    """A finished sweep: each setting's figures, each claim's verdict with effect and interval."""
    results = tables.load(folder)
    claims = []
    for verdict in judge(results):
        about = {name: value for name, value in asdict(verdict).items() if name not in ("claim", "cells")}
        claims.append({"text": verdict.claim.text, "margin": verdict.claim.margin, **about})
    metrics = [
        metric for metric in ("accuracy", "cka_logits", "cka_lowest_other", "cka_mean") if metric in results.trials
    ]
    settings = {metric: results.settings(metric).to_dict("records") for metric in metrics}
    return {"settings": settings, "claims": claims}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", help="folder of CIFAR-10; without it Fashion-MNIST alone")
    parser.add_argument("--runs", type=Path, help="where the sweeps go, and are gone on with; none: a temporary folder")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console()
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        for data, roots in DATA.items():
            if roots and not options.cifar10:
                continue
            changes = [
                f"data.name={data}",
                "data.train_samples=10000",
                *(root.format(options.cifar10) for root in roots),
            ]
            for name, more in ((f"{Path(__file__).resolve()}:gain", []), ("ccvr.cka", [f"rounds={ROUNDS}"])):
                folder = runs / f"{data}-{name.rpartition(':')[2].rpartition('.')[2]}"
                cli_sweeps.sweep(console, name, "laptop", [*changes, *more], folder, How(), None)
                found[folder.name] = measured(folder)
    table = Table(
        "sweep", "claim", "verdict", "effect", "95 % interval", title="seeds 0 to 2; accuracies are fractions"
    )
    for name, result in found.items():
        for one in result["claims"]:
            table.add_row(
                name, one["text"], one["verdict"], f"{one['effect']:+.3f}", f"{one['low']:+.3f} to {one['high']:+.3f}"
            )
    console.print(table)
    save("calibration", found, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
