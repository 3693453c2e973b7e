"""FedAvg: clients run local SGD, the server averages their weights (McMahan et al. 2017, arXiv:1602.05629, Alg. 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from engine.algorithm import Algorithm, Context, Pooled, Tensors
from engine.base.declared import Doc, Gt, Neutral


@dataclass(frozen=True)
class FedAvg(Algorithm):
    server_lr: Annotated[
        float, Gt(0), Doc("eta_s, the step from the old weights towards the mean"), Neutral(1, "takes the mean itself")
    ] = 1.0

    symbols: ClassVar[Mapping[str, str]] = {"eta_s": "server_lr", "eta_g": "server_lr"}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        mean = pooled.mean["weights"]  # sum over the cohort of n_k / n * w_k
        if self.server_lr != 1:
            mean = server["weights"] + self.server_lr * (mean - server["weights"])
        return {**server, "weights": mean}
