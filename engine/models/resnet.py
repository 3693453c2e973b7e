"""Residual networks for small images (He et al. 2016, section 4.2): 6 n + 2 layers, 16, 32, 64 channels."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from engine.base.declared import Doc
from engine.models.layers import MeanPool, Norm, check_group_size, norm_layer
from engine.models.model import Model, ModelSpec

Shortcut = Literal["conv", "pad"]


class ResidualUnit(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), 3x3 convolutions; ``stride`` 2 halves H and W."""

    def __init__(self, channels: int, out: int, stride: int, shortcut: Shortcut, norm: Norm, group_size: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, out, group_size)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, out, group_size)
        self.projection: nn.Module | None = None
        if stride != 1 and shortcut == "conv":
            self.projection = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), norm_layer(norm, out, group_size)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x, out.shape[1]))

    def shortcut(self, x: Tensor, channels: int) -> Tensor:
        """Bring x to the shape of the unit's output, which has ``channels`` channels."""
        if self.projection is not None:
            return self.projection(x)
        if self.stride == 1:
            return x
        # All zeros at the end, not half on each side: channel i goes to channel i, in a narrowed network too.
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, channels - x.shape[1]))


@dataclass(frozen=True)
class CifarResNet(ModelSpec):
    """The layout that the networks below share; images of any size and number of channels.

    ``shortcut`` "conv" is a 1x1 convolution with norm where the shape changes (option B, as in the CBFL
    authors' network), "pad" has no weights (option A: every second pixel, zeros for the new channels).
    """

    units: ClassVar[int]  # residual units in each of the three stages

    shortcut: Annotated[Shortcut, Doc("where shapes change: 1x1 convolution, or no weights")] = "conv"
    norm: Annotated[Literal["batch", "group"], Doc("kind of the normalisation layers")] = "batch"
    group_size: Annotated[int, Doc("channels per group of norm=group (Wu and He 2018)")] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_group_size(self.group_size, channels=16)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return self.with_widths(shape, num_classes, (16, 32, 64))

    def with_widths(self, shape: tuple[int, int, int], num_classes: int, widths: tuple[int, int, int]) -> Model:
        """Build the same network with other numbers of channels in the three stages."""
        units, before = nn.Sequential(), widths[0]
        body = nn.Sequential(
            OrderedDict(
                stem=nn.Conv2d(shape[0], before, 3, padding=1, bias=False),
                norm=norm_layer(self.norm, before, self.group_size),
                relu=nn.ReLU(),
                units=units,
                pool=MeanPool(),
            )
        )
        for stage, width in enumerate(widths):
            for unit in range(self.units):
                stride = 2 if stage > 0 and unit == 0 else 1
                units.append(ResidualUnit(before, width, stride, self.shortcut, self.norm, self.group_size))
                before = width
        taps = tuple(f"body.units.{index}" for index in range(len(units)))
        return self.assemble(body, widths[-1], num_classes, taps)


@dataclass(frozen=True)
class ResNet8(CifarResNet):
    """8 layers: 1 unit a stage."""

    units: ClassVar[int] = 1


@dataclass(frozen=True)
class ResNet20(CifarResNet):
    """20 layers: 3 units a stage."""

    units: ClassVar[int] = 3


@dataclass(frozen=True)
class ResNet32(CifarResNet):
    """32 layers: 5 units a stage."""

    units: ClassVar[int] = 5


@dataclass(frozen=True)
class ResNet56(CifarResNet):
    """56 layers: 9 units a stage."""

    units: ClassVar[int] = 9
