"""What methods have in common in which each client keeps a whole model of its own: weights and BatchNorm's statistics.

A client's model is what it first receives until it takes part, and local training starts from it; a stage after one
with such models goes on from them. It is client state, never sent; the engine measures it as the client's own
(``personal.parquet``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.algorithm import Algorithm, Client, Kind, LocalRun, Tensors


@dataclass(frozen=True)
class PersonalModel(Algorithm):
    entries: ClassVar[Mapping[str, Kind]] = {
        **Algorithm.entries,
        "personal": Kind.VECTOR,
        "personal_buffers": Kind.BUFFERS,
    }

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        if "personal" in parent:  # of another method whose clients keep whole models, or of this one
            return self.keeping(parent["personal"], parent["personal_buffers"])
        return self.keeping(received["weights"], received["buffers"])

    def start(self, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return state["personal"]

    def start_buffers(self, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return state["personal_buffers"]

    def personal(self, received: Tensors, state: Tensors, client: Client) -> Tensors:
        return {"weights": state["personal"], "buffers": state["personal_buffers"]}

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> Tensors:
        return self.personal(received, state, run.client)

    @staticmethod
    def keeping(weights: Tensor, buffers: Tensor) -> Tensors:
        """The state of a client with the model ``weights`` [P], ``buffers`` [Q]."""
        return {"personal": weights, "personal_buffers": buffers}
