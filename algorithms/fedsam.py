"""FedSAM: clients look for flat minima by sharpness-aware minimisation (Qu et al. 2022, arXiv:2206.02618, Alg. 1).

A step's gradient is taken at w + rho g / ||g||, where g is that of the same rows at w: two passes. The norm is that of
what the phase trains. BatchNorm's running statistics see both passes, and so move twice a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral

LEAST_NORM = 1e-12  # of a gradient, below which it has no direction


@dataclass(frozen=True)
class FedSam(FedAvg):
    rho: Annotated[float, Ge(0), Doc("radius of the neighbourhood that is to be flat"), Neutral(0, "is FedAvg")] = 0.05

    @idle_when(rho=0)
    def perturbation(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad * (self.rho / (grad.norm() + LEAST_NORM))
