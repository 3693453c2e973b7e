"""What every algorithm must reduce to, and where it must differ.

What an algorithm declares as neutral is tried in all SETTINGS. A new algorithm adds a row to FURTHER (what else is
FedAvg to the bit; an empty list with a reason in a comment if nothing is at all) and a row to DIFFERS (what it does
with its defaults). The column of neutral values in docs/algorithms.md says the same, and each is held against the
other. What reduces does so under every executor that ``auto`` may stand for: ``block`` on networks of linear layers
alone, ``loop`` on all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from engine.base.declared import reductions_of
from engine.data import Assignment
from engine.experiment import Experiment
from engine.experiment.executor_policy import default_executor
from engine.models import MODELS
from tests.support.loops import each
from tests.support.tiny import TINY_NORM, Driven, dataset, drive, experiment, experiment_of

pytestmark = pytest.mark.usefixtures("tiny_norm")
FULL: dict[str, Any] = {}
PART: dict[str, Any] = {"participation": {"count": 3}}
ONE_ROUND: dict[str, Any] = {"rounds": 1}
MOMENTUM: dict[str, Any] = {"local": {"momentum": 0.9, "weight_decay": 1e-3, "lr": 0.02}}
EVERY_CLASS: dict[str, Any] = {"partition": "every class everywhere"}  # not a key of experiments: see run_of
FIRST_OF_MOON: dict[str, Any] = {}  # its loss is FedAvg's and a constant, and goes no other way than it does later
BY_LOOP = {"fedavg_local"}  # whose loss is another one, with the same numbers: elsewhere it rounds otherwise

SETTINGS = (FULL, PART, {**MOMENTUM, **TINY_NORM})
QUALIFIED = {"cbfl", "fedavg"}  # whose reduction has a condition that no field says, no BatchNorm; which is FedAvg

# algorithm -> (its fields, the setting) under which its weights are FedAvg's to the bit, beside what it declares
FURTHER: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "fedavg": [({"server_lr": 1.0}, FULL)],
    # control variates start at zero, so the first round corrects nothing
    "scaffold": [
        ({}, ONE_ROUND),
        ({"option": "I"}, ONE_ROUND),
        ({"weighting": "cbfl_code"}, ONE_ROUND),
        ({"option": "I"}, {**ONE_ROUND, **TINY_NORM}),
        ({}, {**ONE_ROUND, **MOMENTUM}),
    ],
    # whatever its form, since the term is skipped
    "fedavgm": [({"server_momentum": 0.0, "form": "ema"}, {**PART, **TINY_NORM})],
    # never to the bit: an update is divided and multiplied again (allclose where steps are equal: test_fednova.py)
    "fednova": [],
    # a client without a previous model has nothing to contrast with
    "moon": [({"mu": 0.0, "buffer": 3}, PART), (FIRST_OF_MOON, ONE_ROUND)],
    # never: the mean drift is added even where alpha is 0
    "feddc": [],
    # never: the server steps once more along the mean update
    "feddyn": [],
    # never: steps are divided by their own size (allclose with a large tau: test_fedopt.py)
    "fedadam": [],
    "fedyogi": [],
    # with an epsilon before which all updates are nothing
    "fedexp": [({"epsilon": 1e9, "averaged": False}, one) for one in (PART, {**MOMENTUM, **TINY_NORM})],
    # never: features are normalised
    "fedetf": [],
    "fedntd": [({"beta": 0.0, "tau": 3.0}, {**MOMENTUM, **TINY_NORM})],
    "clsnorm": [({}, FULL), ({}, {**MOMENTUM, **TINY_NORM})],  # to FedAvg on the same normalised head
    # never: heads stay with their clients (PFLEGO's equality with FedPer: test_pflego.py)
    "pflego": [],
    "fedper": [],
    "fedavg_local": [({}, EVERY_CLASS)],
    # never: nothing is averaged (one client: test_local.py)
    "local": [],
    # always: personal models are beside it
    "ditto": [({}, FULL), ({"personal_epochs": 1}, PART), ({"lam": 3.0}, {**MOMENTUM, **TINY_NORM})],
    # always: as ditto
    "apfl": [({}, PART), ({"alpha": 0.9, "adaptive": False}, {**MOMENTUM, **TINY_NORM})],
    # but for rounding, with one inner step and eta lambda = 1: test_pfedme.py
    "pfedme": [],
    "perfedavg": [({"alpha": 0.0, "first_order": True}, {**MOMENTUM, **TINY_NORM})],
    # never: no weights are averaged
    "fedproto": [],
    # never: clients start elsewhere; each model is of some clients
    "fedala": [],
    "ifca": [],
    # its generic model
    "fedrod": [({"gamma": 0.0}, PART), ({"gamma": 0.0, "personal_epochs": 0}, {**MOMENTUM, **TINY_NORM})],
    # on a model without BatchNorm
    "fedbn": [({}, PART), ({}, MOMENTUM)],
    # never: heads are clients' own
    "fedrep": [],
    # never: bodies are
    "lg_fedavg": [],
    "fedrecon": [],
    # without what it is about
    "fedbabu": [
        ({"train_head": True, "weighting": "samples"}, PART),
        ({"train_head": True, "weighting": "samples"}, {**MOMENTUM, **TINY_NORM}),
    ],
    # where no batch has statistics, for generated rows are in every batch
    "cbfl": [({"lam": 0.0}, FULL), ({"lam": 0.0, "generator": "gaussian_noise"}, {**MOMENTUM, **PART})],
    # after FedAvg; no epochs leave what it has come to
    "ccvr": [({"epochs": 0, "cov": "shared"}, {**PART, **TINY_NORM})],
    "iid_calibration": [({"epochs": 0, "fraction": 1.0}, {**PART, **TINY_NORM})],
    # never: nobody averages anything, and a student is a model of its own (without teachers: test_answers.py)
    **{name: [] for name in ("answers", "skd1", "skd2", "uhc", "cfl_amalgam", "cbhma", "cbhma_e")},
}
DECLARED = {name: reductions_of(algorithm) for name, algorithm in ALGORITHMS.items()}
REDUCES = {name: [*product(DECLARED[name], SETTINGS), *FURTHER.get(name, ())] for name in ALGORITHMS}

# algorithm -> fields with which three rounds must end elsewhere than FedAvg's
DIFFERS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{"server_lr": 0.5}],
    "fedprox": [{}, {"mu": 1.0}],
    "scaffold": [{}, {"option": "I"}, {"weighting": "uniform"}, {"weighting": "cbfl_code"}],
    "fedavgm": [{}, {"form": "nesterov"}, {"form": "ema"}],
    "fednova": [{}, {"server_momentum": 0.5}, {"mu": 0.5}, {"mu": 0.5, "tau_eff": "steps"}, {"max_multiplier": 1.0}],
    "moon": [{}, {"temperature": 0.1}, {"buffer": 2}],
    "feddc": [{}, {"alpha": 0.0}, {"weighting": "samples"}, {"clip": 0.1}, {"reference_norm": True}],
    "feddyn": [{}, {"alpha": 0.5}, {"weighting": "samples"}, {"server_lr": 0.5}],
    "fedadam": [{}, {"beta1": 0.5}, {"beta2": 0.9}, {"tau": 0.1}, {"server_lr": 0.1}],
    "fedyogi": [{}, {"beta1": 0.5}, {"beta2": 0.9}, {"tau": 0.1}, {"server_lr": 0.1}],
    "fedcm": [{}, {"alpha": 0.5}, {"server_lr": 0.5}],
    "fedacg": [{}, {"server_momentum": 0.5}, {"mu": 0.5}, {"server_momentum": 0.0}, {"server_lr": 0.5}],
    # by its mean of two rounds alone, for these clients agree; others do not: test_fedcm_fedacg_fedexp_qfedavg.py
    "fedexp": [{}, {"averaged": False, "server_lr": 0.5}],
    "qfedavg": [{}, {"q": 0.1}, {"weighting": "uniform"}, {"q": 0.0, "weighting": "uniform"}, {"server_lr": 0.5}],
    "fedntd": [{}, {"beta": 0.3}, {"tau": 3.0}, {"server_lr": 0.5}],
    "feddecorr": [{}, {"beta": 1.0}, {"form": "code"}],
    "fedetf": [{}, {"gamma": 0.0}, {"scale": 10.0}, {"server_lr": 0.5}],
    "fedlc": [{}, {"tau": 0.3}],
    "fedsam": [{}, {"rho": 0.5}],
    "ifca": [{}],
    "fedala": [{}, {"mix_lr": 0.1}, {"mix_rows": 0.5}],
    "fedrs": [{}, {"alpha": 0.9}, {"alpha": 0.0}],
    "clsprox": [{}, {"mu": 1.0}],
    "clsnorm": [{"mu": 1.0}],  # its default is FedAvg, and what it demands of the model does the rest
    "fedmix": [{}, {"taylor_coef": "one"}, {"mash": 5}],
    "naivemix": [{}, {"mash": 5}],
    "mixup_local": [{}, {"gamma": 0.2}],
    "fedser": [
        {},
        {"subnets": 1},
        {"min_width": 0.5},
        {"mu": 0.5},
        {"transform": "rotate"},
        {"transform": "crop"},
        {"transform": "none"},
        {"width_sampling": "sandwich"},
        {"width_divisor": 4},
        {"normalise_by_n": True},
    ],
    "pflego": [
        {},
        {"tau": 1},
        {"head_lr": 0.1},
        {"w_scale": "joint"},
        {"server_optimizer": "sgd"},
        {"server_optimizer": "yogi"},
        {"batch_size": 4},
        {"head_init": "uniform01"},
    ],
    "fedper": [{}, {"head_init": "uniform01"}],
    "fedavg_local": [{}, {"server_lr": 0.5}],
    "local": [{}],
    "ditto": [],  # never; what its options do to personal models: test_ditto.py
    "apfl": [],  # never; what its options do to personal models: test_apfl.py
    "pfedme": [
        {"local_rounds": 4},
        {"local_rounds": 4, "inner_steps": 2},
        {"local_rounds": 4, "lam": 5.0},
        {"local_rounds": 4, "personal_lr": 0.02},
    ],
    "perfedavg": [{}, {"alpha": 0.1}, {"first_order": True}],
    "fedproto": [{}],  # the weights that all started from; what its options do: test_fedproto.py
    "fedrod": [{}, {"gamma": 0.5}],
    "fedbn": [{"server_lr": 0.5}],  # on a model with BatchNorm: test_fedbn.py
    "lg_fedavg": [{}, {"server_lr": 0.5}],
    "fedrep": [{}, {"head_init": "uniform01"}, {"head_epochs": 0}, {"body_epochs": 2}],
    "fedbabu": [{}, {"weighting": "samples"}, {"head_init": "orthogonal"}, {"train_head": True}, {"server_lr": 0.5}],
    "fedrecon": [
        {},
        *(
            {"recon_steps": 3, **fields}
            for fields in (
                {},
                {"head_init": "uniform01"},
                {"recon_lr": 0.01},
                {"query_steps": 3},
                {"support_frac": 0.8},
                {"support_frac": 1.0},
                {"reset_head": False},
                {"grad_only": True},
                {"server_lr": 0.5},
                {"server_lr": 0.5, "server_optimizer": "adam"},
                {"server_lr": 0.5, "server_optimizer": "yogi"},
            )
        ),
    ],
    "cbfl": [
        {},
        {"lam": 2.0},
        {"beta": 0.0},
        {"refresh": 1},
        {"fake_batch": 9},
        {"sampler": "uniform"},
        {"sampler": "fewest", "fewest": 2},
        {"sampler": "exact"},
        {"fake_loss": "ce"},
        {"temperature": 1.0},
        {"kd_direction": "student_teacher"},
        {"teacher": "current"},
        {"teacher": "current", "gen_scope": "client"},
        {"generator": "gaussian_noise"},
        {"generator": "dcgan"},
        {"gen_steps": 4},
        {"gen_batch": 9},
        {"gen_lr": 0.01},
        {"gen_width": 6},
        {"gen_bn_eps": 1e-5},
        {"noise": 6},
    ],
    "ccvr": [{}, {"epochs": 0, "init": "random"}],
    "iid_calibration": [{}, {"epochs": 0, "init": "random"}],
    "answers": [{}],  # the weights that all started from; what it asks for: test_answers.py
    "skd1": [
        {},
        {"alpha": 0.9},
        {"temperature": 1.0},
        {"tau_squared": True},
        {"kd_reduce": "mean"},
        {"only_relevant": True},
        {"epochs": 3},
        {"batch_size": 5},
        {"lr": 0.02},
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"optimizer": "adam", "lr": 0.001},
        {"schedule": "constant"},
    ],
    "skd2": [{}, {"centre": False}, {"alpha": 0.9}, {"temperature": 1.0}],
    "uhc": [{}, {"kd_reduce": "mean"}, {"only_relevant": True}, {"alpha": 0.9}, {"temperature": 1.0}],
    "cfl_amalgam": [
        {},
        {"centre": True},
        {"answer_weight": 0.5},
        {"feature_weight": 0.0},
        {"decoder_weight": 0.0},
        {"optimizer": "sgd"},
        {"lr": 0.01},
        {"weight_decay": 0.1},
    ],
    "cbhma": [
        {},
        {"r_mode": "raw"},
        {"r_mode": "softmax"},
        {"r_mode": "softmax", "r_temperature": 1.0},
        {"row_weight": False},
        {"g_power": 4.0},
        {"kd_reduce": "mean"},
    ],
    "cbhma_e": [{}, {"r_mode": "softmax"}, {"row_weight": False}, {"centre": False}],
}


def fedavg_beside(other: Experiment, setting: dict[str, Any]) -> Experiment:
    """FedAvg in the same setting, on the model that ``other`` has."""
    return experiment(**{**setting, "model": MODELS.dump(other.model)})


def test_every_algorithm_has_its_rows() -> None:
    """Kills: registering an algorithm without saying what it reduces to."""
    assert set(FURTHER) | {name for name, settings in DECLARED.items() if settings} == set(ALGORITHMS) == set(DIFFERS)


@each("name", FURTHER)
def test_what_reduces_by_itself_is_declared(name: str) -> None:
    """Kills: a value that makes an algorithm FedAvg in any setting, and is not declared where the field is."""
    anywhere = [fields for fields, setting in FURTHER[name] if setting == FULL and len(fields) == 1]
    assert not anywhere or name in QUALIFIED


SOME: dict[str, Any] = {"local": {"epochs": 1}}
RunOf = Callable[..., Driven]


def every_class() -> Assignment:
    """Clients that all have all classes."""
    order = np.argsort(dataset().train.labels, kind="stable")
    return Assignment(tuple(np.sort(order[first::5]) for first in range(5)))


def four() -> Assignment:
    """Clients of all classes, of two, of one class in a batch that is not full, and of one row."""
    rows = [np.flatnonzero(dataset().train.labels == number) for number in range(4)]
    parts = [[part[:5] for part in rows], [rows[0][5:12], rows[1][5:11]], [rows[2][5:12]], [rows[3][5:6]]]
    return Assignment(tuple(np.sort(np.concatenate(part)) for part in parts))


PARTITIONS: dict[str, Callable[[], Assignment | None]] = {
    "eight": lambda: None,
    "four": four,
    "every class everywhere": every_class,
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """The run of an experiment, once for all tests that compare it with another one."""
    folder, runs = tmp_path_factory.mktemp("runs"), dict[tuple[str, str], Driven]()

    def run(config: Any, clients: str = "eight") -> Driven:
        """``clients``: one of PARTITIONS."""
        key = config.digest, clients
        if key not in runs:
            runs[key] = drive(folder / f"{config.digest}-{clients}", config, parts=PARTITIONS[clients]())
        return runs[key]

    return run


def with_executors() -> list[Any]:
    """Each row under each executor that ``auto`` may stand for with its model."""
    rows = [(name, fields, setting) for name, rows in REDUCES.items() for fields, setting in rows]
    return [
        (name, fields, setting, executor)
        for name, fields, setting in rows
        for executor in ("loop", "block")
        if executor == "loop" or not ("model" in setting or name in BY_LOOP or fields is FIRST_OF_MOON)
    ]


@pytest.mark.parametrize(
    ("name", "fields", "setting", "executor"),
    with_executors(),
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)) or "default",
)
def test_reduces_to_fedavg(
    run_of: RunOf, name: str, fields: dict[str, Any], setting: dict[str, Any], executor: str
) -> None:
    """Kills: a term that does not vanish at its neutral value, a wrong start of the control variates, a mean formed
    in another order or precision than FedAvg's; a hook that does nothing and has a way of its own all the same."""
    clients = setting.get("partition", "eight")
    changes = {**({} if setting is EVERY_CLASS else setting), "execution": {"executor": executor}}
    config = experiment_of(name, fields, **changes)
    assert run_of(config, clients).sha == run_of(fedavg_beside(config, changes), clients).sha


def test_the_ways_of_executors_differ(run_of: RunOf) -> None:
    """Kills: rows under ``block`` that are run by ``loop`` after all; an executor of ``auto`` that no row is under."""
    assert set(get_args(get_type_hints(default_executor)["return"])) == {
        "loop",
        "block",
        "graph",
    }
    shas = {run_of(experiment(execution={"executor": executor})).sha for executor in ("loop", "block")}
    assert len(shas) == 2


NEUTRAL = {
    name: cells[-1]
    for line in (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text().splitlines()
    if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
    for name in re.findall(r"`(\w+)`", cells[0])
}


@each("name", ALGORITHMS)
def test_the_page_promises_what_is_tested(name: str) -> None:
    """Kills: a neutral value that the page names and no row tries, or a row of which it says nothing; a promise "to the
    bit" that holds under some executors and does not say so."""
    told = NEUTRAL[name]
    is_fedavg = "FedAvg" in told or "changes nothing" in told or name == "fedavg"
    promised = is_fedavg and "but for rounding" not in told
    assert promised == bool(REDUCES[name])
    assert ("executor=loop" in told) == (name in BY_LOOP)
    rows = {f"{field}={written(value)}" for row, _ in REDUCES[name] for field, value in row.items()}
    named = {value for value in re.findall(r"`([\w.]+=[^`]+)`", told) if not value.startswith("execution.")}
    assert not promised or named <= rows


def written(value: Any) -> str:
    """A value as the page writes it."""
    return f"{value:g}" if type(value) is float else str(value).lower()


@pytest.mark.slow
@each("name, fields", [(name, fields) for name, rows in DIFFERS.items() for fields in rows])
def test_differs_from_fedavg(run_of: RunOf, name: str, fields: dict[str, Any]) -> None:
    """Kills: a term that is never added (the commonest silent bug of federated code)."""
    config = experiment_of(name, fields, **SOME)
    fedavg, other = run_of(fedavg_beside(config, SOME), "four"), run_of(config, "four")
    difference = torch.linalg.vector_norm(other.server["weights"] - fedavg.server["weights"])
    assert difference > 1e-6


@pytest.mark.slow
@each("name", [name for name, rows in DIFFERS.items() if len(rows) > 1])
def test_options_differ_from_each_other(run_of: RunOf, name: str) -> None:
    """Kills: an option that is read nowhere."""
    shas = [run_of(experiment_of(name, fields, **SOME), "four").sha for fields in DIFFERS[name]]
    assert len(set(shas)) == len(shas)
