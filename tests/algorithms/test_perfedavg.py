"""Per-FedAvg: exact oracles in one dimension and on a network, adaptation, and wrong versions as mutants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, hessian

from algorithms.fedavg import FedAvg
from algorithms.perfedavg import PerFedAvg, halves
from engine.algorithm import Algorithm, Batch, Context, Net, Phase, Tensors, seeds
from engine.base.errors import ConfigError
from engine.data.samples.batches import orders
from engine.models import MLP, ResNet8
from tests.support.bench import Bench
from tests.support.pencil import Federation, quadratic
from tests.support.tiny import experiment

CURVATURE, RATE, START = 2.0, 0.1, 0.7
TARGETS = [[1.0, 4.0, -3.0, 2.5, 0.25], [4.0], [-1.0, 0.5, 3.0], [2.0, -2.0, 5.0, 1.0]]
VARIANTS = pytest.mark.parametrize("first_order", [False, True], ids=["second_order", "first_order"])


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Algorithm, "loss", quadratic(CURVATURE))  # the contract's, which adaptation takes


def check_by_hand(algorithm: PerFedAvg, steps: int = 6) -> None:
    """f = a/2 mean (w - x)^2 over the rows of a batch, so with the means m, m' of its halves a step's gradient is
    (1 - alpha a) a (w - alpha a (w - m) - m'), in first order without the factor. Batches of 5, 1, 3 and 4 rows."""
    federation = Federation(algorithm, TARGETS, [steps] * len(TARGETS), lr=RATE, start=START)
    chain = 1.0 if algorithm.first_order else 1 - algorithm.alpha * CURVATURE
    for client, targets in enumerate(TARGETS):
        rows, w = torch.tensor(targets, dtype=torch.float64), START
        passes = orders(len(rows), 1000, "keep", seeds.generator(0, "batches", 1, client))
        for _ in range(steps):
            x, half = rows[next(passes)[0]], len(rows) // 2
            inner, outer = (x[:half], x[half:]) if half >= 2 else (x, x)
            moved = w - algorithm.alpha * CURVATURE * (w - inner.mean().item())
            w -= RATE * chain * CURVATURE * (moved - outer.mean().item())
        assert federation.train(client).upload["weights"][0].item() == pytest.approx(w, rel=1e-12)


def check_adaptation(algorithm: PerFedAvg, **local: Any) -> None:
    """A client would use w - alpha grad f(w) of all its rows, and keeps nothing of it."""
    federation = Federation(algorithm, TARGETS, [1] * len(TARGETS), lr=RATE, start=START, local=local)
    for client, targets in enumerate(TARGETS):
        wanted = START - algorithm.alpha * CURVATURE * (START - sum(targets) / len(targets))
        assert federation.own(client) == pytest.approx(wanted, rel=1e-12)
    assert federation.weight == START
    assert not any(federation.states)


def check_on_a_network(algorithm: PerFedAvg) -> None:
    """(I - alpha hess f(w, D)) grad f(w - alpha grad f(w, D), D'), the Hessian [P, P] written out by torch.func."""
    bench = Bench(MLP(hidden=(3,)))
    batch = bench.batch(0)
    start, names = bench.start["weights"], bench.net.names
    shapes = [parameter.shape for parameter in bench.net.parameters]

    def loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        pieces = weights.split([shape.numel() for shape in shapes])
        tensors = {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
        return F.cross_entropy(functional_call(bench.net.model, tensors, (x,)), y)

    inner, outer = halves(batch)
    moved = start - algorithm.alpha * grad(loss)(start, inner.x, inner.y)
    wanted = grad(loss)(moved, outer.x, outer.y)
    if not algorithm.first_order:
        wanted = wanted - algorithm.alpha * hessian(loss)(start, inner.x, inner.y) @ wanted
    for _ in range(2):  # the first leaves nothing behind
        got = bench.net.backward(algorithm.loss(bench.net, batch, bench.start, {}))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert torch.equal(bench.net.weights, start)


@pytest.mark.usefixtures("pencil")
@VARIANTS
@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_by_hand(alpha: float, first_order: bool) -> None:
    """Kills: one half for both, no half for one; a Hessian that is left out, or in where it should be left out."""
    check_by_hand(PerFedAvg(alpha=alpha, first_order=first_order))


@VARIANTS
def test_on_a_network(first_order: bool) -> None:
    """Kills: a Hessian of its diagonal alone, a step of some parameters only."""
    check_on_a_network(PerFedAvg(alpha=0.5, first_order=first_order))


def test_through_batchnorm() -> None:
    """Kills: statistics taken for constants: the slope along a direction is that of finite differences."""
    bench = Bench(ResNet8())
    algorithm, batch = PerFedAvg(alpha=0.2), bench.batch(0)
    bench.net.train(True)
    got = bench.net.backward(algorithm.loss(bench.net, batch, bench.start, {})).clone()
    direction = torch.randn(len(got), generator=seeds.generator(0, "direction"), dtype=torch.float64)
    direction /= direction.norm()
    values = []
    for step in (1e-6, -1e-6):
        bench.net.load(bench.start["weights"] + step * direction, bench.start["buffers"])
        values.append(algorithm.loss(bench.net, batch, bench.start, {}).item())
    assert got @ direction == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


def test_halves() -> None:
    """Kills: a row in both halves or in none, a half of one row, which BatchNorm refuses."""
    bench = Bench(MLP(hidden=(3,)), sizes=(5, 4, 3, 1))
    for client, sizes in enumerate(([2, 3], [2, 2], [3, 3], [1, 1])):
        batch = bench.batch(client)
        inner, outer = halves(batch)
        assert [len(half.y) for half in (inner, outer)] == sizes
        for field in ("x", "y"):
            parts = [getattr(half, field) for half in (inner, outer)]
            whole = torch.cat(parts) if sum(sizes) == len(batch.y) else parts[0]
            assert torch.equal(whole, getattr(batch, field))


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9}, {"batch_size": 2, "steps": 5}], ids=str)
def test_adaptation(local: dict[str, Any]) -> None:
    """Kills: a step of the meta-loss, of one batch or of the local rate; more than one step."""
    check_adaptation(PerFedAvg(alpha=0.1), **local)
    check_adaptation(PerFedAvg(alpha=0.0), **local)


@pytest.mark.parametrize(
    ("fields", "local", "message"),
    [
        ({"alpha": -0.1}, {}, "algorithm.alpha=-0.1: must be at least 0; 0 is FedAvg"),
        ({}, {"optimizer": "adam"}, "local.optimizer=adam: is not for perfedavg, whose clients adapt by one plain"),
        (
            {},
            {"momentum": 0.9, "nesterov": True},
            "local.nesterov=True: is not for perfedavg, whose clients adapt by one plain gradient step; "
            "set local.nesterov=false",
        ),
        ({}, {"batch_size": "full"}, "local.batch_size=full: is not for perfedavg, whose loss of many rows is no mean"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], local: dict[str, Any], message: str) -> None:
    """Kills: a missing check; an adaptation that is no gradient step; a loss of parts of a batch."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "perfedavg", **fields}, local=local)
    assert str(error.value).startswith(message)


def test_without_adaptation_any_optimizer_will_do() -> None:
    """Kills: a check of what is not done."""
    assert experiment(algorithm={"name": "perfedavg", "alpha": 0.0}, local={"optimizer": "adam", "batch_size": "full"})


# --- mutants ------------------------------------------------------------------------------------------


class OneHalfForBoth(PerFedAvg):
    """The rows of the inner step once more."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        stepped = net.stepped(FedAvg.loss(self, net, batch, received, state), self.alpha, self.first_order)
        return FedAvg.loss(self, stepped, batch, received, state)


class FirstOrderOnly(PerFedAvg):
    """A graph that is cut where it is needed: Hessian-free by accident."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        inner, outer = halves(batch)
        stepped = net.stepped(FedAvg.loss(self, net, inner, received, state), self.alpha, True)
        return FedAvg.loss(self, stepped, outer, received, state)


class BothLosses(PerFedAvg):
    """The inner loss is minimised as well: two steps of SGD, as in Reptile."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return super().loss(net, batch, received, state) + FedAvg.loss(self, net, halves(batch)[0], received, state)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("mutant", [OneHalfForBoth, FirstOrderOnly, BothLosses])
def test_wrong_losses_are_killed(mutant: type[PerFedAvg]) -> None:
    with pytest.raises(AssertionError):
        check_by_hand(mutant(alpha=0.1))


def test_a_graph_that_is_cut_is_killed_on_a_network() -> None:
    with pytest.raises(AssertionError):
        check_on_a_network(FirstOrderOnly(alpha=0.5))


class AdaptsByTheMetaLoss(PerFedAvg):
    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(name="other", steps=1, batch="full", lr=self.alpha),)


class AdaptsForAnEpoch(PerFedAvg):
    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(name="adapt", epochs=1, lr=self.alpha),)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("mutant", [AdaptsByTheMetaLoss, AdaptsForAnEpoch])
def test_wrong_adaptations_are_killed(mutant: type[PerFedAvg]) -> None:
    with pytest.raises(AssertionError):
        check_adaptation(mutant(alpha=0.1), batch_size=2)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9}], ids=str)
def test_after_local_work_a_client_adapts_too(local: dict[str, Any]) -> None:
    """Kills: a client that is measured with weights that the method never uses; a step that is sent to the server."""
    for alpha in (0.1, 0.0):
        federation = Federation(PerFedAvg(alpha=alpha), TARGETS, [4] * len(TARGETS), lr=RATE, start=START, local=local)
        for client, targets in enumerate(TARGETS):
            trained = federation.train(client)
            w = trained.upload["weights"][0].item()
            wanted = w - alpha * CURVATURE * (w - sum(targets) / len(targets))
            assert trained.personal.weights[0].item() == pytest.approx(wanted, rel=1e-12)
