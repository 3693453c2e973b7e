"""Linear, fully connected and small convolutional networks."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from engine.errors import require
from engine.models.layers import ConvBlock, Norm, PlaneLinear, check_norm, require_pixels
from engine.models.model import Model, ModelSpec


@dataclass(frozen=True)
class Logistic(ModelSpec):
    """Multinomial logistic regression: the features are the D = C H W pixels, the body has no weights."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return Model(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))


@dataclass(frozen=True)
class MLP(ModelSpec):
    """Fully connected, ReLU after each hidden layer (McMahan et al. 2017: "2NN", two layers of 200)."""

    hidden: tuple[int, ...] = (200, 200)  # units of each hidden layer

    def __post_init__(self) -> None:
        require(len(self.hidden) > 0, "hidden", self.hidden, "must not be empty", "use model.name=logistic")
        require(min(self.hidden) > 0, "hidden", self.hidden, "must be positive", "for example hidden=[200, 200]")

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body = nn.Sequential(nn.Flatten())
        features, taps = math.prod(shape), []
        for units in self.hidden:
            body.append(nn.Linear(features, units))
            body.append(nn.ReLU())
            taps.append(f"body.{len(body) - 1}")
            features = units
        return Model(body, nn.Linear(features, num_classes), tuple(taps))


@dataclass(frozen=True)
class CNN(ModelSpec):
    """Two 5x5 "same" convolutions (32, 64) with 2x2 pooling, 512 hidden units (McMahan et al. 2017)."""

    norm: Norm = "none"
    group_size: int = 16  # channels per group of norm=group

    def __post_init__(self) -> None:
        check_norm(self.norm, ("none", "batch", "group"), self.group_size, channels=32)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return self.with_widths(shape, num_classes, (32, 64, 512))

    def with_widths(self, shape: tuple[int, int, int], num_classes: int, widths: tuple[int, int, int]) -> Model:
        """The same network with other numbers of channels (two convolutions) and hidden units."""
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
        return Model(body, nn.Linear(hidden, num_classes), ("body.block1", "body.block2"))


@dataclass(frozen=True)
class MoonCNN(ModelSpec):
    """MOON's CIFAR-10 network (Li, He and Song 2021): LeNet's layers, a two-layer projection, the head.

    With ``projection`` the features are z = fc(relu(fc(h))) of 256 values, no ReLU after; without it they are
    h, 84 values.
    """

    projection: bool = True

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        require_pixels("moon_cnn", shape, 16)
        channels, height, width = shape
        plane = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            block1=ConvBlock(channels, 6, padding=0),
            block2=ConvBlock(6, 16, padding=0),
            fc1=PlaneLinear(16, plane, 120),
            relu1=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu2=nn.ReLU(),
        )
        if self.projection:
            layers.update(project1=nn.Linear(84, 84), relu3=nn.ReLU(), project2=nn.Linear(84, 256))
        head = nn.Linear(256 if self.projection else 84, num_classes)
        return Model(nn.Sequential(layers), head, ("body.block1", "body.block2"))
