"""The base of PFLEGO, FedPer, FedRep and FedRecon: all clients share a body, and each has a head to itself.

A client's head has rows for the classes of its own rows. It is client state: checkpointed (but for FedRecon's), never
sent back. All clients start from the server's first head, as the released code of FedRep and of FedBABU has it: with
heads of their own draw the first bodies that are averaged have been trained for different heads, and cancel. The server
averages bodies and has no head of its own, so these methods are evaluated by clients' own models.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from engine.algorithm import (
    Client,
    Context,
    Entries,
    Entry,
    Kind,
    LocalRun,
    ModelState,
    Net,
    Personalised,
    Pooled,
    Tensors,
)
from engine.algorithm.labels import own_logits
from engine.base.declared import Doc


@dataclass(frozen=True)
class PersonalHead(Personalised):
    head_init: Annotated[
        Literal["common", "kaiming", "uniform01"],
        Doc(
            "a client's first head: the server's, one for all; or a draw of its own by its number, either side of 0, "
            "or uniform in [0, 1), as in PFLEGO's code: rows of equal sign, slow"
        ),
    ] = "common"

    entries: ClassVar[Entries] = {
        **Personalised.entries,
        "body": Kind.BODY,
        "head": Kind.PERSONAL_HEAD,
        "first_head": Entry(Kind.HEAD, "once"),
    }
    global_model: ClassVar[bool] = False
    own_classes: ClassVar[bool] = True

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"body": context.layout.body_of(server["weights"]), **self.first_head(server, context)}

    def first_head(self, server: Tensors, context: Context) -> Tensors:
        """Return the head [P_head] that all clients start from, to be sent to them, if they do."""
        return {"first_head": context.layout.head_of(server["weights"])} if self.head_init == "common" else {}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        if "head" in parent:  # of another method with personal heads
            return {"head": parent["head"]}
        if self.head_init == "common":
            return {"head": received["first_head"].clone()}
        layout = client.context.layout
        head = torch.rand(layout.head, generator=client.rng("head"))
        if self.head_init == "kaiming":
            head = (2 * head - 1) / sqrt(layout.features)
        return {"head": head.to(received["body"])}  # device and precision

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        weights = client.context.layout.join(received["body"], state["head"])
        return ModelState(weights, received["buffers"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        layout = run.client.context.layout
        return {"body": layout.body_of(run.end)}, {"head": layout.head_of(run.end)}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return self.with_body(server, pooled.mean["body"], context)

    def predict_own(self, net: Net, x: Tensor, client: Client) -> Tensor:
        return own_logits(net(x), client.class_counts)

    @staticmethod
    def with_body(server: Tensors, body: Tensor, context: Context) -> Tensors:
        """Return the server with another body [P_body]; the head that it began with stays."""
        layout = context.layout
        return {**server, "weights": layout.join(body, layout.head_of(server["weights"]).to(body))}
