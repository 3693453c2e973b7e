"""MobileNetV2 (Sandler et al. 2018) in the form that CIFAR papers use, CBFL's and CCVR's among them.

Against the ImageNet network: the stem and the second stage have stride 1, so that 32 x 32 images end as 4 x 4; ReLU in
place of ReLU6; no dropout; the first block expands too (by 1); and where a block of stride 1 changes the number of
channels, its shortcut is a 1x1 convolution with norm, where the ImageNet network has none.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from engine.base.declared import Doc
from engine.models.layers import DepthwiseConv, MeanPool, Norm, check_group_size, norm_layer
from engine.models.model import Model, ModelSpec

STAGES = (  # expansion, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, LAST = 32, 1280  # channels of the first convolution and of the last


class InvertedResidual(nn.Module):
    """1x1 to ``hidden`` channels, depthwise 3x3, 1x1 to ``out`` (no ReLU after it), plus the shortcut at stride 1."""

    def __init__(self, channels: int, hidden: int, out: int, stride: int, norm: Norm, group_size: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels, hidden, 1, bias=False)
        self.norm1 = norm_layer(norm, hidden, group_size)
        self.conv2 = DepthwiseConv(hidden, stride)
        self.norm2 = norm_layer(norm, hidden, group_size)
        self.conv3 = nn.Conv2d(hidden, out, 1, bias=False)
        self.norm3 = norm_layer(norm, out, group_size)
        self.projection: nn.Module = nn.Identity()
        if stride == 1 and channels != out:
            self.projection = nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), norm_layer(norm, out, group_size))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = F.relu(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out))
        return out + self.projection(x) if self.stride == 1 else out


@dataclass(frozen=True)
class MobileNetV2(ModelSpec):
    """17 inverted residual blocks; images of any size and number of channels; 1,280 features."""

    norm: Annotated[Literal["batch", "group"], Doc("kind of the normalisation layers")] = "batch"
    group_size: Annotated[int, Doc("channels per group of norm=group")] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_group_size(self.group_size, channels=8)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        stem = nn.Conv2d(shape[0], STEM, 3, padding=1, bias=False)
        blocks, before = nn.Sequential(), STEM
        for expansion, channels, count, first_stride in STAGES:
            for block in range(count):
                stride = first_stride if block == 0 else 1
                blocks.append(
                    InvertedResidual(before, expansion * before, channels, stride, self.norm, self.group_size)
                )
                before = channels
        body = nn.Sequential(
            OrderedDict(
                stem=stem,
                norm=norm_layer(self.norm, STEM, self.group_size),
                relu=nn.ReLU(),
                blocks=blocks,
                last=nn.Conv2d(before, LAST, 1, bias=False),
                last_norm=norm_layer(self.norm, LAST, self.group_size),
                last_relu=nn.ReLU(),
                pool=MeanPool(),
            )
        )
        taps = tuple(f"body.blocks.{index}" for index in range(len(blocks)))
        return self.assemble(body, LAST, num_classes, taps)
