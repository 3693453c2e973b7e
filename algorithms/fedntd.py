"""FedNTD: what the global model says of classes other than a row's own is kept (Lee et al. 2022, arXiv:2106.03097).

To the cross entropy comes beta times the not-true distillation loss

    sum over c != y of q_g(c) log(q_g(c) / q_l(c)),       (mean over rows)

the Kullback-Leibler divergence from the received model's q_g to the client's q_l, each a softmax at temperature tau
over the logits of all classes but the row's own, y. The client is free in what it learns of y; what the global model
knows of the other classes, of which the client may have no rows, is not forgotten. The received model is frozen and in
eval mode.

The divergence stands here as printed; released code multiplies it by tau^2, which at tau = 1 is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Net, Tensors, idle_when
from engine.base.declared import Doc, Ge, Gt, Neutral


@dataclass(frozen=True)
class FedNTD(FedAvg):
    beta: Annotated[
        float, Ge(0), Doc("weight of the divergence over the classes that are not the row's"), Neutral(0, "is FedAvg")
    ] = 1.0
    tau: Annotated[float, Gt(0), Doc("temperature of both softmaxes")] = 1.0

    @idle_when(beta=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = net(batch.x)
        supervised = F.cross_entropy(logits, batch.y)
        if self.beta == 0:
            return supervised
        taught = net.at(received["weights"], received["buffers"])(batch.x)
        log_global, log_local = (
            F.log_softmax(not_true(one, batch.y) / self.tau, dim=1) for one in (taught.detach(), logits)
        )
        divergence = F.kl_div(log_local, log_global, reduction="batchmean", log_target=True)
        return supervised + self.beta * divergence


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits [B, C - 1] of all classes but each row's own, in their order; logits [B, C], labels [B]."""
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, others + (others >= labels[:, None]))  # one further from the row's own class on
