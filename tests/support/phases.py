"""An algorithm that notes what its phases are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Context, Net, Phase, Tensors
from engine.experiment import Local
from engine.models import MLP, ModelSpec
from tests.support.bench import Bench


@dataclass(frozen=True)
class Spy(FedAvg):
    """FedAvg that notes what its methods are given, and takes as many phases as it is asked to."""

    wanted: tuple[Phase, ...] = (Phase(),)
    seen: list[tuple[str, list[int]]] = field(default_factory=list)  # of each batch: phase, rows

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return self.wanted

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        # Rows are told apart by their first pixels.
        self.seen.append((batch.client.phase, [hash(tuple(row.tolist())) for row in batch.x.flatten(1)]))
        return super().loss(net, batch, received, state)

    def rows_of(self, phase: str) -> list[list[int]]:
        return [rows for name, rows in self.seen if name == phase]


def spied(*phases: Phase, client: int = 0, spec: ModelSpec | None = None, **local: Any) -> Spy:
    """What was seen of these phases of a client of 12 rows."""
    spy = Spy(wanted=phases)
    Bench(spec or MLP(hidden=(4,))).train(spy, client, local=Local(**{"batch_size": 5, "lr": 0.1, **local}))
    return spy
