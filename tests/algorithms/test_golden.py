"""Golden values with their derivation, and the exact oracles of the algorithms.

Most run the real trainer on a linear model in float64, where each step can be followed with a pencil.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from algorithms.scaffold import Scaffold
from engine.algorithm import Algorithm, Batch, Pooled, Tensors, accumulation, seeds
from engine.client.steps.client_round import ClientTask
from engine.client.steps.flat_net import FlatNet
from engine.client.sums import WeightedSum
from engine.data import Assignment, Dataset
from engine.data.samples.batches import Rows, orders
from engine.experiment import Local
from engine.models import build_model
from tests.support.pencil import CPU, context, quadratic, regression
from tests.support.tiny import SIZES, assignment, dataset, drive, experiment


def one_client(
    algorithm: Algorithm, target: float, steps: int, start: float = 0.0, lr: float = 0.1, **local: Any
) -> Any:
    trainer, net = regression([target])
    weights = torch.tensor([start, 0.0], dtype=torch.float64)
    received = {"weights": weights, "buffers": net.buffers, "control": torch.zeros(2, dtype=torch.float64)}
    section = Local(steps=steps, lr=lr, batch_size=1, **local)
    return trainer.train(
        ClientTask(algorithm, section, 0, torch.tensor([0]), context(net, lr), received, {}, newcomer=True)
    )


def test_sum_of_two_clients_by_hand() -> None:
    """Kills: an unweighted mean, weights over all clients instead of the cohort.

    Client 0 with 1 row ends at (2, 4), client 1 with 3 rows at (6, 8): (1*2 + 3*6)/4 = 5, (1*4 + 3*8)/4 = 7.
    """
    sums = WeightedSum()
    for place, (rows, end) in enumerate(((1, [2.0, 4.0]), (3, [6.0, 8.0]))):
        tensor = torch.tensor(end)
        sums.add(place, {"weights": tensor}, torch.zeros(0), float(rows), rows)
    server = {"weights": torch.zeros(2), "buffers": torch.zeros(0)}
    total = sums.whole()
    pooled = Pooled(mean=total.mean(), weight=total.weight, count=2)
    net = regression([0.0])[1]
    assert FedAvg().aggregate(server, pooled, context(net))["weights"].tolist() == [5.0, 7.0]
    half = FedAvg(server_lr=0.5).aggregate(server, pooled, context(net))
    assert half["weights"].tolist() == [2.5, 3.5]


def test_identical_clients_give_the_same_model() -> None:
    """Kills: a mean that rounds (O-1): 3 and 7 rows of the same float32 vector must give that vector."""
    vector = torch.randn(1000, generator=seeds.generator(0, "test"))
    sums = WeightedSum()
    for place, rows in enumerate((3, 7, 1021)):
        sums.add(place, {"weights": vector}, torch.zeros(0), float(rows), rows)
    assert torch.equal(sums.whole().mean()["weights"].float(), vector)


@pytest.mark.parametrize(
    ("momentum", "values"),
    [  # spec 5.2
        (0.0, {1: 1, 5: 5, 100: 100}),
        (0.5, {1: 1, 2: 2.5, 3: 4.25, 5: 8.0625, 10: 18.001953125, 50: 98.0}),
        (0.9, {1: 1, 2: 2.9, 3: 5.61, 5: 13.1441, 10: 41.3810596, 50: 410.46384, 100: 910.002391}),
    ],
)
def test_accumulation_of_momentum(momentum: float, values: dict[int, float]) -> None:
    """Kills: dividing by the number of steps under momentum; an index off by one in the geometric sum."""
    for steps, value in values.items():
        assert accumulation(momentum, steps) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_accumulation_is_what_the_optimizer_does(nesterov: bool) -> None:
    """Kills: a formula that is not torch's SGD. A constant gradient of 1 for 7 steps at lr 1."""
    weight = torch.zeros(1, dtype=torch.float64)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=nesterov)
    for _ in range(7):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert accumulation(0.9, 7, nesterov) == pytest.approx(-weight.item(), rel=1e-12)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("curvature", [1.0, 2.0])
def test_fedprox_on_a_quadratic(monkeypatch: pytest.MonkeyPatch, mu: float, curvature: float) -> None:
    """Kills: a missing half, a missing square, mu applied to the received weights (O-X3).

    f = a/2 (y - b)^2 from w: y_tau = w + (1 - (1 - eta (a + mu))^tau) a (b - w) / (a + mu).
    """
    monkeypatch.setattr(FedProx, "loss", quadratic(curvature))
    w, b, eta, tau = 0.7, 3.0, 0.1, 6
    end = one_client(FedProx(mu=mu), b, tau, start=w, lr=eta).upload["weights"][0].item()
    factor = 1 - (1 - eta * (curvature + mu)) ** tau
    assert end == pytest.approx(w + factor * curvature * (b - w) / (curvature + mu), rel=1e-12)


def test_fedprox_of_one_step_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a penalty that is not zero at the received weights (O-X2)."""
    monkeypatch.setattr(FedAvg, "loss", quadratic())
    ends = [one_client(algorithm, 2.0, 1, start=0.3).upload["weights"] for algorithm in (FedAvg(), FedProx(mu=9.0))]
    assert torch.equal(*ends)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_control_variate_of_a_linear_loss_is_its_gradient(
    monkeypatch: pytest.MonkeyPatch, momentum: float, steps: int
) -> None:
    """Kills: division by epochs, rows or bare steps in place of the accumulated weight (O-S4)."""

    def linear(self: Any, net: Any, batch: Batch, received: Tensors, state: Tensors) -> torch.Tensor:
        return 2.5 * net.model.head.weight.sum()

    monkeypatch.setattr(Scaffold, "loss", linear)
    trained = one_client(Scaffold(), 0.0, steps, lr=0.03, momentum=momentum)
    assert trained.new_state["control"][0].item() == pytest.approx(2.5, rel=1e-12)


def test_options_agree_after_one_full_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: option I taken at the end weights, or with the correction inside (O-S3)."""
    monkeypatch.setattr(Scaffold, "loss", quadratic(3.0))
    states = [one_client(Scaffold(option=option), 2.0, 1, start=0.5).new_state["control"] for option in ("I", "II")]
    assert states[0][0].item() == pytest.approx(3.0 * (0.5 - 2.0), rel=1e-12)
    torch.testing.assert_close(*states, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_server_control_is_the_mean_of_all_clients(tmp_path: Path, weighting: str) -> None:
    """Kills: dividing by the cohort in place of all clients; a state that is not stored back (O-S1).

    At any participation, from zero: c = sum_k s_k c_k with s_k = n_k / n or 1 / N.
    """
    settings = experiment(
        algorithm={"name": "scaffold", "weighting": weighting},
        participation={"count": 3},
        rounds=5,
        execution={"actors": 0, "device": "cpu", "precision": "float64"},
    )
    run = drive(tmp_path, settings)
    controls = torch.zeros_like(run.server["control"])
    for client, size in enumerate(SIZES):
        state = run.driver.lineage.states.store.read([client])[0]
        share = size / sum(SIZES) if weighting == "samples" else 1 / len(SIZES)
        if state is not None:
            controls += share * state["control"]
    torch.testing.assert_close(run.server["control"], controls, rtol=0, atol=1e-14)
    wrong = drive(tmp_path / "wrong", settings.override(["algorithm.weighting=cbfl_code"]))
    assert (wrong.server["control"].norm() / run.server["control"].norm()) > 1.5


@pytest.mark.slow
def test_scaffold_reaches_the_optimum_where_fedavg_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a correction of the wrong sign, or stale by construction (O-S6).

    Two clients, f_0 = (y - 0)^2 / 2 and f_1 = 4 (y - 1)^2 / 2, both in every round, ten steps: the joint optimum
    is (0 + 4) / 5 = 0.8; FedAvg stops elsewhere.
    """
    curvatures = {0.0: 1.0, 1.0: 4.0}

    def loss(self: Any, net: Any, batch: Batch, received: Tensors, state: Tensors) -> torch.Tensor:
        target = batch.x.view(-1)[0]
        return curvatures[target.item()] / 2 * (net.model.head.weight.view(()) - target).square()

    monkeypatch.setattr(FedAvg, "loss", loss)
    ends = {}
    for algorithm in (FedAvg(), Scaffold()):
        trainer, net = regression([0.0, 1.0])
        where = context(net, lr=0.05)
        server = algorithm.init_server({"weights": torch.zeros(2, dtype=torch.float64)}, where)
        states: list[Any] = [{}, {}]
        for number in range(300):
            sums = WeightedSum()
            received = {**algorithm.broadcast(server, where), "buffers": net.buffers}
            for client in (0, 1):
                local = Local(steps=10, lr=0.05, batch_size=1)
                about = (algorithm, local, client, torch.tensor([client]), where, received, states[client])
                trained = trainer.train(ClientTask(*about, newcomer=number == 0))
                states[client] = trained.new_state
                sums.add(client, trained.upload, trained.buffers, trained.weight, trained.num_examples)
            total = sums.whole()
            server = algorithm.aggregate(server, Pooled(total.mean(), total.weight, 2), where)
        ends[type(algorithm)] = server["weights"][0].item()
    assert ends[Scaffold] == pytest.approx(0.8, abs=1e-9)
    assert abs(ends[FedAvg] - 0.8) > 0.02


# --- identities ---------------------------------------------------------------------------------------


def plain_training(settings: Any, data: Dataset, rounds: int) -> torch.Tensor:
    """One client by hand: a module, torch.optim.SGD made anew each round, the run's batch order, and nothing else."""
    shape = (1, 8, 8)
    model = build_model(settings.model, shape, 4, seeds.generator(settings.seed, "weights"))
    flat = FlatNet(model, CPU, torch.float32)
    net = flat.model  # a plain module from here on
    rows = Rows(data, data.train, CPU, torch.float32)
    parameters = [*net.body.parameters(), *net.head.parameters()]
    net.train()
    for number in range(1, rounds + 1):
        order = orders(
            len(rows), settings.local.batch_size, "keep", seeds.generator(settings.seed, "batches", number, 0)
        )
        optimizer = torch.optim.SGD(parameters, lr=settings.local.lr_at(number), momentum=settings.local.momentum)
        for _ in range(settings.local.epochs):
            for positions in next(order):
                x, y = rows.batch(positions)
                optimizer.zero_grad()
                F.cross_entropy(net(flat.laid_out(x)), y).backward()
                optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


# fields and rounds with which one client of an algorithm is plain training, to the bit; see also REDUCES
PLAIN: dict[str, tuple[dict[str, Any], int]] = {
    "fedavg": ({}, 3),
    "fedprox": ({"mu": 0.0}, 3),
    "scaffold": ({}, 1),
    "fedavgm": ({"server_momentum": 0.0}, 3),
    "moon": ({"mu": 0.0}, 3),
    "fedmix": ({"mix": 0.0}, 3),
    "naivemix": ({"mix": 0.0}, 3),
    "mixup_local": ({"gamma": 0.0}, 3),
    "fedser": ({"mu": 0.0}, 3),
    "clsprox": ({"mu": 0.0}, 3),
    "clsnorm": ({}, 3),
    "ditto": ({}, 3),
    "apfl": ({}, 3),
    "fedcm": ({"alpha": 1.0}, 3),
    "fedacg": ({"server_momentum": 0.0, "mu": 0.0}, 3),
    "fedexp": ({"averaged": False}, 3),
    "qfedavg": ({"q": 0.0}, 3),
    "feddecorr": ({"beta": 0.0}, 3),
    "perfedavg": ({"alpha": 0.0}, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PLAIN))
@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [12]}, {"name": "resnet8"}], ids=["mlp", "resnet8"])
def test_one_client_is_plain_training(tmp_path: Path, name: str, model: dict[str, Any]) -> None:
    """Kills: momentum kept between rounds, a decay off by one round, a gradient scaled by the batch, weights that
    the mean rounds. To the bit, for every algorithm at its neutral value (O-2; for one client SCAFFOLD corrects
    nothing)."""
    fields, rounds = PLAIN[name]
    settings = experiment(
        algorithm={"name": name, **fields},
        model=model,
        local={"batch_size": 16, "momentum": 0.9, "lr": 0.02, "lr_decay": 0.9},
        rounds=rounds,
    )
    data = dataset()
    run = drive(tmp_path, settings, parts=Assignment((np.arange(120),)))
    assert torch.equal(run.server["weights"], plain_training(settings, data, settings.rounds))


# FedDC weights clients equally, and takes the mean step twice (O-DC2); Mixup, FedSER, CBFL and Per-FedAvg have
# another loss, pFedMe another step; local training, calibrations and students have none.
NO_CENTRAL_STEP = {"cbfl", "feddc", "fedmix", "naivemix", "mixup_local", "fedser", "perfedavg", "pfedme", "local"}
NO_CENTRAL_STEP |= {"ccvr", "iid_calibration"}
# FedDyn's server steps once more, FedOpt's steps are adaptive; the others have another loss, or average no weights.
NO_CENTRAL_STEP |= {"feddyn", "fedadam", "fedyogi", "fedlc", "fedrs", "fedrod", "fedproto"}
# FedCM's first step is a tenth, FedExP's is longer, q-FedAvg's is by losses; FedDecorr and FedETF have other losses.
NO_CENTRAL_STEP |= {"fedcm", "fedexp", "qfedavg", "feddecorr", "fedetf"}
NO_CENTRAL_STEP |= {"answers", "skd1", "skd2", "uhc", "cfl_amalgam", "cbhma", "cbhma_e"}
# Personal heads and labels, or one head that is not trained: test_pflego.py and the like.
NO_CENTRAL_STEP |= {"fedsam", "ifca"}  # a gradient elsewhere, models that start elsewhere
NO_CENTRAL_STEP |= {"pflego", "fedper", "lg_fedavg", "fedrep", "fedbabu", "fedrecon", "fedavg_local"}


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in NO_CENTRAL_STEP])
def test_one_full_step_of_all_is_one_central_step(tmp_path: Path, name: str) -> None:
    """Kills: clients weighted equally, a step too many, the wrong learning rate (O-3). To 1e-6."""
    settings = experiment(algorithm={"name": name}, rounds=1, local={"epochs": 1, "batch_size": 1000, "lr": 0.3})
    data = dataset()
    run = drive(tmp_path, settings)
    model = build_model(settings.model, (1, 8, 8), 4, seeds.generator(0, "weights"))
    net = FlatNet(model, CPU, torch.float32)
    start = net.weights.clone()
    x, y = Rows(data, data.train, CPU, torch.float32).batch(torch.arange(120))
    step = start - 0.3 * net.backward(F.cross_entropy(net(x), y))
    torch.testing.assert_close(run.server["weights"], step, rtol=0, atol=1e-6)
    assert (step - start).abs().max() > 1e-2


def test_the_tiny_partition_is_what_it_says() -> None:
    """Kills: a test helper that drops rows."""
    parts = assignment(SIZES)
    assert parts.sizes().tolist() == SIZES
    assert sorted(np.concatenate(parts.clients).tolist()) == list(range(120))
