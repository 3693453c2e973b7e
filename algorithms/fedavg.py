"""FedAvg: clients run local SGD, the server averages their weights (McMahan et al. 2017, arXiv:1602.05629, Alg. 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.algorithm import Algorithm, Context, Pooled, Tensors
from engine.base.errors import require


@dataclass(frozen=True)
class FedAvg(Algorithm):
    server_lr: float = 1.0  # eta_s; 1 takes the mean itself

    neutral: ClassVar = {"server_lr": 1.0}
    symbols: ClassVar[Mapping[str, str]] = {"eta_s": "server_lr", "eta_g": "server_lr"}

    def __post_init__(self) -> None:
        require(self.server_lr > 0, "server_lr", self.server_lr, "must be greater than 0", "1 is plain averaging")

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        mean = pooled.mean["weights"]  # sum over the cohort of n_k / n * w_k
        if self.server_lr != 1:
            mean = server["weights"] + self.server_lr * (mean - server["weights"])
        return {**server, "weights": mean}
