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
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Algorithm, Context, Entries, Kind, Pooled, Tensors
from engine.base.declared import Doc, Ge, Gt, Lt, Neutral


@dataclass(frozen=True)
class FedAdam(FedAvg):
    server_lr: Annotated[
        float,
        Gt(0),
        Doc("eta, rate of the adaptive step; no value is neutral, since steps are divided by their own size"),
    ] = 0.01
    beta1: Annotated[float, Ge(0), Lt(1), Doc("decay of the first moment"), Neutral(0, "is none")] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), Doc("decay of the second moment")] = 0.99
    tau: Annotated[
        float, Gt(0), Doc("adaptivity: added to the root of the second moment; the paper's are 1e-5 to 0.1")
    ] = 0.001

    entries: ClassVar[Entries] = {**Algorithm.entries, "moment1": Kind.VECTOR, "moment2": Kind.VECTOR}
    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "eta": "server_lr", "beta_1": "beta1", "beta_2": "beta2"}

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
