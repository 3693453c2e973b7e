r"""FedDecorr: features are kept from collapsing into few dimensions (Shi et al. 2023, arXiv:2210.00226).

To the cross entropy comes beta times the mean over all d^2 entries of K^2, with K the correlations [d, d] of the
features that the head reads, over the rows of the batch: beta / d^2 ||K||_F^2. A batch of one row has no such term. To
each variance 1e-8 is added, as in the released code.

That code takes the N rows' sums of products for K, leaves out the diagonal, which is 1, and divides by N once:
``form="code"``, about N times the printed term. Its beta is 0.1 as the paper's is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Net, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class FedDecorr(FedAvg):
    beta: Annotated[float, Ge(0), Doc("weight of the correlations of features"), Neutral(0, "is FedAvg")] = 0.1
    form: Annotated[
        Literal["paper", "code"], Doc("of that term: as printed, or as released, about a batch's rows times as much")
    ] = "paper"

    @idle_when(beta=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        z = net.features(batch.x)
        supervised = F.cross_entropy(net.head(z), batch.y)
        if self.beta == 0 or len(z) == 1:
            return supervised
        return supervised + self.beta * self.correlations(z)

    def correlations(self, z: Tensor) -> Tensor:
        """Return [] the size of the correlations between features ``z`` [B, D], B > 1."""
        rows, features = z.shape
        z = z - z.mean(0)
        z = z / (z.var(0) + 1e-8).sqrt()
        squares = (z.T @ z / (rows - 1)).square()  # [D, D]
        if self.form == "paper":
            return squares.mean()
        pairs = (squares.sum() - squares.diagonal().sum()) / (features * (features - 1))
        return (rows - 1) ** 2 / rows * pairs
