"""Linear, fully connected and small convolutional networks."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import nn

from engine.base.declared import Doc, Ge
from engine.base.errors import require
from engine.models.layers import ConvBlock, MeanPool, Norm, PlaneLinear, check_group_size, require_pixels
from engine.models.model import Model, ModelSpec


@dataclass(frozen=True)
class Logistic(ModelSpec):
    """Multinomial logistic regression: the features are the D = C H W pixels, the body has no weights."""

    linear_layers_only: ClassVar[bool] = True

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return self.assemble(nn.Sequential(nn.Flatten()), math.prod(shape), num_classes)


def append_hidden(body: nn.Sequential, features: int, hidden: tuple[int, ...]) -> tuple[int, tuple[str, ...]]:
    """Append fully connected layers of ``hidden`` units to ``body``, which gives ``features``, each with a ReLU.

    Returns the number of features after them, and the taps: the ReLUs' names in the model.
    """
    taps = []
    for units in hidden:
        body.append(nn.Linear(features, units))
        body.append(nn.ReLU())
        taps.append(f"body.{len(body) - 1}")
        features = units
    return features, tuple(taps)


@dataclass(frozen=True)
class MLP(ModelSpec):
    """Fully connected layers, ReLU after each hidden one (McMahan et al. 2017: "2NN", two layers of 200)."""

    linear_layers_only: ClassVar[bool] = True
    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], Doc("units of each hidden layer")] = (200, 200)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.hidden) > 0, "hidden", self.hidden, "must not be empty", "use model.name=logistic")

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body = nn.Sequential(nn.Flatten())
        features, taps = append_hidden(body, math.prod(shape), self.hidden)
        return self.assemble(body, features, num_classes, taps)


@dataclass(frozen=True)
class CNN(ModelSpec):
    """Two 5x5 "same" convolutions (32, 64) with 2x2 pooling, 512 hidden units (McMahan et al. 2017)."""

    norm: Annotated[Norm, Doc("kind of the normalisation layers")] = "none"
    group_size: Annotated[int, Doc("channels per group of norm=group")] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_group_size(self.group_size, channels=32)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return self.with_widths(shape, num_classes, (32, 64, 512))

    def with_widths(self, shape: tuple[int, int, int], num_classes: int, widths: tuple[int, int, int]) -> Model:
        """Build the same network with other numbers of channels (two convolutions) and hidden units."""
        require_pixels("cnn", shape, 4)
        channels, height, width = shape
        first, second, hidden = widths
        body = nn.Sequential(
            OrderedDict(
                block1=ConvBlock(channels, first, 2, self.norm, self.group_size),
                block2=ConvBlock(first, second, 2, self.norm, self.group_size),
                fc=PlaneLinear(second, (height // 4) * (width // 4), hidden),
                relu=nn.ReLU(),
            )
        )
        return self.assemble(body, hidden, num_classes, ("body.block1", "body.block2"))


def small_conv_body(channels: int, widths: Sequence[int]) -> tuple[nn.Sequential, tuple[str, ...]]:
    """Return 3x3 "same" convolutions of ``widths`` channels with ReLU and 2x2 pooling, and their taps in the model.

    The features are the means of the last planes, so that a sub-network cuts none of them.
    """
    befores = (channels, *widths[:-1])
    blocks = [ConvBlock(before, out, padding=1, kernel=3) for before, out in zip(befores, widths, strict=True)]
    body = nn.Sequential(OrderedDict((f"block{n}", block) for n, block in enumerate(blocks, 1)))
    taps = tuple(f"body.{name}" for name, _ in body.named_children())
    body.add_module("pool", MeanPool())
    return body, taps


@dataclass(frozen=True)
class CNN3(ModelSpec):
    """Three 3x3 "same" convolutions (32, 64, 128) with 2x2 pooling; 128 features, the means of the last planes."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        require_pixels("cnn3", shape, 8)
        body, taps = small_conv_body(shape[0], (32, 64, 128))
        return self.assemble(body, 128, num_classes, taps)


def lenet_body(shape: tuple[int, int, int], channels: tuple[int, int], units: tuple[int, int]) -> nn.Sequential:
    """Return LeNet's layers: two 5x5 "valid" convolutions with 2x2 pooling, two hidden layers, the last the features.

    ``shape`` is at least 16x16.
    """
    height, width = (((size - 4) // 2 - 4) // 2 for size in shape[1:])
    return nn.Sequential(
        OrderedDict(
            block1=ConvBlock(shape[0], channels[0], padding=0),
            block2=ConvBlock(channels[0], channels[1], padding=0),
            fc1=PlaneLinear(channels[1], height * width, units[0]),
            relu1=nn.ReLU(),
            fc2=nn.Linear(units[0], units[1]),
            relu2=nn.ReLU(),
        )
    )


@dataclass(frozen=True)
class LeNet(ModelSpec):
    """FedDC's network for CIFAR (Gao et al. 2022): 64 channels in both convolutions, 384 and 192 hidden units."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        require_pixels("lenet", shape, 16)
        body = lenet_body(shape, (64, 64), (384, 192))
        return self.assemble(body, 192, num_classes, ("body.block1", "body.block2"))


@dataclass(frozen=True)
class MoonCNN(ModelSpec):
    """MOON's CIFAR-10 network (Li, He and Song 2021): LeNet's layers, a two-layer projection, the head.

    With ``projection`` the features are z = fc(relu(fc(h))) of 256 values, no ReLU after; without it they are
    h, 84 values.
    """

    projection: bool = field(default=True, kw_only=True)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        require_pixels("moon_cnn", shape, 16)
        body = lenet_body(shape, (6, 16), (120, 84))
        return self.assemble(body, 84, num_classes, ("body.block1", "body.block2"))
