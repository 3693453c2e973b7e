"""FedRS: the softmax is restricted for classes that a client lacks (Li and Zhan 2021, KDD,
doi:10.1145/3447548.3467254).

A client scales the logits of its missing classes by alpha before the softmax, so that the head's rows for them move
alpha times as much and are pushed away less; those of its own classes stay as they are. The paper's logits are w_c^T h,
without bias; here the whole logit is scaled, the bias of the head included. The released code scales own classes, too,
by alpha + (1 - alpha) n_c / max n. Evaluation reads the logits as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Net, Tensors, idle_when
from engine.base.declared import Doc, Ge, Le, Neutral


@dataclass(frozen=True)
class FedRS(FedAvg):
    alpha: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc("factor of missing classes' logits; 0 holds their rows of the head still"),
        Neutral(1, "is FedAvg"),
    ] = 0.5

    @idle_when(alpha=1)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = net(batch.x)
        if self.alpha == 1:
            return F.cross_entropy(logits, batch.y)
        has = (batch.client.class_counts > 0).to(logits.dtype)  # [C], 1 for a class of the client's
        return F.cross_entropy(logits * (self.alpha + (1 - self.alpha) * has), batch.y)
