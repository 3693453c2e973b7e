"""What a config's checks know of a model before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from engine.algorithm.seeds import generator
from engine.base.errors import ConfigError
from engine.client.steps.flat_net import FlatNet
from engine.models import CNN, MLP, MODELS, Logistic, Model, ModelSpec, ResNet20, build_model
from engine.models.layers import MeanPool
from engine.models.outline import outline
from tests.support.loops import each

SHAPE = (3, 32, 32)


@each("name", [name for name in MODELS if name not in ("resnet32", "resnet50", "resnet56")])
def test_it_says_what_the_network_does(name: str) -> None:
    """Of every model, built and run. Kills: taps or norms of another network; a flattening one taken for pooling."""
    spec = MODELS.build({"name": name})
    said = outline(spec)
    net = FlatNet(build_model(spec, SHAPE, 4, generator(0, "weights")), torch.device("cpu"), torch.float32)
    assert said.tap_names == net.tap_names
    assert said.has_batchnorm == net.layout.has_batchnorm
    assert said.any_resolution == _runs(lambda: net(torch.zeros(2, 3, 24, 24)))
    assert (said.not_narrowed is None) == _runs(lambda: net.narrow(0.5)(torch.zeros(2, *SHAPE)))


def _runs(forward: Callable[[], Tensor]) -> bool:
    try:
        return forward().shape == (2, 4)
    except (RuntimeError, ConfigError):
        return False


def test_fields_count_and_networks_are_built_once() -> None:
    """Kills: one outline for all fields of a model; a network for every experiment of a sweep."""
    assert outline(CNN(norm="batch")).has_batchnorm
    assert not outline(CNN()).has_batchnorm
    assert not outline(ResNet20(norm="group")).has_batchnorm
    assert outline(MLP(hidden=(3, 4, 5))).tap_names == ("body.2", "body.4", "body.6")
    assert outline(ResNet20(projection=True)).not_narrowed is None
    assert outline(ResNet20()) is outline(ResNet20())


@dataclass(frozen=True)
class Broken(ModelSpec):
    """A user's own: its middle has its number of channels built in where nobody sees it."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body = nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.Unflatten(1, (2, 4)), nn.Flatten(1, 2), MeanPool())
        return self.assemble(body, 8, num_classes)


@dataclass(frozen=True)
class Instance(ModelSpec):
    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body = nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.InstanceNorm2d(8, affine=True), MeanPool())
        return self.assemble(body, 8, num_classes)


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        (Logistic(), "a model without hidden layers"),
        (Broken(), "layers do not fit together"),
        (Instance(), r"layer body.1 \(InstanceNorm2d\) cannot run with fewer channels"),
    ],
)
def test_it_says_why_there_are_no_sub_networks(spec: ModelSpec, rule: str) -> None:
    """Kills: a refusal without a reason; an answer from the layers' kinds alone, without a pass."""
    reason = outline(spec).not_narrowed
    assert reason is not None
    with pytest.raises(ConfigError, match=rule):
        raise reason


def test_random_numbers_are_nobodys() -> None:
    """Kills: weights that are drawn; torch's global generator moved."""
    before = torch.get_rng_state()
    outline.__wrapped__(ResNet20())
    assert torch.equal(torch.get_rng_state(), before)
