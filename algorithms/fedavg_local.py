"""FedAvg on local labels, the baseline in PFLEGO's comparison (arXiv:2202.09848, released code).

Each client counts its own classes 0, 1, ... in increasing order, and the k-th row of the one, averaged head is every
client's k-th class, whichever that is. A model is meaningful only with one client's labels, after its local work.
Here heads have as many rows as the data have classes; in the released code, as many as a client has classes. The rows
beyond a client's classes have no gradient, but ``local.weight_decay`` shrinks them like the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Net, Personalised, Tensors
from engine.algorithm.labels import spread


@dataclass(frozen=True)
class FedAvgLocal(Personalised, FedAvg):
    global_model: ClassVar[bool] = False
    local_labels: ClassVar[bool] = True

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return F.cross_entropy(spread(net(batch.x), batch.client.class_counts), batch.y)

    def predict_own(self, net: Net, x: Tensor, client: Client) -> Tensor:
        return spread(net(x), client.class_counts)
