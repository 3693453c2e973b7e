r"""FedAdam and FedYogi: an adaptive optimizer on the server (Reddi et al. 2021, arXiv:2003.00295, Alg. 2).

With D the cohort's mean update, after minus before, and all operations entry by entry,

    m <- beta_1 m + (1 - beta_1) D
    v <- beta_2 v + (1 - beta_2) D^2                 (Adam)
    v <- v - (1 - beta_2) D^2 sign(v - D^2)          (Yogi)
    w <- w + eta m / (sqrt(v) + tau)

from m = 0 and v = tau^2, without bias correction. The mean is by samples, as FedAvg's; the paper's is uniform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Algorithm, Context, Entries, Kind, Pooled, Tensors
from engine.base.errors import require


@dataclass(frozen=True)
class FedAdam(FedAvg):
    server_lr: float = 0.01  # eta; no value is neutral, since steps are divided by their own size
    beta1: float = 0.9  # decay of the first moment; 0 is none
    beta2: float = 0.99  # decay of the second moment
    tau: float = 0.001  # adaptivity: added to the root of the second moment

    entries: ClassVar[Entries] = {**Algorithm.entries, "moment1": Kind.VECTOR, "moment2": Kind.VECTOR}
    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "eta": "server_lr", "beta_1": "beta1", "beta_2": "beta2"}

    def __post_init__(self) -> None:
        require(self.server_lr > 0, "server_lr", self.server_lr, "must be greater than 0", "for example 0.01")
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "must be at least 0 and below 1", "the paper's is 0.9")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "must be at least 0 and below 1", "the paper's is 0.99")
        require(self.tau > 0, "tau", self.tau, "must be greater than 0", "the paper's are 1e-5 to 0.1")

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        weights = parent["weights"]
        second = torch.full_like(weights, self.tau**2)
        return {"weights": weights, "moment1": torch.zeros_like(weights), "moment2": second}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        update = pooled.mean["weights"] - server["weights"]
        first = self.beta1 * server["moment1"] + (1 - self.beta1) * update
        second = self.second_moment(server["moment2"], update.square())
        step = self.server_lr * first / (second.sqrt() + self.tau)
        return {**server, "weights": server["weights"] + step, "moment1": first, "moment2": second}

    def second_moment(self, moment: Tensor, square: Tensor) -> Tensor:
        """Return the next second moment [P], from the last one and the squares [P] of the cohort's mean update."""
        return self.beta2 * moment + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    def second_moment(self, moment: Tensor, square: Tensor) -> Tensor:
        return moment - (1 - self.beta2) * square * torch.sign(moment - square)
