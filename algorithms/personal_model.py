"""The base of methods in which each client keeps a whole model of its own: weights and BatchNorm's statistics.

A client's model is what it first receives until it takes part, and local training starts from it; a stage after one
with such models goes on from them. It is client state, never sent; the engine measures it as the client's own
(``personal.parquet``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.algorithm import Client, Entries, Kind, LocalRun, ModelState, Personalised, Tensors


@dataclass(frozen=True)
class PersonalModel(Personalised):
    entries: ClassVar[Entries] = {
        **Personalised.entries,
        "personal": Kind.VECTOR,
        "personal_buffers": Kind.BUFFERS,
    }

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        if "personal" in parent:  # of another method whose clients keep whole models, or of this one
            return self.keeping(self.kept(parent))
        return self.keeping(ModelState(received["weights"], received["buffers"]))

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return self.kept(state)

    def personal_model(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return self.kept(state)

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
        return self.personal_model(received, state, run.client)

    @staticmethod
    def keeping(model: ModelState) -> Tensors:
        """Return the state of a client with this model; :meth:`kept` is the inverse."""
        return {"personal": model.weights, "personal_buffers": model.buffers}

    @staticmethod
    def kept(state: Tensors) -> ModelState:
        """Return the model that a client keeps in its state."""
        return ModelState(state["personal"], state["personal_buffers"])
