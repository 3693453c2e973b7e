"""Images with channels last in memory: faster convolutions, the same numbers but for rounding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm import seeds
from engine.client.steps.flat_net import FlatNet
from engine.models import CNN, MLP, Logistic, ModelSpec, ResNet8, build_model

CPU = torch.device("cpu")
CONVOLVING = {"cnn": CNN(), "resnet8": ResNet8()}


def network(spec: ModelSpec, channels: int, dtype: torch.dtype = torch.float32) -> FlatNet:
    return FlatNet(build_model(spec, (channels, 16, 16), 5, seeds.generator(0, "weights")), CPU, dtype)


def images(channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, channels, 16, 16, generator=seeds.generator(0, "images"), dtype=dtype)


def is_channels_last(x: Tensor) -> bool:
    channels, _, width = x.shape[1:]
    return x.stride()[1:] == (1, width * channels, channels)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CONVOLVING)
def test_the_layout_changes_rounding_alone(name: str, channels: int) -> None:
    """Kills: images turned and not laid out anew; another order of weights. Forward to 1e-5, a gradient to 1e-4."""
    net, x = network(CONVOLVING[name], channels), images(channels)
    y = torch.arange(6) % 5
    net.train()
    loss, plain = F.cross_entropy(net(x), y), F.cross_entropy(net.model(x), y)
    torch.testing.assert_close(loss, plain, rtol=0, atol=1e-5)
    gradient = net.backward(loss).clone()
    torch.testing.assert_close(gradient, net.backward(plain), rtol=0, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_go_in_with_channels_last(channels: int) -> None:
    """Kills: the slow layout, also where one channel makes its strides ambiguous, and on each way into the network."""
    net, seen = network(CNN(), channels), list[bool]()
    net.model.body.register_forward_pre_hook(lambda module, inputs: seen.append(is_channels_last(inputs[0])))
    x, there = images(channels), (net.weights.clone(), net.buffers.clone())
    net(x), net.features(x), net.taps(x, net.tap_names[:1])
    net.at(*there)(x), net.at(*there).features(x), net.stepped(net(x).sum(), 0.1)(x)
    assert len(seen) == 7 and all(seen)
    assert not is_channels_last(x) or channels == 1
    assert is_channels_last(net.laid_out(torch.empty(2, channels, 8, 8, device="meta")))  # on whatever device


@pytest.mark.parametrize(
    ("spec", "dtype"), [(MLP(hidden=(4,)), torch.float32), (Logistic(), torch.float32), (CNN(), torch.float64)], ids=str
)
def test_where_it_gains_nothing_images_stay(spec: ModelSpec, dtype: torch.dtype) -> None:
    """Kills: a copy for networks without convolutions, or in float64, whose kernels know one layout."""
    x = images(3, dtype)
    assert network(spec, 3, dtype).laid_out(x) is x
    features = torch.randn(6, 4)
    assert network(CNN(), 3).laid_out(features) is features
