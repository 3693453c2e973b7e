"""FedPer: averaged base layers under personal layers that stay with their client (Arivazhagan et al. 2019,
arXiv:1912.00818).

A client trains all layers together, sends the base layers and keeps the others. The paper's personal layers are the
head, or the head and the last residual blocks before it. ``layers`` counts the head as one, and then the model's blocks
(``Net.tap_names``) from the last on; fully connected layers between the last block and the head go with that block.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from algorithms.personal_head import PersonalHead
from engine.algorithm import Client, Context, Entries, Entry, Kind, LocalRun, ModelState, ParamLayout, Pooled, Tensors
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require

if TYPE_CHECKING:
    from engine.algorithm import Algorithm

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class FedPer(PersonalHead):
    layers: Annotated[
        int,
        Ge(1),
        Doc(
            "personal layers: the head, then blocks from the last on: residual units, convolutions or hidden layers; "
            "fully connected layers between the last block and the head go with that block"
        ),
        Neutral(1, "is the head alone"),
    ] = 1

    entries: ClassVar[Entries] = {
        **PersonalHead.entries,
        "base": Kind.TENSOR,
        "top": Entry(Kind.TENSOR, "once"),  # where personal layers below the head start
    }

    def base_size(self, layout: ParamLayout) -> int:
        """Return how many of a weight vector's numbers are shared."""
        return personal_from(self.layers, layout)

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, FedPer)
        rule = "cannot change in mid-run: clients have kept their layers"
        require(self.layers == later.layers, "layers", later.layers, rule, f"keep {self.layers}")

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        shared = self.base_size(context.layout)  # refuses before anything is trained
        log.info("fedper: %d of the model's %d parameters are shared", shared, context.layout.size)
        return super().init_server(parent, context)

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        layout = context.layout
        base, top = layout.body_of(server["weights"]).tensor_split([self.base_size(layout)])
        return {"base": base, "top": top}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        body = torch.cat((received["base"], received["top"]))
        fresh = received["top"].clone()
        kept = parent.get("top", fresh[:0])  # methods whose heads alone are personal keep none
        if len(kept) != len(fresh):  # a head without the layers that it was trained on is worth nothing
            return {"top": fresh, **super().init_state({"body": body}, {}, client)}
        return {"top": kept, **super().init_state({"body": body}, parent, client)}

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


def personal_from(layers: int, layout: ParamLayout) -> int:
    """Return where in a weight vector the top ``layers`` begin: the head, then blocks from the last on."""
    if layers == 1:
        return layout.body
    blocks = len(layout.units)
    rule = f"leaves no block to share: the model has {blocks} below its head"
    require(layers <= blocks, "algorithm.layers", layers, rule, f"set it to {max(blocks, 1)} or less")
    return layout.units[-layers]
