"""Measure every method beside FedAvg on the embedded Fashion-MNIST images, with skewed labels.

    python compare.py                        # 40 rounds, three seeds: about ten minutes on two cores
    python compare.py --rounds 2 --seeds 0   # a trial of the script itself
    python compare.py --methods fedlc fedrs  # these alone, beside FedAvg

The setting is the quickstart's: 20 clients, Dirichlet(0.3), 8 of them a round, two epochs in batches of 32 at rate 0.1,
on an MLP; for FedBN the same with BatchNorm, beside FedAvg on that. A method has its default fields.
Each run is a row of ``results/compare.json``, written when the run ends, and ``results/compare.md`` is the table made
of all rows of the setting: a run that has a row is not made again.

Two accuracies, each a mean over the last ten rounds: of the server's model on all test images, and of clients' own
models on their own test images. Beside each stands the mean over seeds of its difference from FedAvg's with the same
seed, in points, and Student's 95 % interval of that mean. They answer different questions, and do not compare.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedskew_more import METHODS
from torch import nn

import fedskew
from fedskew import Experiment, run
from fedskew.lab.comparing.intervals import paired

MLP, NORMALISED = {"name": "mlp"}, {"name": "mlp_with_norms"}
ACCURACIES = {"server_accuracy": "server's model", "own_accuracy": "clients' own models"}


@fedskew.model("mlp_with_norms")
def mlp_with_norms(shape: tuple[int, int, int], num_classes: int, units: int = 200) -> nn.Module:
    """The MLP with BatchNorm before each ReLU."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (math.prod(shape), units):
        layers += [nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(units, num_classes))


@dataclass(frozen=True)
class Trial:
    """One run to be measured."""

    method: str
    model: str
    seed: int
    experiment: Experiment


@dataclass(frozen=True)
class Row:
    """What one run came to. ``digest`` is the experiment's, by which a row is found again."""

    method: str
    model: str
    seed: int
    digest: str
    server_accuracy: float | None  # None: the method has no model of the server's
    own_accuracy: float
    seconds: float


def trial(method: str, model: dict[str, str], seed: int, rounds: int) -> Trial:
    experiment = Experiment(
        name=f"compare-{method}",
        seed=seed,
        rounds=rounds,
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.3, "seed": seed},
        model=model,
        local={"epochs": 2, "batch_size": 32, "lr": 0.1},
        participation={"count": 8},
        algorithm={"name": method},
        evaluation={"personal_every": 1, "client_loss": False},
        execution={"actors": 0, "device": "cpu"},
    )
    return Trial(method, model["name"], seed, experiment)


def planned(methods: Sequence[str], seeds: Iterable[int], rounds: int) -> list[Trial]:
    """Return the runs of these methods, each model's FedAvg before them."""
    models = {method: NORMALISED if method == "fedbn" else MLP for method in methods}
    baselines = [("fedavg", model) for model in (MLP, NORMALISED) if model in models.values()]
    pairs = [*baselines, *models.items()]
    return [trial(method, model, seed, rounds) for seed in seeds for method, model in pairs]


def measured(one: Trial) -> Row:
    """Run a trial to its end, in a folder that is then removed."""
    with tempfile.TemporaryDirectory() as folder:
        summary = run(one.experiment, out=Path(folder) / "run")
    has_server_model = summary["scope"] == "global"
    return Row(
        method=one.method,
        model=one.model,
        seed=one.seed,
        digest=one.experiment.digest,
        server_accuracy=summary["last10_accuracy"] if has_server_model else None,
        own_accuracy=summary["personal_last10_accuracy"],
        seconds=round(summary["seconds"], 1),
    )


def read(file: Path) -> list[Row]:
    return [Row(**values) for values in json.loads(file.read_text())] if file.exists() else []


def write(file: Path, text: str) -> None:
    """Write a whole file, or leave the one that is there."""
    whole = file.with_name(f"{file.name}.new")
    whole.write_text(text)
    os.replace(whole, file)


def table(rows: Sequence[Row]) -> str:
    """Return Markdown of rows of one setting: a line for each method, paired with its baseline by seed."""
    of = {(row.method, row.model, row.seed): row for row in rows}
    lines = [
        "| method | model | seeds | server's model | over FedAvg | clients' own | over FedAvg | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, model in dict.fromkeys((row.method, row.model) for row in rows):
        own = [row for row in rows if (row.method, row.model) == (method, model)]
        cells = []
        for field in ACCURACIES:
            pairs = [(getattr(row, field), getattr(of.get(("fedavg", model, row.seed)), field, None)) for row in own]
            cells += accuracy_cells(pairs, is_baseline=method == "fedavg")
        seconds = sum(row.seconds for row in own) / len(own)
        lines.append(f"| {method} | {model} | {len(own)} | {' | '.join(cells)} | {seconds:.1f} |")
    return "\n".join(lines) + "\n"


def accuracy_cells(pairs: Sequence[tuple[float | None, float | None]], is_baseline: bool) -> list[str]:
    """Return the mean in percent, and the difference from FedAvg in points with its interval; of (own, FedAvg's)."""
    own = [value for value, _ in pairs if value is not None]
    if not own:
        return ["", ""]
    mean = f"{100 * sum(own) / len(own):.2f} %"
    both = [(value, base) for value, base in pairs if value is not None and base is not None]
    if is_baseline or not both:
        return [mean, ""]
    found = paired([100 * value for value, _ in both], [100 * base for _, base in both])
    interval = f" ({found.low:+.2f} to {found.high:+.2f})" if math.isfinite(found.low) else ""
    return [mean, f"{found.mean:+.2f}{interval}"]


def page(rows: Sequence[Row], rounds: int) -> str:
    head = f"# Beside FedAvg\n\nOf `compare.py`, {rounds} rounds; what the columns are stands there.\n\n"
    return head + table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file, trials = asked.out / "compare.json", planned(asked.methods, asked.seeds, asked.rounds)
    rows = read(file)
    for number, one in enumerate(trials, start=1):
        done = {row.digest for row in rows}
        if one.experiment.digest not in done:
            rows.append(measured(one))
            write(file, json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        of_setting = {trial.experiment.digest for trial in trials}
        write(asked.out / "compare.md", page([row for row in rows if row.digest in of_setting], asked.rounds))
        print(f"{number} of {len(trials)}: {one.method} on {one.model}, seed {one.seed}", flush=True)


if __name__ == "__main__":
    main()
