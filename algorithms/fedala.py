"""FedALA: a client starts from a mix of its own last model and the global one, and learns the mix (Zhang et al. 2023,
arXiv:2212.01197, Alg. 1).

Below its top ``layers`` a client takes the global weights. Above, it starts from w_old + W (w - w_old), entry by entry,
where w_old is what it ended with and W, at first 1, is learned before training on a share of its rows: W goes down the
loss's gradient times w - w_old, and is kept between 0 and 1. As a step at the weights themselves that is w' = w -
mix_lr (w - w_old)^2 g, kept between w_old and w.

The authors learn W until the loss settles at a client's first visit, and for one pass over the share at each later one;
here it is one pass, always. ``layers`` counts blocks as ``fedper`` does, where their code counts tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.top_layers import TopLayers
from engine.algorithm import (
    Client,
    ClientTools,
    Context,
    Entries,
    Kind,
    LocalRun,
    ModelState,
    Personalised,
    Phase,
    Setting,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Gt, Lt


@dataclass(frozen=True)
class FedAla(TopLayers, Personalised, FedAvg):
    mix_lr: Annotated[float, Gt(0), Doc("eta, of the mixing weights")] = 1.0
    mix_rows: Annotated[float, Gt(0), Lt(1), Doc("s, the share of a client's rows that they are learned on")] = 0.8

    entries: ClassVar[Entries] = {
        **FedAvg.entries,
        **dict.fromkeys(("last", "mix", "gap"), Kind.VECTOR),  # w_old, W; w - w_old above, 0 below
    }
    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "eta": "mix_lr", "s": "mix_rows", "p": "layers"}

    def check(self, setting: Setting) -> None:
        rule = "is not for fedala, whose mixing weights take plain gradient steps"
        setting.local.demand(rule, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip_norm=None)

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"last": received["weights"].clone(), "mix": torch.ones_like(received["weights"])}

    def client_setup(self, tools: ClientTools, received: Tensors, state: Tensors, client: Client) -> Tensors:
        gap = received["weights"] - state["last"]
        gap[: self.base_size(client.context.layout)] = 0
        return {"gap": gap}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        mixed = received["weights"] - (1 - state["mix"]) * received["gap"]
        return ModelState(mixed, received["buffers"])

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return (*self.personalise_phases(context), Phase())

    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        mixing = Phase("mix", epochs=1, rows="support", support=self.mix_rows, lr=self.mix_lr, buffers="keep")
        return (mixing,)

    @idle_when(lambda self, context, phase: phase != "mix")
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if client.phase != "mix":
            return grad
        new, gap = received["weights"], received["gap"]
        aim = weights - self.mix_lr * gap.square() * grad
        aim = aim.clamp(torch.minimum(new, new - gap), torch.maximum(new, new - gap))  # 0 <= W <= 1
        return (weights - aim) / self.mix_lr

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        gap, mixed = received["gap"], run.ends["mix"].end
        mix = torch.where(gap != 0, (mixed - state["last"]) / torch.where(gap != 0, gap, 1), state["mix"])
        return {"weights": run.end}, {"last": run.end, "mix": mix}
