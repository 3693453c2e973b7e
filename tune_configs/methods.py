"""Eleven methods of 2020 to 2024 beside FedAvg, under strong label skew, all tuned alike: no paper's own setting.

Profiles: ``laptop`` has 20,000 images of Fashion-MNIST, 50 clients, Dirichlet(0.1), 10 of them and 2 local epochs in
each of 30 rounds, and fully connected layers; ``paper`` all images, a small CNN, 100 clients and 100 rounds.

Every method has the best of six candidates on two seeds that no verdict sees, and on a tenth of the training rows that
nobody trains on there: no test image has a say. These are three rates by two values of a field of the method's own;
FedAvg and local training have none, and so six rates. Other fields stay at their defaults. A first search, of which no
verdict was seen, gave FedAvg half as many rates and a server's rate of 1.5, which never helped, and FedCM and FedETF no
rate beyond their best ones, 0.3 and 0.03.

No paper says anything about this setting, so no claim says who wins. Each asks whether a method is within a point of
FedAvg, and the effect with its interval says which way it differs.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep
from engine.sweeps.tuned import Tuned
from tune_configs.quickstart import fashion_mnist

RATES = [0.03, 0.1, 0.3]
OTHER_RATES = {"fedcm": [0.1, 0.3, 1.0], "fedetf": [0.01, 0.03, 0.1]}
FINER = [0.02, 0.03, 0.06, 0.1, 0.2, 0.3]  # of methods without a field to be searched
Searched = tuple[tuple[str, str, tuple[Any, ...]], ...]  # method, a field of its own, what is tried of that
SHARED: Searched = (
    ("fedsam", "rho", (0.05, 0.2)),
    ("feddecorr", "form", ("paper", "code")),  # the latter is about 30 times as strong
    ("fedcm", "alpha", (0.1, 0.3)),
    ("qfedavg", "q", (0.1, 1.0)),
    ("fedetf", "scale", (1.0, 10.0)),
    ("fedexp", "epsilon", (0.001, 0.1)),
    ("fedacg", "server_momentum", (0.5, 0.85)),
)
PERSONAL: Searched = (
    ("fedala", "layers", (1, 2)),
    ("ifca", "clusters", (2, 4)),
    ("apfl", "alpha", (0.25, 0.75)),
    ("lg_fedavg", "layers", (1, 2)),
)
LAST, AFTER = "last10_accuracy", "participants_accuracy"


def base(profile: str, **evaluation: int | str) -> Experiment:
    """The experiment of both sweeps."""
    small = {"data.train_samples": 20_000, "partition.clients": 50, "model": {"name": "mlp", "hidden": [100, 100]}}
    changes = {"rounds": 100} if profile == "paper" else {"rounds": 30, **small}
    measured = {f"evaluation.{name}": value for name, value in evaluation.items()}
    return fashion_mnist().replace({"name": "methods", "local.epochs": 2, **changes, **measured})


def shared(profile: str) -> Sweep:
    """Seven methods whose clients share one model beside FedAvg: that model's test accuracy in the last ten rounds."""
    tables = (
        PaperTable("Accuracy of the last ten rounds", ("algorithm",), ()),
        PaperTable("Best accuracy", ("algorithm",), (), "best_accuracy"),
    )
    return _beside_fedavg(base(profile, local_every=0), ("fedavg",), SHARED, LAST, tables)


def personal(profile: str) -> Sweep:
    """Four personalised methods, and local training, beside FedAvg: clients' own models after their local work.

    FedAvg's is the global model after a client's local epochs, FedAvg with fine-tuning. The last table has two epochs
    more for every method, at the end and for all clients.
    """
    tables = (
        PaperTable("Accuracy of participants after local work, last ten rounds", ("algorithm",), (), AFTER),
        PaperTable("Accuracy of all clients before it", ("algorithm",), (), "personal_last10_accuracy"),
        PaperTable("Accuracy of all clients after two epochs more", ("algorithm",), (), "fine_tuned_accuracy"),
    )
    measured = base(profile, local_every=0, personal_every=2, fine_tune_epochs=2, fine_tune_part="all")
    return _beside_fedavg(measured, ("fedavg", "local"), PERSONAL, AFTER, tables)


def _beside_fedavg(
    experiment: Experiment, plain: tuple[str, ...], methods: Searched, metric: str, tables: tuple[PaperTable, ...]
) -> Sweep:
    """Return the sweep of ``methods`` and of those, ``plain``, that have no field to be searched, FedAvg among them."""
    sides: dict[str, dict[str, Any]] = {name: {"local.lr": tune.grid_search(FINER)} for name in plain}
    for name, field, values in methods:
        rates = tune.grid_search(OTHER_RATES.get(name, RATES))
        sides[name] = {"local.lr": rates, f"algorithm.{field}": tune.grid_search(list(values))}
    fedavg = {"algorithm": {"name": "fedavg"}}
    return Sweep(
        base=experiment,
        space={"algorithm": tune.grid_search([{"name": name} for name in sides])},
        seeds=tuple(range(5)),
        metric=metric,
        tuned=tuple(Tuned({"algorithm": {"name": name}}, space) for name, space in sides.items()),
        tuning_rows=0.1,
        tables=tables,
        claims=tuple(
            Claim(
                text=f"{name} is within a point of FedAvg.",
                source="ours",
                better={"algorithm": {"name": name}},
                worse=fedavg,
                metric=metric,
                kind="equal",
                margin=0.01,
            )
            for name in sides
            if name != "fedavg"
        ),
    )
