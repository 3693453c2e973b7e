"""Where a card's kernels can read.

cuDNN's BatchNorm of images with channels last reads scales, shifts and means 16 bytes at once, and fails ("misaligned
address") where they do not begin at a multiple of that. Memory begins at one; a view into a vector of weights need not.
"""

from __future__ import annotations

from torch import Tensor, nn

ALIGNED = 16  # bytes


def is_readable(tensor: Tensor) -> bool:
    """Return whether a tensor is not on a card, or begins at a multiple of :data:`ALIGNED` bytes."""
    # Some versions of torch say that the offset may be a symbol, which it is in a traced graph alone.
    return not tensor.is_cuda or tensor.storage_offset() * tensor.element_size() % ALIGNED == 0  # pyright: ignore


def norms_are_readable(model: nn.Module) -> bool:
    """Return whether all that BatchNorm layers of a model hold :func:`is_readable`."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return all(is_readable(own) for norm in norms for own in (*norm.parameters(), *norm.buffers()))
