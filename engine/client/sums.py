"""The weighted sum of uploads, from one client's to a cohort's: the only module that adds them.

A block's uploads are added where they were computed, in client order; the sums of blocks are merged by the driver, in
block order; both in float64. So a sum does not depend on where blocks ran or on which of them was ready first.

Shapes: P parameters, Q floating buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engine.algorithm import Tensors
from engine.client.steps.entries import at_rest, to_host


def _none() -> Tensor:
    return torch.zeros(0)


@dataclass
class WeightedSum:
    """Uploads, weighted and added in float64.

    The sum of one client holds what the client uploads as it is, in the run's precision and half the size;
    :attr:`factor` and :attr:`buffers_factor` say by how much what is held has still to be multiplied. What is added is
    never written to, so several sums may hold one tensor.
    """

    uploads: Tensors = field(default_factory=dict)  # sum of weight * upload
    buffers: Tensor = field(default_factory=_none)  # [Q] sum of num_examples * buffers; [0] where none are shared
    weight: float = 0.0
    num_examples: int = 0
    clients: int = 0

    @property
    def factor(self) -> float:
        return self.weight if self.clients == 1 else 1

    @property
    def buffers_factor(self) -> float:
        return self.num_examples if self.clients == 1 else 1

    def add(self, upload: Tensors, buffers: Tensor | None = None, weight: float = 1.0, num_examples: int = 1) -> None:
        """Add one client's upload and its buffers [Q], or none where they are not shared."""
        self.merge(WeightedSum(upload, _none() if buffers is None else buffers, weight, num_examples, clients=1))

    def merge(self, other: WeightedSum) -> None:
        """Add the sum of the clients that come next."""
        if self.clients == 0:
            own = other.clients > 1  # a sum of several is written to below, and is then to be this one's alone
            self.uploads = {name: tensor.clone() if own else tensor for name, tensor in other.uploads.items()}
            self.buffers = other.buffers.clone() if own else other.buffers
        elif other.clients:
            if self.clients == 1:
                self.uploads, self.buffers = self.total(), self.buffers.double() * self.buffers_factor
            for name, tensor in other.uploads.items():
                if name in self.uploads:
                    self.uploads[name].add_(tensor, alpha=other.factor)  # in float64, as the sum is
                else:
                    self.uploads[name] = tensor.double() * other.factor
            if other.buffers.numel():
                self.buffers.add_(other.buffers, alpha=other.buffers_factor)
        self.clients += other.clients
        self.weight += other.weight
        self.num_examples += other.num_examples

    def total(self) -> Tensors:
        """The sum of weight * upload, float64."""
        return {name: tensor.double() * self.factor for name, tensor in self.uploads.items()}

    def mean(self) -> Tensors:
        """The weighted mean of the uploads, float64; there must be a weight."""
        return {name: total / self.weight for name, total in self.total().items()}

    def mean_buffers(self) -> Tensor:
        """The mean of the buffers [Q] by samples, float64; there must be a sample."""
        return self.buffers.double() * self.buffers_factor / self.num_examples

    def at_rest(self) -> WeightedSum:
        """The same in the host's memory, as it leaves a worker."""
        return replace(self, uploads=at_rest(self.uploads), buffers=to_host(self.buffers))
