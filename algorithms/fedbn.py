"""FedBN: BatchNorm layers stay with their clients, everything else is averaged (Li et al. 2021, arXiv:2102.07623,
Alg. 1).

A client keeps the scales, shifts and running statistics of its BatchNorm layers and goes on from them whenever it takes
part; the other parameters are FedAvg's. The server has no such layers that mean anything, so the run is evaluated by
clients' own models. A client that has not taken part has the layers that all started from. A model without BatchNorm
makes it FedAvg to the bit, but for how it is evaluated.

Which parameters are BatchNorm's is found out once, before the first round, see :func:`find_norms`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Client,
    Compute,
    Context,
    Entries,
    Entry,
    Kind,
    LocalRun,
    ModelState,
    Net,
    ParamLayout,
    Personalised,
    Pooled,
    Tensors,
    TrainingTools,
)
from engine.base.errors import ConfigError

PROBE_ROWS = 8


@dataclass(frozen=True)
class FedBN(Personalised, FedAvg):
    entries: ClassVar[Entries] = {
        **Personalised.entries,
        "buffers": Entry(Kind.BUFFERS, "once"),
        "norm_mask": Entry(Kind.VECTOR, "derivable"),  # True for BatchNorm's: a matter of the architecture
        "first_norms": Entry(Kind.TENSOR, "once"),  # [N] BatchNorm's scales and shifts that all start from
        "shared": Kind.TENSOR,  # [P - N] all other parameters
        "norms": Kind.TENSOR,  # [N] a client's own scales and shifts
        "statistics": Kind.BUFFERS,  # a client's own running statistics
    }
    global_model: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = False

    def before_round(self, server: Tensors, compute: Compute, context: Context) -> Tensors:
        if "norm_mask" in server:
            return server
        if not context.layout.has_batchnorm:
            return {**server, "norm_mask": torch.zeros_like(server["weights"], dtype=torch.bool)}
        model = {"weights": server["weights"], "buffers": server["buffers"]}
        return {**server, **compute(partial(find_norms, layout=context.layout), model)}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        if "norm_mask" not in server:  # before the first round, when what travels once is counted: N numbers
            return {"first_norms": server["weights"].new_zeros(context.layout.buffers)}
        mask = server["norm_mask"]
        return {"norm_mask": mask, "shared": server["weights"][~mask], "first_norms": server["weights"][mask]}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"norms": received["first_norms"].clone(), "statistics": received["buffers"].clone()}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(joined(received["shared"], state["norms"], received["norm_mask"]), state["statistics"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        mask = received["norm_mask"]
        return {"shared": run.end[~mask]}, {"norms": run.end[mask], "statistics": run.buffers}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        first, shared = server["weights"][server["norm_mask"]], pooled.mean["shared"]
        weights = joined(shared, first.to(shared), server["norm_mask"])
        return super().aggregate(server, replace(pooled, mean={"weights": weights}), context)


def joined(shared: Tensor, norms: Tensor, mask: Tensor) -> Tensor:
    """Return weights [P] of ``norms`` [N] where ``mask`` [P] is True, and of ``shared`` [P - N] elsewhere."""
    return shared.new_zeros(len(mask)).masked_scatter(mask, norms).masked_scatter(~mask, shared)


def find_norms(tools: TrainingTools, model: Tensors, layout: ParamLayout) -> Tensors:
    """Return "norm_mask" [P], True for scales and shifts of BatchNorm layers.

    In training mode the mean of what a layer's channel gives is its shift, whatever the other parameters are. So the
    gradient of the sum of all these means is 1 at every shift and 0 elsewhere, but for rounding: one step of rate 1
    tells them apart. A layer's scales stand right before its shifts, for that is the order in which its module has
    them. Raises ConfigError where scales, shifts and running statistics do not match in number, as in a model with
    BatchNorm layers that lack one of them.
    """
    images = torch.randn((PROBE_ROWS, *layout.image), generator=tools.rng("fedbn probe"), dtype=torch.float64)
    images = images.to(tools.device, model["weights"].dtype)

    def channel_means(net: Net, positions: Tensor) -> Tensor:
        _, outputs = net.taps(images, net.norm_names)
        return torch.stack([out.transpose(0, 1).flatten(1).mean(1).sum() for out in outputs.values()]).sum()

    stepped = tools.fit(channel_means, PROBE_ROWS, epochs=1, batch_size=PROBE_ROWS, lr=1.0)["weights"]
    before = model["weights"].to(stepped)
    mask = before - stepped > 0.5
    edges = (
        torch.diff(mask.int(), prepend=mask.new_zeros(1).int(), append=mask.new_zeros(1).int()).nonzero().view(-1, 2)
    )
    for start, end in edges.tolist():
        mask[2 * start - end : start] = True
    found = int(mask.sum())
    if found != layout.buffers:
        rule = f"has BatchNorm layers with {layout.buffers} running statistics and {found} scales and shifts"
        raise ConfigError("model.norm", "batch", rule, "FedBN needs layers that have all of them")
    return {"norm_mask": mask}
