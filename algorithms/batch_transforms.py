"""Transforms of a batch for a sub-network: the same images, resized, rotated or cropped as one draw says.

The draw is of whole numbers, because shapes depend on them, and the same for all images of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.base.declared import Doc, Gt, Le, MinLen, Neutral

Drawn = tuple[int, ...]  # as many as the transform takes

AREA = (0.08, 1.0)  # share of an image that a crop keeps, and its ratio of width to height:
RATIO = (3 / 4, 4 / 3)  # those of the crops by which ImageNet networks are trained (Szegedy et al. 2015)


@dataclass(frozen=True)
class BatchTransforms:
    """Fields, a draw and its use, for an algorithm."""

    transform: Annotated[
        Literal["resize", "resize_back", "rotate", "crop", "none"],
        Doc(
            "what becomes of the images first: a drawn size; that and back again; quarter turns; a drawn part, "
            "enlarged; nothing. The first is not for models that take images of one size"
        ),
        Neutral("none", "leaves images as they are"),
    ] = "resize"
    scales: Annotated[
        tuple[Annotated[float, Gt(0), Le(1)], ...],
        MinLen(1),
        Doc("sizes of which one is drawn for each resize, as shares of the images' own"),
        Neutral([1.0], "is no resize"),
    ] = (1.0, 0.875, 0.75)

    @property
    def changes_size(self) -> bool:
        return self.transform == "resize" and any(scale != 1 for scale in self.scales)

    def draw_transform(self, rng: torch.Generator, image: tuple[int, int, int]) -> Drawn:
        """Draw a transform for a batch of images of the shape ``image``: the pixels of a resize (height, width), the
        quarter turns of a rotation, the top, left, height and width of a crop."""
        _, height, width = image
        if self.transform in ("resize", "resize_back"):
            scale = self.scales[_below(len(self.scales), rng)]
            return max(1, round(height * scale)), max(1, round(width * scale))
        if self.transform == "rotate":  # images that are not square keep their shape
            return (_below(4, rng) if height == width else 2 * _below(2, rng),)
        if self.transform == "crop":
            return _box(height, width, rng)
        return ()

    def transformed(self, x: Tensor, drawn: Drawn) -> Tensor:
        """Return ``x`` [B, channels, H, W] as ``drawn`` says; of other H and W after a resize alone."""
        if self.transform in ("resize", "resize_back"):
            small = _resized(x, drawn)
            return _resized(small, tuple(x.shape[2:])) if self.transform == "resize_back" else small
        if self.transform == "rotate":
            return torch.rot90(x, drawn[0], dims=(2, 3))
        if self.transform == "crop":
            top, left, height, width = drawn
            return _resized(x[:, :, top : top + height, left : left + width], tuple(x.shape[2:]))
        return x


def _resized(x: Tensor, size: Drawn) -> Tensor:
    if tuple(x.shape[2:]) == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


def _box(height: int, width: int, rng: torch.Generator) -> Drawn:
    """Draw a crop: area uniform, ratio uniform in its logarithm, no side beyond the image, place uniform."""
    share = AREA[0] + (AREA[1] - AREA[0]) * _uniform(rng)
    ratio = math.exp(math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * _uniform(rng))
    area = share * height * width
    high = min(height, max(1, round(math.sqrt(area / ratio))))
    wide = min(width, max(1, round(math.sqrt(area * ratio))))
    return _below(height - high + 1, rng), _below(width - wide + 1, rng), high, wide


def _below(limit: int, rng: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=rng))


def _uniform(rng: torch.Generator) -> float:
    return float(torch.rand((), generator=rng, dtype=torch.float64))
