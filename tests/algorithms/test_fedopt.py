"""FedAdam and FedYogi: Algorithm 2 with a pencil, and whole runs against it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedopt import FedAdam, FedYogi
from tests.support.full_batches import drive, experiment, federation
from tests.support.plain_torch import close, cross_entropy, descend, logits, owns


def step_of(algorithm: FedAdam, moment2: float, update: float) -> dict[str, float]:
    """One step of a server whose only weight is at 1."""
    entries = {"weights": 1.0, "moment1": 0.5, "moment2": moment2}
    server = {name: torch.tensor([value], dtype=torch.float64) for name, value in entries.items()}
    pooled: Any = type("Pooled", (), {"mean": {"weights": server["weights"] + update}})()
    context: Any = None
    return {name: tensor.item() for name, tensor in algorithm.aggregate(server, pooled, context).items()}


FIELDS: dict[str, Any] = {"server_lr": 0.1, "beta1": 0.8, "beta2": 0.75, "tau": 0.5}


@pytest.mark.parametrize(
    ("kind", "moment2", "update", "wanted"),
    [
        (FedAdam, 4.0, 2.0, 4.0),  # 3/4 4 + 1/4 4
        (FedAdam, 4.0, 4.0, 7.0),  # 3/4 4 + 1/4 16
        (FedYogi, 4.0, 4.0, 8.0),  # 4 + 1/4 16, since D^2 is larger
        (FedYogi, 4.0, 1.0, 3.75),  # 4 - 1/4 1, since it is smaller
        (FedYogi, 4.0, 2.0, 4.0),  # sign(0) = 0
    ],
)
def test_a_step_by_hand(kind: type[FedAdam], moment2: float, update: float, wanted: float) -> None:
    """Kills: a sign, a bias correction, tau under the root, Yogi's sign the other way; an update that is before minus
    after. m = 0.8 0.5 + 0.2 D."""
    after = step_of(kind(**FIELDS), moment2, update)
    first = 0.4 + 0.2 * update
    assert after["moment1"] == pytest.approx(first, rel=1e-12)
    assert after["moment2"] == pytest.approx(wanted, rel=1e-12)
    assert after["weights"] == pytest.approx(1 + 0.1 * first / (math.sqrt(wanted) + 0.5), rel=1e-12)


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_a_run_is_algorithm_2(tmp_path: Path, name: str, executor: str) -> None:
    """Kills: moments that are forgotten between rounds, a second moment that starts at 0, moments of clients."""
    run = drive(tmp_path, experiment({"name": name, **FIELDS}, rounds=4, execution={"executor": executor}))
    own, w = owns(federation()), run.first["weights"]
    m, v = torch.zeros_like(w), torch.full_like(w, 0.25)
    for cohort in run.cohorts:
        total = sum(own[k].size for k in cohort)
        update = torch.zeros_like(w)
        for k in cohort:

            def risk(weights: Tensor, k: int = k) -> Tensor:
                return cross_entropy(logits(weights, own[k].x), own[k].y)

            update = update + own[k].size / total * (descend(risk, w) - w)
        m = 0.8 * m + 0.2 * update
        if name == "fedadam":
            v = 0.75 * v + 0.25 * update**2
        else:
            v = torch.where(v > update**2, v - 0.25 * update**2, v + 0.25 * update**2)
        w = w + 0.1 * m / (v**0.5 + 0.5)
    close(run.server["weights"], w)
    close(run.server["moment2"], v)


def test_a_tau_that_outweighs_all_updates_is_fedavg_with_a_rate(tmp_path: Path) -> None:
    """Kills: a start of v other than tau^2: eta / (2 tau) D is then FedAvg's step with server_lr=1/2, in each round."""
    yogi = {"name": "fedyogi", "server_lr": 1e6, "beta1": 0.0, "tau": 1e6}
    one = drive(tmp_path / "yogi", experiment(yogi))
    other = drive(tmp_path / "fedavg", experiment({"name": "fedavg", "server_lr": 0.5}))
    torch.testing.assert_close(one.server["weights"], other.server["weights"], rtol=0, atol=1e-9)
