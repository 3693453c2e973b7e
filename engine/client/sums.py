"""The sums of uploads, from one client's to a cohort's: the only module that adds them.

A block's uploads are added where they were computed, in client order and in float64 (:class:`BlockSums`); blocks are
added by the driver, in block order and in float64 (:class:`CohortSums`). So a sum does not depend on where blocks ran
or on which of them was ready first.

Shapes: P parameters, Q floating buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.algorithm import Tensors
from engine.client.entries import Arrays, to_numpy


@dataclass
class BlockSums:
    """A block's uploads, weighted and added in client order in float64.

    A block of one client holds what the client uploads, in the run's precision and half the size. Whoever adds it up
    multiplies it by its weight first: ``factor`` and ``buffers_factor`` say by how much what is held has still to be
    multiplied.
    """

    uploads: Tensors = field(default_factory=dict)  # sum of weight * upload
    buffers: Tensor = field(default_factory=lambda: torch.zeros(0))  # [Q] sum of num_examples * buffers
    weight: float = 0.0
    num_examples: int = 0
    clients: int = 0

    @property
    def factor(self) -> float:
        return self.weight if self.clients == 1 else 1

    @property
    def buffers_factor(self) -> float:
        return self.num_examples if self.clients == 1 else 1

    def add(self, upload: Tensors, buffers: Tensor, weight: float, num_examples: int) -> None:
        """Add one client's upload and its buffers [Q], or [0] where buffers are not shared."""
        if self.clients == 0:
            self.uploads, self.buffers = upload, buffers
        else:
            if self.clients == 1:
                self.uploads = {name: tensor.double() * self.weight for name, tensor in self.uploads.items()}
                self.buffers = self.buffers.double() * self.num_examples
            for name, tensor in upload.items():
                self.uploads[name].add_(tensor, alpha=weight)  # in float64, as the sum is
            if buffers.numel():
                self.buffers.add_(buffers, alpha=num_examples)
        self.clients += 1
        self.weight += weight
        self.num_examples += num_examples

    def on_wire(self) -> SentSums:
        """The sums as they travel."""
        return SentSums(
            uploads=to_numpy(self.uploads),
            buffers=self.buffers.cpu().numpy(),
            factor=self.factor,
            buffers_factor=self.buffers_factor,
            weight=self.weight,
            num_examples=self.num_examples,
        )


@dataclass(frozen=True)
class SentSums:
    """A block's sums on the wire; see :class:`BlockSums`."""

    uploads: Arrays
    buffers: np.ndarray
    factor: float
    buffers_factor: float
    weight: float
    num_examples: int


@dataclass
class CohortSums:
    """A cohort's uploads, added in block order in float64 as the blocks come in."""

    uploads: Arrays = field(default_factory=dict)  # sum of weight * upload
    buffers: np.ndarray | None = None  # [Q] sum of num_examples * buffers
    weight: float = 0.0
    num_examples: int = 0

    def add(self, block: SentSums) -> None:
        for name, array in block.uploads.items():
            self.uploads[name] = added(self.uploads.get(name), array, block.factor)
        self.buffers = added(self.buffers, block.buffers, block.buffers_factor)
        self.weight += block.weight
        self.num_examples += block.num_examples

    def mean(self) -> Tensors:
        """The weighted mean of the uploads, float64; there must be a weight."""
        return {name: torch.from_numpy(np.asarray(total / self.weight)) for name, total in self.uploads.items()}

    def mean_buffers(self) -> Tensor:
        """The mean of the buffers [Q] by samples, float64; there must be an upload."""
        assert self.buffers is not None
        return torch.from_numpy(self.buffers / self.num_examples)


def added(total: np.ndarray | None, array: np.ndarray, weight: float) -> np.ndarray:
    """Add ``weight * array`` to ``total`` in place, in float64; a new array where there is no total yet."""
    term = torch.tensor(array, dtype=torch.float64)
    if total is None:
        return term.mul_(weight).numpy()
    torch.from_numpy(total).add_(term, alpha=weight)
    return total
