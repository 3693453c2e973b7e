"""Many small tensors brought to a GPU in one copy, for which nobody waits.

A copy from ordinary memory is waited for, and the card runs out of work meanwhile; and each copy costs as much as some
of a small step's operations. So the tensors are packed into one buffer of pinned memory, and are views of its copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 16  # bytes: a view as any number type begins at a multiple of its size


def in_one_copy(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return ``tensors`` on the device; those that are there already as they are."""
    away = [tensor for tensor in tensors if tensor.device.type != device.type]
    if not away:
        return list(tensors)
    moved = iter(unpacked(packed(away).pin_memory().to(device, non_blocking=True), away))
    return [tensor if tensor.device.type == device.type else next(moved) for tensor in tensors]


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of the tensors one after another, [bytes] uint8."""
    room = torch.empty(sum(map(_room, tensors)), dtype=torch.uint8)
    for view, tensor in zip(unpacked(room, tensors), tensors, strict=True):
        view.copy_(tensor)
    return room


def unpacked(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of packed bytes with the types and shapes of the tensors that they were packed of."""
    views, begin = [], 0
    for tensor in like:
        views.append(packed[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        begin += _room(tensor)
    return views


def _room(tensor: Tensor) -> int:
    return math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
