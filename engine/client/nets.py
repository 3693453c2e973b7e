"""A run's networks: the experiment's, and those of clients with architectures of their own.

With ``experiment.client_models`` client k has number k mod their count. A process keeps one network of each
architecture, whosever weights are in it; what is frozen in it is the same for all clients.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.algorithm import ParamLayout, Tensors, seeds
from engine.client.steps.flat_net import FlatNet
from engine.data import Dataset
from engine.experiment import Experiment
from engine.models import ModelSpec, build_model

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def open_model(
    experiment: Experiment,
    dataset: Dataset,
    device: torch.device,
    spec: ModelSpec | None = None,
    client: int = -1,
) -> FlatNet:
    """A network, by default the experiment's, with initial weights that depend on the seed and the client alone.

    client: whose they are; -1: the server's.
    """
    generator = seeds.generator(experiment.seed, "weights", 0, client)
    model = build_model(spec or experiment.model, dataset.shape, len(dataset.classes), generator)
    return FlatNet(model, device, DTYPES[experiment.execution.precision], dataset.shape)


class ClientNets:
    """The network of each client: the experiment's, or one of its own architecture."""

    def __init__(self, experiment: Experiment, dataset: Dataset, common: FlatNet) -> None:
        self._experiment, self._dataset = experiment, dataset
        self.specs = experiment.client_models
        device = common.weights.device
        self._nets = {spec: open_model(experiment, dataset, device, spec) for spec in self.specs}
        self._common = common

    @property
    def differ(self) -> bool:
        """True if clients have architectures of their own, so that no weights but their own fit them."""
        return bool(self.specs)

    def of(self, client: int) -> FlatNet:
        return self._nets[self.specs[client % len(self.specs)]] if self.specs else self._common

    def fresh(self, client: int) -> Tensors:
        """ "weights" [P] and "buffers" [Q] that the client begins with: of its own architecture, drawn for it."""
        spec = self.specs[client % len(self.specs)]
        net = open_model(self._experiment, self._dataset, self._common.weights.device, spec, client)
        return {"weights": net.weights, "buffers": net.buffers}

    @property
    def all(self) -> list[FlatNet]:
        """Those of clients with architectures of their own."""
        return list(self._nets.values())

    @property
    def largest(self) -> FlatNet:
        """The one of the clients' networks with the most weights."""
        return max(self._nets.values(), key=lambda net: net.layout.size, default=self._common)


def without_model(layout: ParamLayout) -> ParamLayout:
    """Return the layout of a server that has no weights: nothing in it is laid out."""
    return replace(layout, body=0, head=0, buffers=0, parameters=(), norms=(), units=())
