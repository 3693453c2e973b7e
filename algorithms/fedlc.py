"""FedLC: logits are calibrated by a client's own class counts (Zhang et al. 2022, arXiv:2209.00189).

With n_c the client's rows of class c, the loss of a row of class y with logits f is the cross entropy of

    f_c - tau n_c^(-1/4)        for every class c,

so that a rare class must win by a margin, and that by which y must beat c is tau (n_y^(-1/4) - n_c^(-1/4)). A class
that the client has no rows of is at minus infinity: whatever tau above 0, it has no part in the loss and its row of the
head has no gradient. The formula as printed leaves y itself out of the sum; codes that have it do not. Evaluation reads
the logits as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Net, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class FedLC(FedAvg):
    tau: Annotated[float, Ge(0), Doc("scale of the margins"), Neutral(0, "is FedAvg")] = 1.0

    @idle_when(tau=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = net(batch.x)
        if self.tau == 0:
            return F.cross_entropy(logits, batch.y)
        margins = self.tau * batch.client.class_counts.to(logits.dtype).pow(-0.25)  # [C], infinite where there are none
        return F.cross_entropy(logits - margins, batch.y)
