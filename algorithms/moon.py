"""MOON: features are pulled to the global model's, and pushed from those of the client's own previous models.

Li, He and Song 2021, arXiv:2103.16257, eq. 3: to the cross entropy comes mu times the mean over rows of
-log(e^(cos(z, z_glob)/T) / (e^(cos(z, z_glob)/T) + sum_j e^(cos(z, z_j)/T))), z being the projected features that the
head reads. z_glob and z_j are of frozen models in eval mode, on the same augmented rows.

At a client's first participation there is no previous model. The global one stands in for it: the term is log 2 for
every row, without gradient, so it is not computed. (The authors' code leaves it out in round 1 and contrasts with a
random network later.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Entries, Kind, LocalRun, Net, Requires, Tensors, idle_when
from engine.base.declared import Doc, Ge, Gt, Neutral


@dataclass(frozen=True)
class Moon(FedAvg):
    mu: Annotated[float, Ge(0), Doc("weight of the contrastive term"), Neutral(0, "is FedAvg")] = 1.0
    temperature: Annotated[float, Gt(0), Doc("T, of the contrastive term")] = 0.5
    buffer: Annotated[int, Ge(1), Doc("previous models of a client that are kept and pushed from")] = 1

    entries: ClassVar[Entries] = {
        **FedAvg.entries,
        "previous": Kind.TENSOR,  # [J, P] weights of the last J <= buffer local models, oldest first
        "previous_buffers": Kind.TENSOR,  # [J, Q]
    }
    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "T": "temperature"}
    requires: ClassVar[Requires] = Requires(
        model={"projection": True},  # what is contrasted lies behind it
        no_vmap="clients keep different numbers of former models",
    )

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {
            "previous": received["weights"].new_empty(0, len(received["weights"])),
            "previous_buffers": received["buffers"].new_empty(0, len(received["buffers"])),
        }

    @idle_when(mu=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        z = net.features(batch.x)
        supervised = F.cross_entropy(net.head(z), batch.y)
        if self.mu == 0:
            return supervised
        return supervised + self.mu * self.contrast(net, z, batch.x, received, state)

    def contrast(self, net: Net, z: Tensor, x: Tensor, received: Tensors, state: Tensors) -> Tensor | float:
        """Return the mean over rows; z [B, D] are the features of ``x`` in the model in training."""
        if len(state["previous"]) == 0:
            return math.log(2)
        models = [(received["weights"], received["buffers"])]
        models += zip(state["previous"], state["previous_buffers"], strict=True)
        frozen = [net.at(weights, buffers).features(x) for weights, buffers in models]
        similar = torch.stack([F.cosine_similarity(z, other) for other in frozen], dim=1)  # [B, 1 + J]
        return -F.log_softmax(similar / self.temperature, dim=1)[:, 0].mean()

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        kept = {
            "previous": torch.cat((state["previous"], run.end[None]))[-self.buffer :],
            "previous_buffers": torch.cat((state["previous_buffers"], run.buffers[None]))[-self.buffer :],
        }
        return {"weights": run.end}, kept
