"""The canary: small results whose bits change with the kernels that compute them.

Names of machines and settings tell what is known to matter; this tells what is not. A convolution with channels last,
as images lie on a CPU, one of groups, as blocks of clients have them, products of matrices, a normalisation, a loss,
and the gradients of all of it, on numbers made of integers: large enough that oneDNN's, MKL's and torch's vectorised
kernels are taken, and of a few milliseconds. It draws nothing, so it changes no generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.client import precision
from engine.experiment import Execution

DIGITS = 16


def canary(execution: Execution) -> str:
    """Return :data:`DIGITS` hex digits of the results that this process comes to, set up for ``execution``.

    In float32, and in ``execution.precision`` where that is another, under ``execution.autocast``.
    """
    digest = hashlib.sha256()
    for dtype in dict.fromkeys((torch.float32, getattr(torch, execution.precision))):
        for result in _results(execution, dtype):
            plain = result.detach().to("cpu", torch.float64).contiguous()  # float64 holds all others exactly
            digest.update(plain.numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


def _results(execution: Execution, dtype: torch.dtype) -> Iterator[Tensor]:
    device = torch.device(execution.device)

    def numbers(*shape: int, step: int, scale: float = 1.0) -> Tensor:
        """Return numbers in [-scale, scale] of ``shape`` that fill their mantissas; ``step``: which ones."""
        count = torch.Size(shape).numel()
        whole = (torch.arange(count, device=device) * (7919 * step) + 104729 * step) % 2003 - 1001
        return (whole.to(torch.float64) * (scale / 1001)).to(dtype).view(shape)

    with torch.enable_grad():
        images = numbers(8, 16, 14, 14, step=1).clone(memory_format=torch.channels_last).requires_grad_()
        first, bias = numbers(32, 16, 3, 3, step=3, scale=0.1), numbers(32, step=5)
        second, last = numbers(40, 32, 5, 5, step=7, scale=0.1), numbers(20, 360, step=11, scale=0.1)
        weights = [tensor.requires_grad_() for tensor in (first, bias, second, last)]
        with precision.forward(execution):
            hidden = F.batch_norm(F.conv2d(images, first, bias, padding=1), None, None, training=True)
            features = F.conv2d(F.max_pool2d(F.relu(hidden), 2), second).flatten(1)
            labels = torch.arange(len(images), device=device)
            loss = F.cross_entropy(F.linear(features, last), labels)
        yield features
        yield loss
        yield from torch.autograd.grad(loss, [images, *weights])
    with precision.forward(execution):
        left, right = numbers(96, 130, step=13), numbers(130, 100, step=17)
        yield left @ right
        yield left @ right[:, 0]
        yield F.linear(left, right.T, numbers(100, step=19))
        yield torch.bmm(left.view(4, 24, 130), right.expand(4, 130, 100))
        yield F.conv2d(numbers(4, 32, 14, 14, step=23), numbers(64, 16, 3, 3, step=29), groups=2)
        yield torch.log_softmax(left, 1)
    yield left.exp()
    yield left.tanh()
    yield left.std(0)
    yield left.square().sum().sqrt()
    yield left * torch.finfo(dtype).tiny  # zeros, where numbers below the least normal one are flushed
