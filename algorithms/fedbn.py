"""FedBN: BatchNorm layers stay with their clients, everything else is averaged (Li et al. 2021, arXiv:2102.07623,
Alg. 1).

A client keeps the scales, shifts and running statistics of its BatchNorm layers and goes on from them whenever it takes
part; the other parameters are FedAvg's. The server has no such layers that mean anything, so the run is evaluated by
clients' own models. A client that has not taken part has the layers that all started from. Buffers of other
modules stay with the clients, too. A model without BatchNorm or buffers makes it FedAvg to the bit, but for how it is
evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Client,
    Context,
    Entries,
    Entry,
    Kind,
    LocalRun,
    ModelState,
    ParamLayout,
    Personalised,
    Pooled,
    Tensors,
)


@dataclass(frozen=True)
class FedBN(Personalised, FedAvg):
    entries: ClassVar[Entries] = {
        **Personalised.entries,
        "buffers": Entry(Kind.BUFFERS, "once"),
        "first_norms": Entry(Kind.TENSOR, "once"),  # [N] BatchNorm's scales and shifts that all start from
        "shared": Kind.TENSOR,  # [P - N] all other parameters
        "norms": Kind.TENSOR,  # [N] a client's own scales and shifts
        "statistics": Kind.BUFFERS,  # a client's own running statistics
    }
    global_model: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = False

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        mask = context.layout.norm_mask(server["weights"])
        return {"shared": server["weights"][~mask], "first_norms": server["weights"][mask]}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"norms": received["first_norms"].clone(), "statistics": received["buffers"].clone()}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        weights = joined(received["shared"], state["norms"], client.context.layout)
        return ModelState(weights, state["statistics"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        mask = run.client.context.layout.norm_mask(run.end)
        return {"shared": run.end[~mask]}, {"norms": run.end[mask], "statistics": run.buffers}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        first, shared = server["weights"][context.layout.norm_mask(server["weights"])], pooled.mean["shared"]
        weights = joined(shared, first.to(shared), context.layout)
        return super().aggregate(server, replace(pooled, mean={"weights": weights}), context)


def joined(shared: Tensor, norms: Tensor, layout: ParamLayout) -> Tensor:
    """Return weights [P] of BatchNorm's ``norms`` [N], and of ``shared`` [P - N] elsewhere."""
    weights = shared.new_zeros(layout.size)
    mask = layout.norm_mask(weights)
    return weights.masked_scatter(mask, norms).masked_scatter(~mask, shared)
