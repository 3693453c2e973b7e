"""FedCM, FedACG, FedExP and q-FedAvg: whole runs against their algorithms written out, and what no full batch shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.fedcm import FedCM
from tests.support.full_batches import LR, STEPS, Driven, drive, experiment, federation
from tests.support.pencil import Federation, quadratic
from tests.support.plain_torch import Own, close, cross_entropy, descend, logits, owns

ALPHA, LAM, MU, EPSILON = 0.3, 0.7, 0.4, 0.002
Server = dict[str, Tensor]


def risk(own: Own) -> Callable[[Tensor], Tensor]:
    return lambda w: cross_entropy(logits(w, own.x), own.y)


def mean(own: Sequence[Own], values: Sequence[Tensor]) -> Tensor:
    """By rows."""
    total = sum(one.size for one in own)
    return torch.stack([one.size / total * value for one, value in zip(own, values, strict=True)]).sum(0)


def fedcm(server: Server, own: Sequence[Own]) -> Server:
    w, direction = server["weights"], server.get("direction", torch.zeros_like(server["weights"]))
    ends = [descend(lambda y, one=one: ALPHA * risk(one)(y) + (1 - ALPHA) * (direction @ y), w) for one in own]
    gone = mean(own, ends) - w
    return {"weights": w + gone, "direction": -gone / (LR * STEPS)}


def fedacg(server: Server, own: Sequence[Own]) -> Server:
    w, m = server["weights"], server.get("velocity", torch.zeros_like(server["weights"]))
    ahead = w + LAM * m
    ends = [descend(lambda y, one=one: risk(one)(y) + MU / 2 * (y - ahead).square().sum(), ahead) for one in own]
    m = LAM * m + mean(own, [end - ahead for end in ends])
    return {"weights": w + m, "velocity": m}


def fedexp(server: Server, own: Sequence[Own]) -> Server:
    w = server.get("last", server["weights"])
    updates = [descend(risk(one), w) - w for one in own]
    update, square = mean(own, updates), mean(own, [one @ one for one in updates])
    eta = max(1.0, (square / (2 * (update @ update + EPSILON))).item())
    last, extrapolation = w + eta * update, torch.tensor(eta, dtype=torch.float64)
    return {"weights": (w + last) / 2, "last": last, "extrapolation": extrapolation}


def qfedavg(q: float, weighting: str) -> Callable[[Server, Sequence[Own]], Server]:
    """Algorithm 2 as printed, with Delta_k and h_k."""

    def step(server: Server, own: Sequence[Own]) -> Server:
        w, above, below = server["weights"], torch.zeros_like(server["weights"]), 0.0
        for one in own:
            loss, gradient = risk(one)(w).item(), (w - descend(risk(one), w)) / LR  # F_k, L (w - w_k)
            count = one.size if weighting == "samples" else 1
            above = above + count * loss**q * gradient
            below += count * (q * loss ** (q - 1) * (gradient @ gradient).item() + loss**q / LR)
        return {"weights": w - above / below}

    return step


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"name": "fedcm", "alpha": ALPHA}, fedcm),
        ({"name": "fedacg", "server_momentum": LAM, "mu": MU}, fedacg),
        ({"name": "fedexp", "epsilon": EPSILON}, fedexp),
        ({"name": "qfedavg", "q": 2.0}, qfedavg(2.0, "samples")),
        ({"name": "qfedavg", "q": 0.5, "weighting": "uniform"}, qfedavg(0.5, "uniform")),
    ],
    ids=["fedcm", "fedacg", "fedexp", "qfedavg", "qfedavg uniform"],
)
def test_a_run_is_the_algorithm_written_out(tmp_path: Path, fields: dict[str, Any], step: Any, executor: str) -> None:
    """Kills: a sign; a share and its complement exchanged; a direction in units of an update; a momentum of clients'
    ends; losses of the end, or in training; a mean without the clients' sizes; anything forgotten between rounds."""
    run = drive(tmp_path, experiment(fields, rounds=4, execution={"executor": executor}))
    own, server = owns(federation()), {"weights": run.first["weights"]}
    for cohort in run.cohorts:
        server = step(server, [own[k] for k in cohort])
    for name, wanted in server.items():
        close(run.server[name], wanted)
    assert (run.server["weights"] - run.first["weights"]).abs().max() > 0.01


def scalars(run: Driven, name: str) -> list[float]:
    return [dict(row)[name] for row in run.folder.frame("rounds")["scalars"]]


def test_fedexp_goes_further_where_clients_disagree(tmp_path: Path) -> None:
    """Kills: a step that is always 1, or that may be shorter; one that is written nowhere."""
    etas = scalars(drive(tmp_path / "near", experiment({"name": "fedexp", "epsilon": 1e-9}, rounds=6)), "extrapolation")
    assert max(etas) > 1 and min(etas) >= 1
    alone = experiment({"name": "fedexp", "epsilon": 1e-9}, participation={"count": 1})
    # the mean square of one update is that of the mean, and half of it is below 1
    assert scalars(drive(tmp_path / "alone", alone), "extrapolation") == [1.0] * 3


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedcm_of_clients_with_other_numbers_of_steps(monkeypatch: pytest.MonkeyPatch, momentum: float) -> None:
    """Kills: the direction by one client's steps, or by bare steps under momentum: of gradients that are everywhere g
    it is g, whatever the steps."""
    monkeypatch.setattr(FedAvg, "loss", lambda self, net, batch, *_: 3 * net.head(batch.x.flatten(1) * 0 + 1).mean())
    clients = Federation(FedCM(alpha=1.0), [[1.0], [4.0] * 2], [2, 9], local={"momentum": momentum})
    clients.round()
    assert clients.server["direction"].tolist() == pytest.approx([3.0, 3.0], rel=1e-12)


def test_fedcm_keeps_its_direction_where_nobody_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a division by no steps, which is found rounds later."""
    monkeypatch.setattr(FedAvg, "loss", quadratic())
    clients = Federation(FedCM(), [[1.0]], [1])
    clients.round()
    before = clients.server["direction"].clone()
    monkeypatch.setattr(FedCM, "phases", lambda self, context: ())
    clients.round()
    assert torch.equal(clients.server["direction"], before) and before[0] != 0
