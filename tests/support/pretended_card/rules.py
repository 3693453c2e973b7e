"""What CUDA refuses: tensors of two devices in one operation, and vectors of BatchNorm that its kernels cannot read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.support.pretended_card.operation import Operation
from tests.support.pretended_card.tensor import OnCard

CROSSES = {"copy_", "_to_copy", "lift", "lift_fresh", "detach"}  # from one device to another


def check_devices(func: Any, op: Operation, given: list[Tensor], args: Any) -> None:
    """Raise RuntimeError where CUDA does, of tensors of which one at least is not on the card."""
    if op.name in CROSSES:
        return
    for position, tensor in enumerate(given):
        if type(tensor) is OnCard or tensor.device.type == "meta":
            continue
        if op.indexes and position and type(args[0]) is OnCard:
            continue  # positions are brought there
        is_target = bool(op.written) and position == 0
        if tensor.dim() or not op.takes_numbers or is_target:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({func}, tensor {position} of shapes {[tuple(one.shape) for one in given]})"
            )


def check_alignment(op: Operation, args: Any) -> None:
    """Raise RuntimeError where cuDNN fails, as it was seen to on an H100: for images with channels last, in float32,
    and a scale, a shift or a mean that does not begin at a multiple of 16 bytes."""
    if op.name != "native_batch_norm" or args[0].dtype != torch.float32 or args[0].dim() != 4:
        return
    if args[0].is_contiguous() or not args[0].is_contiguous(memory_format=torch.channels_last):
        return
    for vector in args[1:4]:
        if vector is not None and vector.storage_offset() * vector.element_size() % 16:
            raise RuntimeError("CUDA error: misaligned address")
