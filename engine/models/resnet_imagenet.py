"""ResNet-18 and ResNet-50 (He et al. 2016, section 4.1), layer by layer as torchvision has them.

Our own modules and not torchvision's: importing it takes seconds, which every worker would pay, and its units share one
ReLU that writes in place, into what a tap has recorded. ``tests/models/test_torchvision_models.py`` holds the two
equal.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from engine.base.declared import Doc
from engine.models.layers import MeanPool, Norm, check_group_size, norm_layer
from engine.models.model import Model, ModelSpec
from engine.models.resnet import ResidualUnit

WIDTHS = (64, 128, 256, 512)  # of the four stages


class Bottleneck(nn.Module):
    """relu(1x1(relu(3x3(relu(1x1(x))))) + shortcut(x)), a norm after each convolution; 4 ``width`` channels out.

    ``stride`` is the 3x3 convolution's, as in torchvision; the paper has it at the first 1x1.
    """

    def __init__(self, channels: int, width: int, stride: int, norm: Norm, group_size: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = norm_layer(norm, width, group_size)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = norm_layer(norm, width, group_size)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = norm_layer(norm, out, group_size)
        self.projection: nn.Module = nn.Identity()
        if channels != out:
            self.projection = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), norm_layer(norm, out, group_size)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = F.relu(self.norm2(self.conv2(out)))
        return F.relu(self.norm3(self.conv3(out)) + self.projection(x))


@dataclass(frozen=True)
class ImageNetResNet(ModelSpec):
    """The layout that the two share; images of any size and number of channels."""

    units: ClassVar[tuple[int, int, int, int]]  # in each of the four stages
    bottleneck: ClassVar[bool]

    stem: Annotated[
        Literal["small", "large"], Doc("3x3 convolution of stride 1; or torchvision's 7x7 of stride 2 and max pooling")
    ] = "small"
    norm: Annotated[Literal["batch", "group"], Doc("kind of the normalisation layers")] = "batch"
    group_size: Annotated[int, Doc("channels per group of norm=group (Wu and He 2018)")] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_group_size(self.group_size, channels=WIDTHS[0])

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if self.stem == "small":
            layers["stem"] = nn.Conv2d(shape[0], WIDTHS[0], 3, padding=1, bias=False)
        else:
            layers["stem"] = nn.Conv2d(shape[0], WIDTHS[0], 7, stride=2, padding=3, bias=False)
        layers["norm"] = norm_layer(self.norm, WIDTHS[0], self.group_size)
        layers["relu"] = nn.ReLU()
        if self.stem == "large":
            layers["max_pool"] = nn.MaxPool2d(3, stride=2, padding=1)
        units, before = nn.Sequential(), WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for unit in range(self.units[stage]):
                stride = 2 if stage > 0 and unit == 0 else 1
                units.append(self._unit(before, width, stride))
                before = 4 * width if self.bottleneck else width
        layers.update(units=units, pool=MeanPool())
        taps = tuple(f"body.units.{index}" for index in range(len(units)))
        return self.assemble(nn.Sequential(layers), before, num_classes, taps)

    def _unit(self, channels: int, width: int, stride: int) -> nn.Module:
        if self.bottleneck:
            return Bottleneck(channels, width, stride, self.norm, self.group_size)
        return ResidualUnit(channels, width, stride, "conv", self.norm, self.group_size)


@dataclass(frozen=True)
class ResNet18(ImageNetResNet):
    """8 units of two 3x3 convolutions."""

    units: ClassVar[tuple[int, int, int, int]] = (2, 2, 2, 2)
    bottleneck: ClassVar[bool] = False


@dataclass(frozen=True)
class ResNet50(ImageNetResNet):
    """16 bottleneck units."""

    units: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)
    bottleneck: ClassVar[bool] = True
