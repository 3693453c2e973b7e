r"""FedCM: clients step along a mean of their gradient and the direction that all took last (Xu et al. 2021,
arXiv:2106.10874).

With D the server's direction, 0 at first, client k steps along

    alpha grad f_k(y) + (1 - alpha) D.

The server's next D is the way back from the cohort's mean to the weights that it started from, by step and rate:
D <- (w - mean of w_k) / (eta a), a being the mean of the a_k, the weight of a client's gradients in its way: the number
of its steps for plain SGD, K in the paper, where all clients take as many.

Weights and a_k are averaged by samples, as FedAvg's are; the paper's means are uniform. ``server_lr`` is the paper's
eta_g / (eta K), since its server steps by eta_g D. BatchNorm's statistics have no momentum. ``local.weight_decay`` is
in D, too, and so acts up to 1/alpha times as strongly as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.fednova import scalar
from engine.algorithm import Client, Context, Entries, Kind, LocalRun, Pooled, Requires, Tensors, idle_when
from engine.base.declared import Doc, Gt, Le, Neutral


@dataclass(frozen=True)
class FedCM(FedAvg):
    alpha: Annotated[
        float, Gt(0), Le(1), Doc("share of the client's own gradient in a step"), Neutral(1, "is FedAvg")
    ] = 0.1

    entries: ClassVar[Entries] = {**FedAvg.entries, "direction": Kind.VECTOR, "accumulation": Kind.SCALAR}
    symbols: ClassVar[Mapping[str, str]] = {"eta_s": "server_lr"}  # its eta_g is another number
    requires: ClassVar[Requires] = Requires(linear_optimizer=True)

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {"weights": parent["weights"], "direction": torch.zeros_like(parent["weights"])}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"weights": server["weights"], "direction": server["direction"]}

    @idle_when(alpha=1)
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad if self.alpha == 1 else self.alpha * grad + (1 - self.alpha) * received["direction"]

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end, "accumulation": scalar(run.accumulation, run.end)}, state

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        way = context.lr * pooled.mean["accumulation"]
        direction = (server["weights"] - pooled.mean["weights"]) / way
        direction = torch.where(way > 0, direction, server["direction"].to(direction))  # no step, no news
        return {**super().aggregate(server, pooled, context), "direction": direction}
