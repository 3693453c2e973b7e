"""Derivatives along a direction, against double backward, which is right where torch's forward mode is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from engine.algorithm import seeds
from engine.client.steps import jvp as module
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.jvp import jvp
from engine.models import build_model
from tests.support.networks import VARIANTS

Jvp = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]
IMAGE = (3, 16, 16)


def network(name: str) -> FlatNet:
    model = build_model(VARIANTS[name], IMAGE, 5, seeds.generator(0, "weights"))
    net = FlatNet(model, torch.device("cpu"), torch.float64, IMAGE)
    noise = torch.randn(net.weights.shape, generator=seeds.generator(0, "noise"), dtype=torch.float64)
    net.weights.add_(0.05 * noise)  # norms whose weights are not all one
    return net


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Images [6, ...], a direction [1, ...], labels [6]."""
    rng = seeds.generator(0, "inputs")
    x, direction = (torch.randn(rows, *IMAGE, generator=rng, dtype=torch.float64) for rows in (6, 1))
    return x, direction, torch.randint(5, (6,), generator=rng)


def check_against_double_backward(net: FlatNet, forward: Jvp) -> None:
    """Values, buffers, and the gradient of a loss of both outputs, with respect to every parameter."""
    x, direction, y = inputs()
    before = net.buffers.clone()
    z, slope = forward(net, x, direction)
    ours = net.backward(F.cross_entropy(z, y) + (F.softmax(z, 1) * slope).sum()).clone()
    after = net.buffers.clone()
    net.buffers.copy_(before)
    x = x.requires_grad_()
    z_2 = net(x)
    weight = F.softmax(z_2, 1)  # <softmax, slope>, summed over rows, is <d sum(weight z) / dx, direction>
    (grad,) = torch.autograd.grad(z_2, x, weight, create_graph=True)
    total = (grad * direction).sum()
    theirs = net.backward(F.cross_entropy(z_2, y) + total)
    torch.testing.assert_close(z, z_2, rtol=0, atol=1e-12)
    torch.testing.assert_close((F.softmax(z, 1) * slope).sum(), total, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(after, net.buffers, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", VARIANTS)
def test_equals_double_backward(name: str, train: bool) -> None:
    """Kills: a bias in the tangent, a lost term of a norm's second derivative, statistics of the wrong rows."""
    net = network(name)
    net.train(train)
    check_against_double_backward(net, jvp)


def test_torchs_own_rule_of_batchnorm_is_wrong() -> None:
    """A mutant that must be killed: the tangent is right and its gradient is not (pytorch issue 196699).

    Once this fails torch has mended it, and the rule here is there for speed alone.
    """

    def torchs(net: Any, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        with forward_ad.dual_level():
            out = forward_ad.unpack_dual(net(forward_ad.make_dual(x, direction.expand_as(x))))
        assert out.tangent is not None
        return out.primal, out.tangent

    for name, right in (("cnn group", True), ("cnn batch", False)):
        net = network(name)
        net.train(True)
        if right:
            check_against_double_backward(net, torchs)
        else:
            with pytest.raises(AssertionError):
                check_against_double_backward(net, torchs)


@pytest.mark.parametrize("lost", ["through_t", "u", "x", "weight"])
def test_each_term_of_the_second_derivative_counts(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a term of BatchNormTangent.backward that no test would miss."""
    real = module._channels
    calls = Counter[str]()
    position = {"through_t": 0, "u": 1, "x": 2}

    def channels(vector: Tensor) -> Tensor:
        calls["all"] += 1
        return real(vector * 0) if calls["all"] - 1 == position.get(lost) else real(vector)

    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    tangent = torch.randn_like(x).requires_grad_()
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def norm(*inputs: Tensor) -> Any:
        return module.BatchNormTangent.apply(*inputs, None, None, 0.1, 0.25)

    assert torch.autograd.gradcheck(norm, (x, tangent, weight, bias))
    if lost == "weight":  # sum(grad_t u), its share of the weight's gradient
        einsum = torch.einsum
        monkeypatch.setattr(torch, "einsum", lambda *a: einsum(*a) * 0)
    out = norm(x, tangent, weight, bias)
    right = torch.autograd.grad(sum((o * o).sum() for o in out), (x, weight), retain_graph=True)
    monkeypatch.undo()
    full = torch.autograd.grad(sum((o * o).sum() for o in out), (x, weight), retain_graph=True)
    if lost == "weight":
        assert not torch.allclose(right[1], full[1])
        return
    monkeypatch.setattr(module, "_channels", channels)
    broken = torch.autograd.grad(sum((o * o).sum() for o in out), (x, weight))
    assert not torch.allclose(broken[0], full[0])


def test_twice_the_arithmetic_and_no_more() -> None:
    """Kills: torch's rule of convolutions, which convolves with a tangent of zero; a gradient in input space."""

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = Counter[str]()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls[func.__name__.partition(".")[0]] += 1
            return func(*args, **(kwargs or {}))

    net = network("resnet20")
    x, direction, y = inputs()
    with Count() as plain:
        net.backward(F.cross_entropy(net(x), y))
    with Count() as ours:
        z, slope = jvp(net, x, direction)
        net.backward(F.cross_entropy(z, y) + slope.sum())
    for name in ("convolution", "convolution_backward"):
        assert ours.calls[name] == 2 * plain.calls[name] > 0
    assert ours.calls["native_batch_norm_backward"] == 3 * plain.calls["native_batch_norm_backward"]


def test_other_forms_of_the_net() -> None:
    """Kills: a frozen or narrowed net whose derivative is another's; a graph through a frozen one."""
    net = network("resnet20")
    x, direction, _ = inputs()
    net.train(False)
    z, slope = net.jvp(x, direction)
    frozen = net.at(net.weights, net.buffers).jvp(x, direction)
    for got, wanted in zip(frozen, (z, slope), strict=True):
        assert not got.requires_grad
        torch.testing.assert_close(got, wanted.detach())
    narrow = net.narrow(0.5)
    step = 1e-8  # so small that hardly a ReLU changes sides
    difference = (narrow(x + step * direction) - narrow(x - step * direction)) / (2 * step)
    torch.testing.assert_close(narrow.jvp(x, direction)[1], difference, rtol=1e-4, atol=1e-6)


def test_a_constant_has_no_slope() -> None:
    """Kills: None in the place of zero."""
    out, slope = jvp(lambda x: torch.ones(2, 3), torch.zeros(2, 4), torch.ones(1, 4))
    assert torch.equal(slope, torch.zeros_like(out))


@pytest.mark.parametrize("norm", [nn.LayerNorm((3, 4, 4)), nn.InstanceNorm2d(3)])
def test_norms_without_a_rule_are_refused(norm: nn.Module) -> None:
    """Kills: a gradient that is wrong without a word."""
    with pytest.raises(TypeError, match="not right through this norm"):
        jvp(norm, torch.randn(2, 3, 4, 4), torch.randn(1, 3, 4, 4))
