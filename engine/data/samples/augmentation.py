"""Random crops and flips of images, as tensor operations: what is drawn, and what is done with it.

The draws are made on the CPU, so that bits do not depend on the device, and apart from the images, so that those of
many steps can be brought to the device together.

Shapes: images [B, C, H, W].
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.algorithm import Tensors

CROP_PADDING = 4  # pixels, as is usual for 32 x 32 images


def draw(augment: str, count: int, rng: torch.Generator) -> Tensors:
    """Return the draws for ``count`` images, each [count]: "flip", and for "crop_flip" the crop's "top" and "left"."""
    drawn: Tensors = {}
    if augment == "crop_flip":
        drawn["top"] = torch.randint(2 * CROP_PADDING + 1, (count,), generator=rng)
        drawn["left"] = torch.randint(2 * CROP_PADDING + 1, (count,), generator=rng)
    drawn["flip"] = torch.rand(count, generator=rng) < 0.5
    return drawn


def of(named: Tensors) -> Tensors:
    """The draws among other tensors; {} if there are none."""
    return {name: named[name] for name in ("top", "left", "flip") if name in named}


def augmented(x: Tensor, drawn: Tensors) -> Tensor:
    """Flip images horizontally as :func:`draw` has it, after crops of the zero-padded ones if there are any drawn."""
    if "top" in drawn:
        x = _cropped(x, drawn["top"].unsqueeze(1), drawn["left"].unsqueeze(1))
    return torch.where(drawn["flip"].view(-1, 1, 1, 1), x.flip(-1), x)


def _cropped(x: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Crop each image where its offsets [B, 1] say."""
    count, _, height, width = x.shape
    padded = torch.nn.functional.pad(x, (CROP_PADDING,) * 4)
    rows = top + torch.arange(height, device=x.device)  # [B, height]
    columns = left + torch.arange(width, device=x.device)  # [B, width]
    which = torch.arange(count, device=x.device).view(-1, 1, 1)
    # Advanced indices around a slice put the channels last: [B, height, width, channels].
    return padded[which, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)
