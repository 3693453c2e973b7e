r"""APFL: clients mix a model of their own with the global one (Deng, Kamani and Mahdavi 2020, arXiv:2003.13461,
Alg. 1).

A client's model is u = alpha v + (1 - alpha) w. With the received w it trains its v_k by the gradient of f_k(u), which
is alpha grad f_k(u), and then w itself, which is all that the server sees: FedAvg to the bit. With ``adaptive`` its
alpha_k follows the gradient of f_k(u) too, once a round:

    alpha <- clip(alpha - eta <v - w, grad f_k(u)>, 0, 1),

at the u that the round begins with, on all rows. v_k starts at the first w that the client receives.

Three things differ from the paper and its code:

* The paper takes a step of v after each step of w, at the u of that w; here all steps of v are at the received w. A
  round of one step is the paper's.
* The steps are taken at u itself, along alpha^2 grad f_k(u): ``local.weight_decay`` shrinks u, and not v.
* The released code mixes answers of two networks, as the theory does, and not weights, adds 0.02 alpha to the gradient
  of alpha, which it takes on one batch, and fixes alpha by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.personal_model import PersonalModel
from engine.algorithm import (
    Client,
    Context,
    Entries,
    Kind,
    LocalRun,
    ModelState,
    Phase,
    PhaseResult,
    Setting,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Le


@dataclass(frozen=True)
class APFL(PersonalModel, FedAvg):
    alpha: Annotated[
        float, Ge(0), Le(1), Doc("share of a client's own weights in its model; of the first round, if adaptive")
    ] = 0.5
    adaptive: Annotated[bool, Doc("let each client's share follow its gradient")] = True

    entries: ClassVar[Entries] = {**PersonalModel.entries, "alpha": Kind.SCALAR}

    def check(self, setting: Setting) -> None:
        rule = "is not for apfl, whose own models take steps of a part of their gradient"
        setting.local.demand(rule, optimizer="sgd", clip_norm=None)

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        alpha = parent.get("alpha", received["weights"].new_tensor(self.alpha))
        return {**super().init_state(received, parent, client), "alpha": alpha}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        mixed = state["alpha"] * state["personal"] + (1 - state["alpha"]) * received["weights"]
        return ModelState(mixed, state["personal_buffers"])

    def phases(self, context: Context) -> tuple[Phase, ...]:
        slope = Phase(name="alpha", batch="full", emit="gradient", buffers="keep")
        both = Phase(name="personal"), Phase()  # the global model is the last: its buffers are averaged
        return (slope, *both) if self.adaptive else both

    def phase_start(
        self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client
    ) -> ModelState | Tensor | None:
        return None if client.phase else ModelState(received["weights"], received["buffers"])

    @idle_when(lambda self, context, phase: phase != "personal")
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad * state["alpha"].square() if client.phase == "personal" else grad

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        mixed, alpha = run.ends["personal"], state["alpha"]
        moved = (mixed.end - mixed.start) / alpha
        own = state["personal"] + torch.where(alpha > 0, moved, torch.zeros_like(moved))
        if run.gradient is not None:
            slope = (state["personal"] - received["weights"]) @ run.gradient
            alpha = (alpha - run.lr * slope).clamp(0, 1)
        return {"weights": run.end}, {**self.keeping(ModelState(own, mixed.buffers)), "alpha": alpha}

    def personal_model(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return self.start(received, state, client)

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
        return self.start({**received, "weights": run.end}, state, run.client)
