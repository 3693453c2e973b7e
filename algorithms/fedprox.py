"""FedProx: FedAvg with (mu/2) ||w - w_t||^2 added to the local objective (Li et al. 2020, arXiv:1812.06127, eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Tensors, idle_when
from engine.base.errors import require


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: float = 0.01  # 0 is FedAvg

    neutral: ClassVar = {"mu": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "must be at least 0", "0 is FedAvg")

    @idle_when(mu=0)
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if self.mu == 0:
            return grad
        # g + mu (w - w_t), before momentum and decay; in place, since of a block of clients these are megabytes
        return grad + (weights - received["weights"]).mul_(self.mu)
