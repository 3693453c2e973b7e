"""Residual networks for small images (He et al. 2016, section 4.2): 6 n + 2 layers, 16, 32, 64 channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from engine.errors import require
from engine.models.layers import Norm, check_norm, norm_layer
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
        """x brought to the shape of the unit's output, which has ``channels`` channels."""
        if self.projection is not None:
            return self.projection(x)
        if self.stride == 1:
            return x
        # All zeros at the end, not half on each side: channel i goes to channel i, in a narrowed network too.
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, channels - x.shape[1]))


class ResNetBody(nn.Module):
    """Images [B, C, H, W] of any size -> features [B, widths[-1]]; three stages of ``units`` units each."""

    def __init__(
        self,
        channels: int,
        units: int,
        widths: tuple[int, int, int],
        shortcut: Shortcut,
        norm: Norm,
        group_size: int,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = norm_layer(norm, widths[0], group_size)
        self.units = nn.Sequential()
        before = widths[0]
        for stage, width in enumerate(widths):
            for unit in range(units):
                stride = 2 if stage > 0 and unit == 0 else 1
                self.units.append(ResidualUnit(before, width, stride, shortcut, norm, group_size))
                before = width

    def forward(self, x: Tensor) -> Tensor:
        x = self.units(F.relu(self.norm(self.stem(x))))
        # The adaptive average pool to 1x1, by an operation whose gradient is deterministic on CUDA as well.
        return x.mean(dim=(2, 3))


@dataclass(frozen=True)
class CifarResNet(ModelSpec):
    """What ResNet20 and ResNet56 share; images of any size and number of channels.

    ``shortcut`` "conv" is a 1x1 convolution with norm where the shape changes (option B, as in the CBFL
    authors' network), "pad" has no weights (option A: every second pixel, zeros for the new channels).
    """

    units: ClassVar[int]  # residual units in each of the three stages

    shortcut: Shortcut = "conv"
    norm: Literal["batch", "group"] = "batch"
    group_size: int = 16  # channels per group of norm=group (Wu and He 2018)

    def __post_init__(self) -> None:
        known = ("conv", "pad")
        require(self.shortcut in known, "shortcut", self.shortcut, "must be conv or pad", "for example conv")
        check_norm(self.norm, ("batch", "group"), self.group_size, channels=16)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return self.with_widths(shape, num_classes, (16, 32, 64))

    def with_widths(self, shape: tuple[int, int, int], num_classes: int, widths: tuple[int, int, int]) -> Model:
        """The same network with other numbers of channels in the three stages."""
        body = ResNetBody(shape[0], self.units, widths, self.shortcut, self.norm, self.group_size)
        taps = tuple(f"body.units.{index}" for index in range(3 * self.units))
        return Model(body, nn.Linear(widths[-1], num_classes), taps)


@dataclass(frozen=True)
class ResNet20(CifarResNet):
    """20 layers: 3 units a stage."""

    units: ClassVar[int] = 3


@dataclass(frozen=True)
class ResNet56(CifarResNet):
    """56 layers: 9 units a stage."""

    units: ClassVar[int] = 9
