"""Federations small enough to follow with a pencil: a model of one weight, trained by the real trainer, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine.algorithm import Algorithm, Batch, Context, Net, Pooled, Tensors, seeds
from engine.client.steps.client_round import ClientResult, ClientTask
from engine.client.steps.flat_net import FlatNet
from engine.client.trainer import Trainer
from engine.data import Dataset, Split
from engine.data.samples.batches import Rows
from engine.experiment import Local
from engine.models import Logistic, build_model

CPU = torch.device("cpu")


def regression(targets: list[float]) -> tuple[Trainer, FlatNet]:
    """A model of one weight y and no data to speak of: row i says what its client minimises, f = (y - target_i)^2 / 2.

    The logistic model on 1x1 images has weights [w, b] and one class; the losses below read w alone.
    """
    split = Split(np.array(targets, np.float32).reshape(-1, 1, 1, 1), np.zeros(len(targets), np.int64))
    data = Dataset("pencil", ("only",), split, split, (0.0,), (1.0,))
    model = build_model(Logistic(), (1, 1, 1), 1, seeds.generator(0, "weights"))
    net = FlatNet(model, CPU, torch.float64)
    net.weights.zero_()
    return Trainer(net, Rows(data, data.train, CPU, torch.float64), seed=0), net


def weight_of(net: Net) -> torch.Tensor:
    """[] w, as the head has it: a net at the end of a step has no weights of its own to look at."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return (net.head(one) - net.head(0 * one)).view(())


def quadratic(curvature: float = 1.0) -> Any:
    """loss = curvature/2 * mean (w - x)^2, as an override for any algorithm."""

    def loss(self: Algorithm, net: Net, batch: Batch, received: Tensors, state: Tensors) -> torch.Tensor:
        return curvature / 2 * (weight_of(net) - batch.x.view(-1)).square().mean()

    return loss


def linear(self: Algorithm, net: Net, batch: Batch, received: Tensors, state: Tensors) -> torch.Tensor:
    """loss = mean of x w: its gradient is the client's mean target, wherever w is."""
    return net.model.head.weight.view(()) * batch.x.mean()  # type: ignore[attr-defined]


def context(net: FlatNet, lr: float = 0.1, clients: int = 2, examples: int = 2, cohort: int = 2) -> Context:
    return Context(1, lr, clients, examples, cohort, float(cohort), cohort / clients, net.layout)


def pool(trained: list[ClientResult], ids: tuple[int, ...] = ()) -> Pooled:
    """What the server sees of these uploads; formed here, apart from the engine's sums."""
    names = trained[0].upload
    weight = sum(one.weight for one in trained)
    stacked = {name: torch.stack([one.upload[name] for one in trained]) for name in names}
    shares = torch.tensor([one.weight / weight for one in trained], dtype=torch.float64)
    mean = {name: torch.einsum("k,k...->...", shares, tensor) for name, tensor in stacked.items()}
    return Pooled(mean, weight, len(trained), stacked, ids)


@dataclass
class Federation:
    """Clients of one weight; rounds in full batches, so that a client's loss has its mean target."""

    algorithm: Algorithm
    targets: list[list[float]]  # of each client, its rows
    steps: list[int]  # of each client
    lr: float = 0.1
    start: float = 0.0
    local: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trainer, self.net = regression([target for client in self.targets for target in client])
        ends = np.cumsum([len(client) for client in self.targets])
        self.rows = [torch.arange(end - len(client), end) for client, end in zip(self.targets, ends, strict=True)]
        self.states: list[Tensors | None] = [None] * len(self.targets)
        self.context = context(self.net, self.lr, len(self.targets), int(ends[-1]), len(self.targets))
        weights = torch.tensor([self.start, 0.0], dtype=torch.float64)
        self.server = self.algorithm.init_server({"weights": weights}, self.context)

    @property
    def weight(self) -> float:
        return self.server["weights"][0].item()

    def train(self, client: int) -> ClientResult:
        return self.trainer.train(self._visit(client))

    def own(self, client: int) -> float:
        """The weight that a client would use, with what it would receive now."""
        self.trainer.personalise(self._visit(client))
        return self.net.weights[0].item()

    def _visit(self, client: int) -> ClientTask:
        received = {**self.algorithm.broadcast(self.server, self.context), "buffers": self.net.buffers}
        state = self.states[client]
        local = Local(**{"lr": self.lr, "steps": self.steps[client], "batch_size": 1000, **self.local})
        about = (self.algorithm, local, client, self.rows[client], self.context, received, state or {})
        return ClientTask(*about, newcomer=state is None)

    def round(self, cohort: list[int] | None = None) -> list[ClientResult]:
        """One round of all clients, or of ``cohort``; the clients' uploads and states."""
        ids = list(range(len(self.targets))) if cohort is None else cohort
        trained = [self.train(client) for client in ids]
        for client, one in zip(ids, trained, strict=True):
            self.states[client] = one.new_state
        self.server = self.algorithm.aggregate(self.server, pool(trained, tuple(ids)), self.context)
        return trained
