"""What every algorithm must reduce to, and where it must differ.

A new algorithm adds a row to REDUCES (settings under which it is FedAvg to the bit; an empty tuple with a reason in
a comment if there are none) and a row to DIFFERS (what it does with its defaults).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from tests.tiny import BATCHNORM, drive, experiment, experiment_of

FULL: dict[str, Any] = {}
PART: dict[str, Any] = {"participation": {"count": 3}}
ONE_ROUND: dict[str, Any] = {"rounds": 1}
MOMENTUM: dict[str, Any] = {"local": {"momentum": 0.9, "weight_decay": 1e-3, "lr": 0.02}}

# algorithm -> (its fields, the setting) under which its weights are FedAvg's to the bit
REDUCES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "fedavg": [({"server_lr": 1.0}, FULL)],
    "fedprox": [({"mu": 0.0}, FULL), ({"mu": 0.0}, PART), ({"mu": 0.0}, {**MOMENTUM, **BATCHNORM})],
    # control variates start at zero, so the first round corrects nothing
    "scaffold": [
        ({}, ONE_ROUND),
        ({"option": "I"}, ONE_ROUND),
        ({"weighting": "cbfl_code"}, ONE_ROUND),
        ({"option": "I"}, {**ONE_ROUND, **BATCHNORM}),
        ({}, {**ONE_ROUND, **MOMENTUM}),
    ],
    "fedmix": [({"mix": 0.0}, FULL), ({"mix": 0.0}, PART), ({"mix": 0.0}, {**MOMENTUM, **BATCHNORM})],
    "naivemix": [({"mix": 0.0}, FULL), ({"mix": 0.0}, PART), ({"mix": 0.0}, {**MOMENTUM, **BATCHNORM})],
    "mixup_local": [({"gamma": 0.0}, FULL), ({"gamma": 0.0}, {**MOMENTUM, **BATCHNORM})],
    # after FedAvg; no epochs leave what it has come to
    "ccvr": [({"epochs": 0}, FULL), ({"epochs": 0, "cov": "shared"}, {**PART, **BATCHNORM})],
    "iid_calibration": [({"epochs": 0}, FULL), ({"epochs": 0, "fraction": 1.0}, {**PART, **BATCHNORM})],
}

# algorithm -> fields with which three rounds must end elsewhere than FedAvg's
DIFFERS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{"server_lr": 0.5}],
    "fedprox": [{}, {"mu": 1.0}],
    "scaffold": [{}, {"option": "I"}, {"weighting": "uniform"}, {"weighting": "cbfl_code"}],
    "fedmix": [{}, {"taylor_coef": "one"}, {"mash": 5}],
    "naivemix": [{}, {"mash": 5}],
    "mixup_local": [{}, {"gamma": 0.2}],
    "ccvr": [{}, {"epochs": 0, "init": "random"}],
    "iid_calibration": [{}, {"epochs": 0, "init": "random"}],
}


def test_every_algorithm_has_its_rows() -> None:
    """Kills: registering an algorithm without saying what it reduces to."""
    assert set(REDUCES) == set(ALGORITHMS) == set(DIFFERS)


@pytest.mark.parametrize(
    ("name", "fields", "setting"),
    [(name, fields, setting) for name, rows in REDUCES.items() for fields, setting in rows],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)) or "default",
)
def test_reduces_to_fedavg(tmp_path: Path, name: str, fields: dict[str, Any], setting: dict[str, Any]) -> None:
    """Kills: a term that does not vanish at its neutral value, a wrong start of the control variates, a mean formed
    in another order or precision than FedAvg's."""
    fedavg = drive(tmp_path / "a", experiment(**setting))
    other = drive(tmp_path / "b", experiment_of(name, fields, **setting))
    assert other.sha == fedavg.sha


@pytest.mark.parametrize(
    ("name", "fields"), [(name, fields) for name, rows in DIFFERS.items() for fields in rows], ids=str
)
def test_differs_from_fedavg(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    """Kills: a term that is never added (the commonest silent bug of federated code)."""
    fedavg = drive(tmp_path / "a", experiment(participation={"count": 5}))
    other = drive(tmp_path / "b", experiment_of(name, fields, participation={"count": 5}))
    difference = torch.linalg.vector_norm(other.server["weights"] - fedavg.server["weights"])
    assert difference > 1e-6


def test_options_of_scaffold_differ_from_each_other(tmp_path: Path) -> None:
    """Kills: an option that is read nowhere."""
    settings = [{}, {"option": "I"}, {"weighting": "uniform"}, {"weighting": "cbfl_code"}]
    shas = {
        drive(
            tmp_path / str(number), experiment(algorithm={"name": "scaffold", **fields}, participation={"count": 4})
        ).sha
        for number, fields in enumerate(settings)
    }
    assert len(shas) == len(settings)
