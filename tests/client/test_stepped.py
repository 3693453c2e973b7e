"""The net one gradient step further: values, gradients through the step, and BatchNorm's statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad

from engine.algorithm import Net, seeds
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.training_loop import CachedNet
from engine.models import MLP, ModelSpec, ResNet8
from tests.support.bench import Bench

RATE = 0.3
MODELS = pytest.mark.parametrize("spec", [MLP(hidden=(5,)), ResNet8()], ids=["mlp", "batchnorm"])
ORDERS = pytest.mark.parametrize("first_order", [False, True], ids=["second_order", "first_order"])
MODES = pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])


def loss_of(net: Net, bench: Bench, client: int) -> Tensor:
    batch = bench.batch(client)
    return F.cross_entropy(net(batch.x), batch.y)


def twin(spec: ModelSpec, weights: Tensor, buffers: Tensor, train: bool = False) -> FlatNet:
    """Another network at these weights."""
    net = Bench(spec).net
    net.load(weights, buffers)
    net.train(train)
    return net


def step(spec: ModelSpec, bench: Bench, train: bool, weights: Tensor, client: int) -> Tensor:
    """[P] the weights after a plain step down the client's loss."""
    net = twin(spec, weights, bench.start["buffers"], train)
    return weights - RATE * net.backward(loss_of(net, bench, client))


@MODELS
@MODES
@ORDERS
def test_it_is_the_net_after_a_step(spec: ModelSpec, train: bool, first_order: bool) -> None:
    """Kills: a step up, a step of the body or the head alone; a net that is moved itself; another mode."""
    bench = Bench(spec)
    bench.net.train(train)
    stepped = bench.net.stepped(loss_of(bench.net, bench, 0), RATE, first_order)
    moved = twin(spec, step(spec, bench, train, bench.start["weights"], 0), bench.start["buffers"], train)
    x = bench.batch(1).x
    torch.testing.assert_close(stepped(x), moved(x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(stepped.head(stepped.features(x)), moved(x), rtol=1e-10, atol=1e-12)
    logits, taps = stepped.taps(x, stepped.tap_names)
    for one, other in zip(
        (logits, *taps.values()), (moved(x), *moved.taps(x, moved.tap_names)[1].values()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert torch.equal(bench.net.weights, bench.start["weights"])
    assert bench.net.model.training == train


def test_the_gradient_goes_through_the_step() -> None:
    """Kills: a graph that is cut anywhere; a Hessian of the wrong loss. By torch.func."""
    bench = Bench(MLP(hidden=(5,)))
    first, second = bench.batch(0), bench.batch(1)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(bench.net.model, weights, (x,)), y)

    def meta(weights: dict[str, Tensor]) -> Tensor:
        slope = grad(loss)(weights, first.x, first.y)
        return loss({name: weights[name] - RATE * slope[name] for name in weights}, second.x, second.y)

    stepped = bench.net.stepped(loss_of(bench.net, bench, 0), RATE)
    got = bench.net.backward(loss_of(stepped, bench, 1))
    wanted = grad(meta)({name: p.detach() for name, p in zip(bench.net.names, bench.net.parameters, strict=True)})
    torch.testing.assert_close(
        got, torch.cat([wanted[name].reshape(-1) for name in bench.net.names]), rtol=0, atol=1e-12
    )


@MODES
@pytest.mark.parametrize("steps", [1, 2])
def test_finite_differences(train: bool, steps: int) -> None:
    """Kills: BatchNorm's statistics as constants, a second step that forgets the first."""
    bench = Bench(ResNet8())
    direction = torch.randn(len(bench.net.weights), generator=seeds.generator(0, "direction"), dtype=torch.float64)
    direction /= direction.norm()

    def meta(shift: float) -> Tensor:
        bench.net.load(bench.start["weights"] + shift * direction, bench.start["buffers"])
        bench.net.train(train)
        net: Net = bench.net
        for client in range(steps):
            net = net.stepped(loss_of(net, bench, client), RATE)
        return loss_of(net, bench, 2)

    got = bench.net.backward(meta(0.0)).clone()
    slope = (meta(1e-6) - meta(-1e-6)).item() / 2e-6
    assert got @ direction == pytest.approx(slope, rel=1e-5)
    assert abs(slope) > 1e-3


@MODELS
@MODES
@pytest.mark.parametrize("steps", [1, 2])
def test_first_order_is_the_gradient_where_the_steps_lead(spec: ModelSpec, train: bool, steps: int) -> None:
    """Kills: second derivatives that are in after all; the gradient where the steps began."""
    bench = Bench(spec)
    bench.net.train(train)
    net: Net = bench.net
    weights = bench.start["weights"]
    for client in range(steps):
        net = net.stepped(loss_of(net, bench, client), RATE, first_order=True)
        weights = step(spec, bench, train, weights, client)
    got = bench.net.backward(loss_of(net, bench, 2))
    there = twin(spec, weights, bench.start["buffers"], train)
    torch.testing.assert_close(got, there.backward(loss_of(there, bench, 2)), rtol=1e-9, atol=1e-11)


@ORDERS
def test_one_step_after_another_is_like_the_first(first_order: bool) -> None:
    """Kills: a step that leaves something behind: the same batches give the same gradient again."""
    bench = Bench(ResNet8())
    bench.net.train(True)
    grads = []
    for _ in range(2):
        stepped = bench.net.stepped(loss_of(bench.net, bench, 0), RATE, first_order)
        grads.append(bench.net.backward(loss_of(stepped, bench, 1)).clone())
    assert torch.equal(*grads)


@ORDERS
@MODES
def test_statistics_are_those_of_both_passes(train: bool, first_order: bool) -> None:
    """Kills: running statistics that the pass after the step does not reach, or that it starts anew; some in eval."""
    spec: Any = ResNet8()
    bench = Bench(spec)
    bench.net.train(train)
    stepped = bench.net.stepped(loss_of(bench.net, bench, 0), RATE, first_order)
    stepped(bench.batch(1).x)
    plain = twin(spec, bench.start["weights"], bench.start["buffers"], train)
    plain(bench.batch(0).x)
    plain.load(step(spec, bench, train, bench.start["weights"], 0), plain.buffers)
    plain(bench.batch(1).x)
    torch.testing.assert_close(bench.net.buffers, plain.buffers, rtol=1e-10, atol=1e-12)
    assert torch.equal(bench.net.buffers, bench.start["buffers"]) != train


def test_a_part_that_the_loss_does_not_see_stays() -> None:
    """Kills: a step that refuses a loss of some weights alone."""
    bench = Bench(MLP(hidden=(5,)))
    z = torch.ones(2, bench.net.layout.features, dtype=torch.float64)
    stepped = bench.net.stepped(bench.net.head(z).square().mean(), RATE)
    x = bench.batch(1).x
    assert torch.equal(stepped.features(x), bench.net.features(x))
    assert not torch.equal(stepped.head(z), bench.net.head(z))


def test_cached_features_have_no_step() -> None:
    """Kills: a step of a body that is not run."""
    bench = Bench(MLP(hidden=(5,)))
    with pytest.raises(TypeError, match="runs no body, so it has no step of all weights"):
        CachedNet(bench.net).stepped(loss_of(bench.net, bench, 0), RATE)
