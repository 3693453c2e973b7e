"""FedBABU: body aggregation and body update (Oh, Kim and Yun 2022, arXiv:2106.06042).

FedAvg of the body under a head that is the same everywhere and is never trained: clients get it once, at the start,
and send only bodies. There is a global model. A client that wants its own fine-tunes it when it is evaluated:
``evaluation.fine_tune_epochs``, ``evaluation.fine_tune_part``.

The released code takes the plain mean of clients, whatever their number of rows, so that is the default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
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
    Phase,
    Pooled,
    Scalar,
    Tensors,
)
from engine.base.declared import Doc
from engine.base.errors import require

if TYPE_CHECKING:
    from engine.algorithm import Algorithm


@dataclass(frozen=True)
class FedBabu(FedAvg):
    weighting: Annotated[Literal["uniform", "samples"], Doc("how clients are weighted")] = "uniform"
    head_init: Annotated[
        Literal["keep", "orthogonal"],
        Doc("the head that is there, or the nearest one without bias whose rows are orthogonal"),
    ] = "keep"
    train_head: Annotated[
        bool, Doc("true trains and averages the head too, which is FedAvg, with weighting=samples to the bit")
    ] = False

    entries: ClassVar[Entries] = {**FedAvg.entries, "body": Kind.BODY, "head": Entry(Kind.HEAD, "once")}

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, FedBabu)
        rule = "cannot change in mid-run: clients get the fixed head at the start"
        for field in ("train_head", "head_init"):
            fixed, found = getattr(self, field), getattr(later, field)
            require(fixed == found, field, found, rule, f"leave it at {fixed}")

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        weights, layout = parent["weights"], context.layout
        if self.head_init == "orthogonal":
            weights = layout.join(layout.body_of(weights), orthogonal(layout.head_of(weights), layout))
        return {"weights": weights}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        if self.train_head:
            return super().broadcast(server, context)
        body, head = context.layout.body_of(server["weights"]), context.layout.head_of(server["weights"])
        return {"body": body, "head": head}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        if self.train_head:
            return super().start(received, state, client)
        weights = client.context.layout.join(received["body"], received["head"])
        return ModelState(weights, received["buffers"])

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(trainable="all" if self.train_head else "body"),)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        if self.train_head:
            return super().upload(run, received, state)
        return {"body": run.client.context.layout.body_of(run.end)}, state

    def weight(self, run: LocalRun) -> Scalar:
        return super().weight(run) if self.weighting == "samples" else 1.0

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        if not self.train_head:
            body, head = pooled.mean["body"], context.layout.head_of(server["weights"])
            pooled = replace(pooled, mean={"weights": context.layout.join(body, head.to(body))})
        return super().aggregate(server, pooled, context)


def orthogonal(head: Tensor, layout: ParamLayout) -> Tensor:
    """Return [P_head] with orthonormal rows of class weights, or columns where C > D, and no bias, if it has one.

    From the singular value decomposition W = U S V^T of the weights that are there, drawn or trained: U V^T, which of
    all such matrices is the nearest to W. PFLEGO's released code (arXiv:2202.09848) does so with a random W.
    """
    size = layout.classes * layout.features
    weights = head[:size].view(layout.classes, layout.features)
    left, _, right = torch.linalg.svd(weights.double(), full_matrices=False)
    return torch.cat(((left @ right).view(-1).to(head), torch.zeros_like(head[size:])))
