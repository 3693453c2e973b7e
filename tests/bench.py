"""A trainer and what it needs, outside a run: one client at a time, in float64."""

from __future__ import annotations

from typing import Any

import torch

from engine import seeds
from engine.algorithm import Batch, Client, Context
from engine.data.batches import Rows
from engine.experiment import Local
from engine.models import Model, ModelSpec, build_model
from engine.training import Trainer
from engine.weights import FlatNet
from tests.tiny import CLASSES, assignment, dataset

FEW = [12, 5, 9]  # clients of three sizes
CPU = torch.device("cpu")


class Bench:
    """Clients of the given sizes on the tiny images, and a network of ``spec``."""

    def __init__(
        self,
        spec: ModelSpec,
        participation: float = 1.0,
        sizes: tuple[int, ...] = tuple(FEW),
        shape: tuple[int, int, int] = (1, 8, 8),
    ) -> None:
        self.rows = dataset(sum(sizes), shape)
        model: Model = build_model(spec, shape, CLASSES, seeds.generator(0, "weights"))
        self.net = FlatNet(model, CPU, torch.float64, shape)
        self.context = Context(
            round=1,
            lr=0.1,
            num_clients=len(sizes),
            num_examples=sum(sizes),
            cohort_size=len(sizes),
            expected_cohort=participation * len(sizes),
            participation=participation,
            layout=self.net.layout,
            stage_round=1,
        )
        self.trainer = Trainer(self.net, Rows(self.rows, self.rows.train, CPU, torch.float64), seed=0)
        self.start = {"weights": self.net.weights.clone(), "buffers": self.net.buffers.clone()}
        self.parts = [torch.as_tensor(part) for part in assignment(list(sizes)).clients]

    def client(self, number: int) -> Client:
        return self.trainer.client(number, self.parts[number], self.context)

    def batch(self, number: int) -> Batch:
        return next(self.trainer.one_pass(self.client(number), self.parts[number]))

    def train(self, algorithm: Any, number: int, state: Any = None, local: Local | None = None) -> Any:
        server = {**algorithm.init_server(self.start, self.context), "buffers": self.start["buffers"]}
        received = {**algorithm.broadcast(server, self.context), "buffers": self.start["buffers"]}
        local = local or Local(epochs=2, batch_size=4, lr=0.1)
        return self.trainer.train(
            algorithm, local, number, self.parts[number], self.context, received, state or {}, newcomer=state is None
        )
