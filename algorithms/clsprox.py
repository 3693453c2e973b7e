"""ClsProx: FedProx on the classifier alone (Luo et al. 2021, arXiv:2106.05001, a remedy by which CCVR is judged)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Tensors
from engine.errors import require


@dataclass(frozen=True)
class ClsProx(FedAvg):
    mu: float = 0.01  # 0 is FedAvg

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "must be at least 0", "0 is FedAvg")

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if self.mu == 0:
            return grad
        layout = client.context.layout
        pull = layout.head_of(weights) - layout.head_of(received["weights"])  # phi_k - phi_t
        return layout.join(layout.body_of(grad), layout.head_of(grad) + self.mu * pull)
