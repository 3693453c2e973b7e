"""Mixup within each client's batches (Zhang et al. 2018, arXiv:1710.09412), FedAvg otherwise.

A comparison that exchanges nothing: each step draws one weight from Beta(gamma, gamma) and one permutation of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Net, Requires, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class MixupLocal(FedAvg):
    gamma: Annotated[
        float,
        Ge(0),
        Doc("of Beta(gamma, gamma), by which the weights are drawn; 1: uniform in [0, 1]"),
        Neutral(0, "is FedAvg"),
    ] = 1.0

    requires: ClassVar[Requires] = Requires(no_tokens="mixes rows with one another")

    @idle_when(gamma=0)
    def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
        if self.gamma == 0:
            return {}
        from scipy.special import betaincinv  # 0.1 s or more that other algorithms need not wait for

        rng = client.rng("mixup")
        uniform = torch.rand((), generator=rng, dtype=torch.float64)
        share = torch.as_tensor(betaincinv(self.gamma, self.gamma, uniform.numpy()))  # the inverse of its distribution
        return {"share": share, "partners": torch.randperm(rows, generator=rng)}

    @idle_when(gamma=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        if self.gamma == 0:
            return super().loss(net, batch, received, state)
        share, partners = batch.drawn["share"].to(batch.x), batch.drawn["partners"]
        log_p = F.log_softmax(net(share * batch.x + (1 - share) * batch.x[partners]), dim=1)
        return share * F.nll_loss(log_p, batch.y) + (1 - share) * F.nll_loss(log_p, batch.y[partners])
