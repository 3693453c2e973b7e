"""LG-FedAvg: clients' own representations under a shared head (Liang et al. 2020, arXiv:2001.01523, Alg. 1).

A client trains all layers together, sends the top ones and keeps those below, with all of BatchNorm's statistics: the
mirror of FedPer. All start from the server's layers; in the released code these come from a FedAvg run, as they do in a
stage after one. The means are by rows; that code's are uniform. The paper's adversarial loss, and its ensemble of all
clients' models for new ones, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from algorithms.fedavg import FedAvg
from algorithms.top_layers import TopLayers
from engine.algorithm import Client, Context, Entries, Entry, Kind, LocalRun, ModelState, Personalised, Pooled, Tensors


@dataclass(frozen=True)
class LGFedAvg(TopLayers, Personalised, FedAvg):
    entries: ClassVar[Entries] = {
        **Personalised.entries,
        "buffers": Entry(Kind.BUFFERS, "once"),
        "first_base": Entry(Kind.TENSOR, "once"),  # the layers below that all start from
        "top": Kind.TENSOR,
        "base": Kind.TENSOR,  # a client's own
        "statistics": Kind.BUFFERS,  # a client's own
    }
    global_model: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = False

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        base, top = server["weights"].tensor_split([self.base_size(context.layout)])
        return {"first_base": base, "top": top}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"base": received["first_base"].clone(), "statistics": received["buffers"].clone()}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(torch.cat((state["base"], received["top"])), state["statistics"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        base, top = run.end.tensor_split([self.base_size(run.client.context.layout)])
        return {"top": top}, {"base": base, "statistics": run.buffers}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        base, top = server["weights"][: self.base_size(context.layout)], pooled.mean["top"]
        return super().aggregate(server, replace(pooled, mean={"weights": torch.cat((base.to(top), top))}), context)
