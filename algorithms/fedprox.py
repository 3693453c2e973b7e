"""FedProx: FedAvg with (mu/2) ||w - w_t||^2 added to the local objective (Li et al. 2020, arXiv:1812.06127, eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: Annotated[float, Ge(0), Doc("weight of the proximal term"), Neutral(0, "is FedAvg")] = 0.01

    @idle_when(mu=0)
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if self.mu == 0:
            return grad
        # g + mu (w - w_t), before momentum and decay; in place, since of a block of clients these are megabytes
        return grad + (weights - received["weights"]).mul_(self.mu)
