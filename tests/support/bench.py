"""A trainer and what it needs, outside a run: one client at a time, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm import Batch, Client, Context, Kind, Tensors, seeds
from engine.client.steps.client_round import ClientTask
from engine.client.steps.entries import kept
from engine.client.steps.flat_net import FlatNet
from engine.client.trainer import Trainer
from engine.data.samples.batches import Rows
from engine.experiment import Local
from engine.models import Model, ModelSpec, build_model
from tests.support.tiny import CLASSES, assignment, dataset

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

    def received(self, algorithm: Any) -> Tensors:
        """What clients get of a server that starts now."""
        server = {**algorithm.init_server(self.start, self.context), "buffers": self.start["buffers"]}
        return {**algorithm.broadcast(server, self.context), "buffers": self.start["buffers"]}

    def newcomer(self, number: int) -> Client:
        """The client as ``init_state`` sees it."""
        return self.trainer.client(number, self.parts[number], replace(self.context, round=0))

    def relabel(self, number: int, labels: Any) -> None:
        """Give a client's rows other labels, beneath the view of them that can only be read."""
        held = self.rows.train.labels.base
        assert held is not None
        held[self.parts[number]] = labels

    def stored(self, number: int, weights: Tensor) -> Tensors:
        """The state, as it is stored, of a client that keeps the head of ``weights`` [P]."""
        head = self.net.layout.head_of(weights).clone()
        return kept({"head": Kind.PERSONAL_HEAD}, {"head": head}, self.client(number))

    def train(self, algorithm: Any, number: int, state: Any = None, local: Local | None = None) -> Any:
        received = self.received(algorithm)
        local = local or Local(epochs=2, batch_size=4, lr=0.1)
        about = (algorithm, local, number, self.parts[number], self.context, received, state or {})
        return self.trainer.train(ClientTask(*about, newcomer=state is None))


def descend(net: FlatNet, part: Literal["body", "head"], batch: Batch, steps: int, **sgd: float) -> None:
    """By torch.optim and autograd: steps at one part of what is in the net, on all of the batch's rows, and on the
    classes that its client has."""
    net.train(False)
    optimizer = torch.optim.SGD(getattr(net.model, part).parameters(), **sgd)  # pyright: ignore[reportArgumentType]
    for _ in range(steps):
        logits = net.model(batch.x).masked_fill(batch.client.class_counts == 0, -torch.inf)
        net.model.zero_grad()
        F.cross_entropy(logits, batch.y).backward()
        optimizer.step()
    net.model.zero_grad()
