"""Layers that take channel numbers from their inputs, so that sliced weights work too (narrow.py)."""

from __future__ import annotations

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from engine.base.errors import ConfigError, require

Norm = Literal["none", "batch", "group"]


class GroupNorm(nn.GroupNorm):
    """Group normalisation that keeps working when only the first channels are there.

    The number of groups is the greatest divisor that ``num_groups`` and the channels at hand have in common:
    with all channels ``num_groups`` itself, in the worst case 1.
    """

    def forward(self, input: Tensor) -> Tensor:
        groups = math.gcd(self.num_groups, input.shape[1])
        return F.group_norm(input, groups, self.weight, self.bias, self.eps)


class PlaneLinear(nn.Linear):
    """A linear layer that flattens [B, C, H, W] and maps to [B, out].

    The C H W inputs are C planes of ``plane`` = H W values each; narrowing keeps whole planes.
    """

    def __init__(self, channels: int, plane: int, out_features: int) -> None:
        super().__init__(channels * plane, out_features)
        self.plane = plane

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(1))


class DepthwiseConv(nn.Conv2d):
    """3x3 convolution with one filter for each channel at hand, so that the first channels can go alone."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__(channels, channels, 3, stride, padding=1, groups=channels, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight, None, self.stride, self.padding, groups=input.shape[1])


class MeanPool(nn.Module):
    """The mean of each plane, [B, C, H, W] -> [B, C], by an operation that is deterministic on CUDA too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class ConvBlock(nn.Module):
    """Convolution, norm, ReLU, 2x2 max pooling; [B, C, H, W] -> [B, out, H', W'].

    H' = H // 2 with "same" ``padding`` (2 for the 5x5 ``kernel``, 1 for 3x3), (H - 4) // 2 without for 5x5.
    """

    def __init__(
        self, channels: int, out: int, padding: int, norm: Norm = "none", group_size: int = 1, kernel: int = 5
    ) -> None:
        super().__init__()
        # A norm subtracts what a bias adds, up to the group's mean: no bias then, as in ResNets.
        self.conv = nn.Conv2d(channels, out, kernel_size=kernel, padding=padding, bias=norm == "none")
        self.norm = norm_layer(norm, out, group_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(F.relu(self.norm(self.conv(x))))

    def pool(self, x: Tensor) -> Tensor:
        """Pool values that are 0 or above: [B, C, H, W] -> [B, C, H', W']."""
        return F.max_pool2d(x, 2)


class OverlapBlock(ConvBlock):
    """A :class:`ConvBlock` with 3x3 max pooling of stride 2 and TensorFlow's "same" padding: H' = ceil(H / 2).

    That pads the far side alone where H is even, so torch's own ``padding``, alike on both, would shift the windows.
    """

    def pool(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        # 0 is as good as minus infinity beside what comes out of a ReLU
        return F.max_pool2d(F.pad(x, (width % 2, 1, height % 2, 1)), 3, stride=2)


def norm_layer(norm: Norm, channels: int, group_size: int) -> nn.Module:
    """Return a norm for ``channels`` channels; ``group_size`` (channels per group) is read by "group" only."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return GroupNorm(channels // group_size, channels)
    return nn.Identity()


def check_group_size(group_size: int, channels: int) -> None:
    """Raise :class:`ConfigError` unless ``group_size`` divides ``channels``.

    ``channels`` is what the channel numbers of all layers have as their greatest common divisor.
    """
    require(
        group_size >= 1 and channels % group_size == 0,
        "group_size",
        group_size,
        f"must be a divisor of {channels}, which divides the channels of every layer",
        f"for example group_size={channels // 2}",
    )


def require_pixels(name: str, shape: tuple[int, int, int], least: int) -> None:
    """Raise :class:`ConfigError` for images smaller than ``least`` pixels on a side."""
    _, height, width = shape
    if min(height, width) < least:
        raise ConfigError(
            "model.name",
            name,
            f"needs images of at least {least}x{least} pixels, these are {height}x{width}",
            "for example model.name=mlp",
        )
