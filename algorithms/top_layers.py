"""The base of FedPer, LG-FedAvg and FedALA: a model is cut once, below the last of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from engine.algorithm import Algorithm, ParamLayout
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require


@dataclass(frozen=True)
class TopLayers(Algorithm):
    layers: Annotated[
        int,
        Ge(1),
        Doc(
            "layers that are personal (fedper), shared (lg_fedavg) or mixed (fedala): the head, then blocks from the "
            "last on: residual units, convolutions or hidden layers; fully connected layers between the last block and "
            "the head go with that block"
        ),
        Neutral(1, "is the head alone"),
    ] = 1

    def base_size(self, layout: ParamLayout) -> int:
        """Return how many of a weight vector's numbers are below these layers."""
        if self.layers == 1:
            return layout.body
        blocks = len(layout.units)
        rule = f"leaves no block below them: the model has {blocks} below its head"
        require(self.layers <= blocks, "algorithm.layers", self.layers, rule, f"set it to {max(blocks, 1)} or less")
        return layout.units[-self.layers]

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, TopLayers)
        rule = "cannot change in mid-run: clients have kept their layers"
        require(self.layers == later.layers, "layers", later.layers, rule, f"keep {self.layers}")
