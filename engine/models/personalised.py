"""The networks with which the personalised methods were published: PFLEGO's three and FedRep's for CIFAR."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from engine.models.layers import OverlapBlock, PlaneLinear, require_pixels
from engine.models.model import Model, ModelSpec
from engine.models.networks import MLP, lenet_body, small_conv_body


@dataclass(frozen=True)
class PflegoMLP(ModelSpec):
    """PFLEGO's network for MNIST, Fashion-MNIST and EMNIST: ``mlp`` with one hidden layer of 200 units."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return MLP((200,), head=self.head, projection=self.projection).build(shape, num_classes)


@dataclass(frozen=True)
class PflegoCifar(ModelSpec):
    """PFLEGO's network for CIFAR-10: two 5x5 "same" convolutions (64) with overlapping pooling, 384 and 192 units."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        channels, height, width = shape
        plane = -(-height // 4) * -(-width // 4)  # halved twice, rounded up each time
        body = nn.Sequential(
            OrderedDict(
                block1=OverlapBlock(channels, 64, padding=2),
                block2=OverlapBlock(64, 64, padding=2),
                fc1=PlaneLinear(64, plane, 384),
                relu1=nn.ReLU(),
                fc2=nn.Linear(384, 192),
                relu2=nn.ReLU(),
            )
        )
        return self.assemble(body, 192, num_classes, ("body.block1", "body.block2"))


@dataclass(frozen=True)
class PflegoOmniglot(ModelSpec):
    """PFLEGO's network for Omniglot: four 3x3 "same" convolutions (64) with 2x2 pooling.

    Its 64 features are the means of the last planes, which have one value each for images of 16 to 31 pixels: PFLEGO
    has only 28x28 and flattens.
    """

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        require_pixels("pflego_omniglot", shape, 16)
        body, taps = small_conv_body(shape[0], (64, 64, 64, 64))
        return self.assemble(body, 64, num_classes, taps)


@dataclass(frozen=True)
class FedRepCifar(ModelSpec):
    """FedRep's network for CIFAR (Collins et al. 2021): LeNet's layers, 64 channels twice, 120 and 64 hidden units."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        require_pixels("fedrep_cifar", shape, 16)
        body = lenet_body(shape, (64, 64), (120, 64))
        return self.assemble(body, 64, num_classes, ("body.block1", "body.block2"))
