"""Per-FedAvg: the global model is trained to be good after one gradient step on a client's own rows (Fallah, Mokhtari
and Ozdaglar 2020, arXiv:2002.07948, Alg. 1).

Client k minimises f_k(w - alpha grad f_k(w)). A step halves its batch: the inner gradient is of the first half
D, the outer one of the second D', at the weights that the inner one leads to. With second derivatives it is

    (I - alpha hess f(w, D)) grad f(w - alpha grad f(w, D), D'),

the exact gradient of f(w - alpha grad f(w, D), D'), where the paper draws a third batch for the Hessian and HF takes a
difference of gradients for it. Its FO, without the Hessian, is ``first_order``.

A client's own model is that step away from what it has, before its local work and after it.
A batch of fewer than four rows is used whole for both, since BatchNorm needs two rows. ``local.weight_decay`` applies
to the outer step and to the adapting one. The paper's mean is uniform; ours is by samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Batch,
    Client,
    Context,
    LocalRun,
    ModelState,
    Net,
    Personalised,
    Phase,
    PhaseResult,
    Requires,
    Setting,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require


@dataclass(frozen=True)
class PerFedAvg(Personalised, FedAvg):
    requires: ClassVar[Requires] = Requires(
        no_vmap="its loss takes a step of its own, through which no gradient is mapped over clients"
    )

    alpha: Annotated[
        float, Ge(0), Doc("size of the step that a client's own model is away"), Neutral(0, "is FedAvg")
    ] = 0.01
    first_order: Annotated[bool, Doc("leave out second derivatives: the paper's FO")] = False

    def check(self, setting: Setting) -> None:
        local = setting.local
        rule = "is not for perfedavg, whose loss of many rows is no mean over parts of them"
        full = self.alpha > 0 and local.batch_size == "full"
        require(not full, "local.batch_size", local.batch_size, rule, "set it to a number")
        if self.alpha > 0:
            rule = "is not for perfedavg, whose clients adapt by one plain gradient step"
            local.demand(rule, optimizer="sgd", nesterov=False, clip_norm=None)

    @idle_when(lambda self, context, phase: self.alpha == 0 or phase == "adapt")
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        if self.alpha == 0 or batch.client.phase == "adapt":
            return super().loss(net, batch, received, state)
        inner, outer = halves(batch)
        stepped = net.stepped(super().loss(net, inner, received, state), self.alpha, self.first_order)
        return super().loss(stepped, outer, received, state)

    def phases(self, context: Context) -> tuple[Phase, ...]:
        adapting = self.personalise_phases(context)
        return Phase(), *adapting, *(Phase(name="back", epochs=0) for _ in adapting)

    def phase_start(
        self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client
    ) -> ModelState | Tensor | None:
        return previous.start if client.phase == "back" else None  # what is sent is not adapted

    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(name="adapt", steps=1, batch="full", lr=self.alpha, buffers="keep"),) if self.alpha > 0 else ()

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
        return run.ends["adapt"].model if self.alpha > 0 else run.model


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return two batches without a row in common, or the whole one twice where that would leave less than two rows."""
    cut = len(batch.y) // 2
    if cut < 2:
        return batch, batch
    first, second = (replace(batch, x=batch.x[rows], y=batch.y[rows]) for rows in (slice(cut), slice(cut, None)))
    return first, second
