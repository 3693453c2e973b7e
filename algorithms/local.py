"""Local training alone: every client goes on from its own weights, and nothing is sent: what a federation must beat.

The server has nothing but the weights from which all clients started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from algorithms.personal_model import PersonalModel
from engine.algorithm import Context, Entries, Entry, Kind, LocalRun, Pooled, Tensors


@dataclass(frozen=True)
class LocalOnly(PersonalModel):
    entries: ClassVar[Entries] = {
        **PersonalModel.entries,
        "weights": Entry(Kind.VECTOR, "once"),
        "buffers": Entry(Kind.BUFFERS, "once"),
    }
    global_model: ClassVar[bool] = False
    mixed_models: ClassVar[bool] = True
    shares_buffers: ClassVar[bool] = False

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {}, self.keeping(run.model)

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return server
