"""FedPer: averaged base layers under personal layers that stay with their client (Arivazhagan et al. 2019,
arXiv:1912.00818).

A client trains all layers together, sends the base layers and keeps the others. The paper's personal layers are the
head, or the head and the last residual blocks before it. ``layers`` counts the head as one, and then the model's blocks
(``Net.tap_names``) from the last on; fully connected layers between the last block and the head go with that block.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import torch

from algorithms.personal_head import PersonalHead
from algorithms.top_layers import TopLayers
from engine.algorithm import Client, Context, Entries, Entry, Kind, LocalRun, ModelState, Pooled, Tensors

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class FedPer(TopLayers, PersonalHead):
    entries: ClassVar[Entries] = {
        **PersonalHead.entries,
        "base": Kind.TENSOR,
        "top": Entry(Kind.TENSOR, "once"),  # where personal layers below the head start
    }

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        shared = self.base_size(context.layout)  # refuses before anything is trained
        log.info("fedper: %d of the model's %d parameters are shared", shared, context.layout.size)
        return super().init_server(parent, context)

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        layout = context.layout
        base, top = layout.body_of(server["weights"]).tensor_split([self.base_size(layout)])
        return {"base": base, "top": top, **self.first_head(server, context)}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        body = torch.cat((received["base"], received["top"]))
        fresh = received["top"].clone()
        kept = parent.get("top", fresh[:0])  # methods whose heads alone are personal keep none
        if len(kept) != len(fresh):  # a head without the layers that it was trained on is worth nothing
            return {"top": fresh, **super().init_state({**received, "body": body}, {}, client)}
        return {"top": kept, **super().init_state({**received, "body": body}, parent, client)}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        weights = torch.cat((received["base"], state["top"], state["head"]))
        return ModelState(weights, received["buffers"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        layout = run.client.context.layout
        base, top = layout.body_of(run.end).tensor_split([self.base_size(layout)])
        return {"base": base}, {"top": top, "head": layout.head_of(run.end)}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        base = pooled.mean["base"]
        return {**server, "weights": torch.cat((base, server["weights"][len(base) :].to(base)))}
