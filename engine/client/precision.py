"""Arithmetic that is done below float32, where it was asked for: TF32 on the GPU, or bfloat16 in forward passes.

Weights, gradients, optimizers, uploads and sums stay in ``execution.precision`` whatever is set here.

* ``execution.tf32``: tensor cores of NVIDIA GPUs round the factors of matrix products and convolutions to 10 bits of
  mantissa.
* ``execution.autocast=bfloat16``: forward passes and losses of local training and evaluation run under torch.autocast,
  and so do the backward passes of the operations in them. Derivatives along a direction (jvp.py) stay in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from engine.experiment import Execution


def set_up(execution: Execution) -> None:
    """Set this process up, on CUDA; torch's own default is TF32 in convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = execution.tf32
    torch.backends.cudnn.allow_tf32 = execution.tf32


def forward(execution: Execution) -> AbstractContextManager[object]:
    """Around a forward pass with its loss; a new one each time, since copies of the weights live as long as it does."""
    if execution.autocast == "none":
        return nullcontext()
    return torch.autocast(execution.device, getattr(torch, execution.autocast))


def told(execution: Execution) -> str:
    """As results name it: ``float32``, ``float32, TF32``, ``float32, bfloat16 autocast``."""
    parts = [execution.precision]
    if execution.tf32:
        parts.append("TF32")
    if execution.autocast != "none":
        parts.append(f"{execution.autocast} autocast")
    return ", ".join(parts)
