"""ClsProx: FedProx on the classifier alone (Luo et al. 2021, arXiv:2106.05001, a remedy by which CCVR is judged)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from algorithms.fedprox import FedProx
from engine.algorithm import Client, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class ClsProx(FedProx):
    mu: Annotated[float, Ge(0), Doc("weight of the proximal term of the classifier"), Neutral(0, "is FedAvg")] = 0.01

    @idle_when(mu=0)
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if self.mu == 0:
            return grad
        layout = client.context.layout
        pull = layout.head_of(weights) - layout.head_of(received["weights"])  # phi_k - phi_t
        return layout.join(layout.body_of(grad), layout.head_of(grad) + self.mu * pull)
