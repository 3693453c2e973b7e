"""The board: every method that images and small networks allow, under three kinds of label skew, all tuned alike.

Profiles: ``laptop`` has 20,000 images of Fashion-MNIST, 50 clients, 10 of them and 2 local epochs in each of 30 rounds,
and fully connected layers; for CIFAR-10 10,000 images, of its parquet files in ``./cifar10``, 20 clients, 8 of them in
each of 40 rounds, and MOON's encoder. What a network needs for one method all have there: MOON's projection head.
``paper`` has all images, 100 clients, 100 rounds and a small convolutional network, for CIFAR-10 MOON's encoder too.

Every method has the best of twelve candidates on two seeds that no figure is of, and on a tenth of the training rows
that nobody trains on there: no test image has a say. These are four rates by three values of a field of the method's
own, six by two, or twelve rates where it has no such field; PFLEGO's rates are the server's and the head's. Other
fields stay at their defaults. Bodies pass two times over a client's rows, and what a method does for heads or for
personal models comes on top; but FedRecon's see half of the rows, pFedMe takes 100 gradients in a round, and PFLEGO 50
of all rows and one step of the body, as they are meant. Figures are of five seeds that no candidate here was chosen by,
each with its own partition and its own test rows. No paper says anything about these settings, so there are no claims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray import tune

from engine.base.errors import require
from engine.experiment import CHOICES, Experiment
from engine.results.claims import PaperTable
from engine.sweeps.definition import Sweep
from engine.sweeps.tuned import Tuned
from tune_configs import fair
from tune_configs.quickstart import fashion_mnist

SEEDS = tuple(range(400, 405))  # 100 to 104 were looked at in an earlier version
CANDIDATES = 12
RATES = {  # as many rates as the candidates leave room for
    12: (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6),
    6: (0.01, 0.03, 0.05, 0.1, 0.2, 0.3),
    4: (0.02, 0.05, 0.1, 0.2),
    3: (0.03, 0.08, 0.2),
    2: (0.05, 0.15),
}
RATE = "local.lr"
Fields = Mapping[str, Sequence[Any]]  # dotted keys -> what is tried
NO_FIELDS: Fields = {}

SHARED: Mapping[str, Fields] = {  # methods whose clients share one model
    "fedavg": {},
    "fedprox": {"algorithm.mu": (0.01, 0.1, 1.0)},
    "scaffold": {},
    "fedavgm": {"algorithm.server_momentum": (0.2, 0.5, 0.8)},
    "fednova": {},
    "feddc": {"algorithm.alpha": (0.01, 0.03, 0.1)},
    "feddyn": {"algorithm.alpha": (0.003, 0.01, 0.03)},
    "fedadam": {"algorithm.server_lr": (0.001, 0.003, 0.01)},
    "fedyogi": {"algorithm.server_lr": (0.001, 0.003, 0.01)},
    "fedcm": {RATE: (0.1, 0.3, 0.6, 1.0), "algorithm.alpha": (0.1, 0.3, 0.5)},  # its steps are a tenth of a gradient
    "fedacg": {"algorithm.server_momentum": (0.7, 0.85, 0.95)},
    "fedexp": {"algorithm.epsilon": (0.01, 0.1, 1.0)},  # the code has 0.001 or 0.1 times the cohort
    "qfedavg": {"algorithm.q": (0.01, 0.1, 1.0)},
    "fedntd": {"algorithm.beta": (0.1, 0.3, 1.0)},
    "feddecorr": {"algorithm.form": ("paper", "code")},  # the latter is about 30 times as strong
    "fedetf": {"algorithm.scale": (3.0, 10.0, 30.0)},
    "fedlc": {"algorithm.tau": (0.5, 1.0, 2.0)},
    "fedrs": {"algorithm.alpha": (0.1, 0.3, 0.6)},
    "fedsam": {"algorithm.rho": (0.01, 0.03, 0.1)},
    "fedmix": {"algorithm.mix": (0.01, 0.03, 0.1)},
    "naivemix": {"algorithm.mix": (0.03, 0.1, 0.3)},
    "mixup_local": {"algorithm.gamma": (0.05, 0.2, 1.0)},
    "fedser": {"algorithm.mu": (0.5, 1.75, 4.0)},
}
PERSONAL: Mapping[str, Fields] = {  # FedAvg's personal model is the shared one after a client's local epochs
    "fedavg": {},
    "local": {},
    "fedavg_local": {},
    "fedper": {"algorithm.layers": (1, 2)},
    "lg_fedavg": {"algorithm.layers": (1, 2)},
    "fedrep": {"algorithm.head_epochs": (2, 10)},
    "fedbabu": {},
    "fedrecon": {"algorithm.recon_lr": (0.03, 0.1, 0.3)},
    "ditto": {"algorithm.lam": (0.1, 0.5, 2.0)},
    "apfl": {"algorithm.alpha": (0.25, 0.5, 0.75)},
    "pfedme": {"algorithm.personal_lr": (0.01, 0.03, 0.09)},
    "perfedavg": {"algorithm.alpha": (0.01, 0.03, 0.1)},
    "fedala": {"algorithm.mix_lr": (1.0, 3.0, 10.0)},  # ten passes of the authors' are one of ten times the rate
    "ifca": {"algorithm.clusters": (2, 3, 4)},
    "fedproto": {"algorithm.answer": ("prototypes", "head")},
    "fedrod": {},
    "pflego": {"algorithm.server_lr": (3e-4, 1e-3, 3e-3, 1e-2), "algorithm.head_lr": (0.03, 0.1, 0.2)},
}
ON_CIFAR: Mapping[str, Fields] = {
    **{name: SHARED[name] for name in ("fedavg", "fedprox", "scaffold", "fedavgm", "fednova", "feddyn")},
    **{name: SHARED[name] for name in ("fedntd", "fedetf", "fedlc")},
    "moon": {"algorithm.mu": (0.1, 1.0, 5.0)},  # needs a projection head, which all have there
}
LEFT_OUT = {
    "cbfl": "needs BatchNorm",
    "fedbn": "needs BatchNorm",
    "clsnorm": "another head, and a remedy that CCVR measures itself against",
    "clsprox": "a remedy that CCVR measures itself against",
    **dict.fromkeys(("ccvr", "iid_calibration"), "calibrates what another method has trained"),
    **dict.fromkeys(("answers", "skd1", "skd2", "uhc", "cfl_amalgam", "cbhma", "cbhma_e"), "distils a public set"),
}
FIXED: Mapping[str, Mapping[str, Any]] = {
    "fedser": {"transform": "resize_back"},  # layers that take one size of image
    # By rows, as all others: a client may have two. FedDC's code clips, as its step is then 200 times as long.
    "feddyn": {"weighting": "samples"},
    "feddc": {"weighting": "samples", "clip": 10.0},
    "fedbabu": {"weighting": "samples"},
    "fedrep": {"body_epochs": 2},
}


@dataclass(frozen=True)
class Task:
    """How labels are skewed, and the accuracy that rounds and bytes are counted to."""

    partition: Mapping[str, Any]
    target: float
    cifar: bool = False


DIRICHLET = {"name": "dirichlet", "clients": 50}
TASKS = {
    "fmnist_dir01": Task({**DIRICHLET, "alpha": 0.1}, 0.75),
    "fmnist_dir05": Task({**DIRICHLET, "alpha": 0.5}, 0.8),
    "fmnist_two_classes": Task({"name": "classes_per_client", "clients": 50, "classes": 2}, 0.7),
    "cifar10_dir01": Task({"name": "dirichlet", "clients": 20, "alpha": 0.1}, 0.4, cifar=True),
}


def fmnist_dir01(profile: str) -> Sweep:
    """Methods that share one model, on Fashion-MNIST, Dirichlet(0.1); on a laptop two hours on two cores."""
    return of_methods(profile, "fmnist_dir01", SHARED)


def fmnist_dir05(profile: str) -> Sweep:
    """Methods that share one model, on Fashion-MNIST, Dirichlet(0.5); on a laptop two hours on two cores."""
    return of_methods(profile, "fmnist_dir05", SHARED)


def fmnist_two_classes(profile: str) -> Sweep:
    """Methods that share one model, on Fashion-MNIST, two classes a client; on a laptop two hours on two cores."""
    return of_methods(profile, "fmnist_two_classes", SHARED)


def cifar10_dir01(profile: str) -> Sweep:
    """Ten methods that share one model, on CIFAR-10, Dirichlet(0.1); on a laptop three hours on two cores."""
    return of_methods(profile, "cifar10_dir01", ON_CIFAR)


def personal_dir01(profile: str) -> Sweep:
    """Personalised methods on Fashion-MNIST, Dirichlet(0.1); on a laptop two hours on two cores."""
    return of_methods(profile, "fmnist_dir01", PERSONAL, personal=True)


def personal_two_classes(profile: str) -> Sweep:
    """Personalised methods on Fashion-MNIST, two classes a client; on a laptop two hours on two cores."""
    return of_methods(profile, "fmnist_two_classes", PERSONAL, personal=True)


def beside_fedavg(
    profile: str, method: str, fields: Fields = NO_FIELDS, task: str = "fmnist_dir01", personal: bool = False
) -> Sweep:
    """Return a method of your own beside FedAvg on a task of the board, with the candidates that all there have.

    fields: up to twelve candidates of it: dotted keys -> what is tried; without a rate as many as make twelve.
    """
    require(task in TASKS, "task", task, "is none of the board", f"name one of {', '.join(TASKS)}")
    return of_methods(profile, task, {"fedavg": {}, method: fields}, personal)


def of_methods(profile: str, task: str, methods: Mapping[str, Fields], personal: bool = False) -> Sweep:
    """Return the sweep of some methods on a task: those with one model, or ``personal`` ones."""
    known = {name: {"name": name, **FIXED.get(name, {})} for name in methods}
    projection = any(CHOICES["algorithm"][name].requires.model.get("projection") for name in methods)
    return Sweep(
        base=base(profile, TASKS[task], personal).replace({"model.projection": projection}),
        space={"algorithm": tune.grid_search([*known.values()])},
        seeds=SEEDS,
        metric=AFTER if personal else LAST,
        target_accuracy=TASKS[task].target,
        tuned=tuple(Tuned({"algorithm": one}, candidates(methods[name])) for name, one in known.items()),
        tuning_rows=fair.TUNING_ROWS,
        tables=tuple(
            PaperTable(title, ("algorithm",), (), metric)
            for metric, title in (PERSONAL_FIGURES if personal else SHARED_FIGURES).items()
        ),
    )


def base(profile: str, task: Task, personal: bool) -> Experiment:
    """The experiment that all methods of a task have but for their own fields and their rate."""
    data: dict[str, Any] = {"data": {"name": "parquet", "root": "cifar10"}} if task.cifar else {}
    changes = {**data, "name": "board", "local.epochs": 2, "partition": task.partition, **fair.OWN_TEST_ROWS}
    if task.cifar:
        changes |= {"model": {"name": "moon_cnn"}, "participation.count": 8}
    if profile == "paper":
        changes |= {"rounds": 100, "partition.clients": 100, "participation.count": 10}
    elif task.cifar:
        changes |= {"rounds": 40, "data.train_samples": 10_000}
    else:
        changes |= {"data.train_samples": 20_000, "model": {"name": "mlp", "hidden": [100, 100]}}
    measured = {"local_every": 0} | ({"personal_every": 2, "own_classes": True} if personal else {})
    return fashion_mnist().replace({**changes, **{f"evaluation.{name}": value for name, value in measured.items()}})


def candidates(fields: Fields) -> dict[str, Any]:
    """Return the grid of a method: its fields' values, and as many rates as make twelve candidates in all."""
    number = math.prod(len(values) for values in fields.values())
    rates = {} if RATE in fields or number == CANDIDATES else {RATE: RATES.get(CANDIDATES // max(number, 1), ())}
    found = {**rates, **fields}
    whole = math.prod(len(values) for values in found.values()) == CANDIDATES
    rule = "do not come to twelve candidates"
    repair = "try 1, 2, 3, 4, 6 or 12 values, or twelve with rates of your own"
    require(whole, "fields", {name: list(values) for name, values in fields.items()}, rule, repair)
    return {name: tune.grid_search(list(values)) for name, values in found.items()}


LAST, AFTER = "last10_accuracy", "participants_accuracy"
SHARED_FIGURES = {
    LAST: "Accuracy of the last ten rounds",
    "macro_f1": "Macro F1",
    "ece": "Expected calibration error",
    "worst_decile_accuracy": "Accuracy of the worst tenth of clients",
    "rounds_to_target": "Rounds to the target",
    "bytes_to_target": "Traffic to the target",
}
PERSONAL_FIGURES = {
    AFTER: "Accuracy of participants after local work, last ten rounds",
    "personal_last10_accuracy": "Accuracy of all clients, as each method uses what it receives",
    "personal_macro_f1": "Macro F1 of all clients, alike",
    "personal_worst_decile_accuracy": "Accuracy of the worst tenth of clients, alike",
}
