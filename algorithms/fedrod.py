"""FedROD: a generic model on a balanced loss, and a personal head on top of it (Chen and Chao 2022, arXiv:2107.00778).

With n_c the client's rows of class c, the body and the generic head are trained by the balanced softmax, which is
the cross entropy of

    f_c + gamma log n_c        for every class c,

a class without rows being left out of it, and they are averaged as FedAvg's are. The personal head P stays with its
client: it adds its logits to the generic head's, and is trained by plain cross entropy of their sum on features and
generic logits that are held fixed (the paper's linear form of P). P is 0 at first, which is the generic model.

The heads are linear, so generic and personal logits are those of one head, the sum of the two, and a gradient at the
sum is one at P. A client's own model is the generic body under that sum.

The paper takes one step at P on each batch of the generic training. P is trained after it here, on the features that
it has come to; since nothing flows back from P, the generic model is the same. ``local.weight_decay`` shrinks the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Batch,
    Client,
    Context,
    Entries,
    Kind,
    LocalRun,
    ModelState,
    Net,
    ParamLayout,
    Personalised,
    Phase,
    PhaseResult,
    Requires,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class FedROD(Personalised, FedAvg):
    gamma: Annotated[
        float, Ge(0), Doc("power of class counts in the generic model's loss"), Neutral(0, "is FedAvg's loss")
    ] = 1.0
    personal_epochs: Annotated[
        int | None,
        Ge(0),
        Doc("passes at the personal head; 0 leaves it at 0"),
        Neutral(None, "is as many as at the generic model"),
    ] = None

    entries: ClassVar[Entries] = {**Personalised.entries, "personal_head": Kind.HEAD}
    requires: ClassVar[Requires] = Requires(model={"head": "linear"})  # others' logits are not those of a sum

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"personal_head": torch.zeros_like(client.context.layout.head_of(received["weights"]))}

    def phases(self, context: Context) -> tuple[Phase, ...]:
        # A phase without passes, whose name keeps what the one before it has come to. That one has no name, so that it
        # draws what FedAvg draws.
        generic = Phase(), Phase(name="generic", epochs=0)
        head = Phase(name="personal", epochs=self.personal_epochs, trainable="head", features="cached")
        return *generic, head

    def phase_start(
        self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client
    ) -> ModelState | Tensor | None:
        if client.phase != "personal":
            return None
        return self.with_personal_head(previous.model, state, client.context.layout)

    @idle_when(lambda self, context, phase: self.gamma == 0 or phase == "personal")
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = net(batch.x)
        if self.gamma == 0 or batch.client.phase == "personal":
            return F.cross_entropy(logits, batch.y)
        prior = self.gamma * batch.client.class_counts.to(logits.dtype).log()  # [C], -inf where there are none
        return F.cross_entropy(logits + prior, batch.y)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        layout, personal = run.client.context.layout, run.ends["personal"]
        moved = layout.head_of(personal.end) - layout.head_of(personal.start)
        return {"weights": run.ends["generic"].end}, {"personal_head": state["personal_head"] + moved}

    def personal_model(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        generic = ModelState(received["weights"], received["buffers"])
        return self.with_personal_head(generic, state, client.context.layout)

    @staticmethod
    def with_personal_head(generic: ModelState, state: Tensors, layout: ParamLayout) -> ModelState:
        """Return the client's own model: the generic one, with the personal head added to its head."""
        head = layout.head_of(generic.weights) + state["personal_head"]
        return ModelState(layout.join(layout.body_of(generic.weights), head), generic.buffers)
