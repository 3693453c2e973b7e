"""What CCVR's paper claims of label skew, on two real data sets at laptop size: ``make calibration CIFAR10=FOLDER``.

Gates of the specification: (a) clients' layers are least alike at the logits, (c) CCVR gains under strong skew, (h)
the oracle bounds CCVR. 10,000 training images, 10 clients in every round, seeds 0 to 2: for (c) and (h) 12 rounds of 2
local epochs; for (a) the part of ``ccvr.cka`` that the paper has, strong skew beside IID with the projection, in its
own 15 rounds of 10. Nothing here passes or fails: the table says what held, with effects and intervals.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from ray import tune
from rich.console import Console

from benchmarks import claims
from benchmarks.common import RESULTS, save
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep
from tune_configs import ccvr

ROUNDS = 12
METRICS = ("accuracy", "cka_logits", "cka_lowest_other", "cka_mean")
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
        tables=(PaperTable("Accuracy", (calibration,), ("alpha",), metric="accuracy"),),
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


def similarity(profile: str) -> Sweep:
    """The six of ``ccvr.cka``'s thirty trials that its claims on the paper's network rest on, with three seeds."""
    whole = ccvr.cka(profile)
    space = {"partition": tune.grid_search([ccvr.SKEWED, ccvr.IID]), ccvr.PROJECTION: tune.grid_search([True])}
    claims = tuple(one for one in whole.claims if one.where.get(ccvr.PROJECTION))
    return replace(whole, space=space, seeds=(0, 1, 2), claims=claims)


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
            for function in (gain, similarity):
                folder = runs / f"{data}-{function.__name__}"
                name = f"{Path(__file__).resolve()}:{function.__name__}"
                found[folder.name] = claims.measure(console, name, changes, folder, METRICS)
    console.print(claims.table(found))
    save("calibration", found, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
