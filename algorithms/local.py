"""Local training alone: every client goes on from its own weights, and nothing is sent. What federations must beat.

The server has nothing but the weights that all started from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from algorithms.personal_model import PersonalModel
from engine.algorithm import Client, Context, LocalRun, Pooled, Tensors


@dataclass(frozen=True)
class LocalOnly(PersonalModel):
    sent_once: ClassVar[frozenset[str]] = frozenset({"weights", "buffers"})
    global_model: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = False

    def start(self, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return state["personal"]

    def start_buffers(self, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return state["personal_buffers"]

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {}, self.keeping(run.end, run.buffers)

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return server
