"""NaiveMix: Mixup with averages of other clients' images (Yoon et al. 2021, arXiv:2107.00233, Alg. 1 and eq. 3).

Before a stage's first round each client cuts its rows, in random order, into parts of ``mash`` and sends the mean
image and the mean one-hot label of each; the server hands all of them to everybody. Images are as the network sees
them, normalised, but not augmented. The last part of a client may be smaller; it is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Clients,
    ClientView,
    Context,
    Entry,
    Kind,
    Net,
    Requires,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Lt, Neutral
from engine.base.errors import require

log = logging.getLogger("fedskew")


def averages(view: ClientView, shared: Tensors, size: int) -> Tensors:
    """Return mean images [J, channels, height, width] and labels [J, C] of parts of ``size`` rows; 0 is all rows."""
    batches = list(view.rows())
    x, y = torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches])
    hot = F.one_hot(y, view.client.context.layout.classes).to(x.dtype)
    order = torch.randperm(len(y), generator=view.client.rng("mash")).to(x.device)
    parts = order.split(size or len(order))
    images, labels = (torch.stack([tensor[part].mean(0) for part in parts]) for tensor in (x, hot))
    return {"images": images, "labels": labels}


@dataclass(frozen=True)
class NaiveMix(FedAvg):
    mix: Annotated[float, Ge(0), Lt(1), Doc("lambda, the share of the others' averages"), Neutral(0, "is FedAvg")] = 0.1
    mash: Annotated[int, Ge(0), Doc("M_k, rows in an average; 0: all of a client; 1 sends raw images")] = 0

    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "lambda": "mix", "M_k": "mash"}
    requires: ClassVar[Requires] = Requires(no_tokens="mixes rows with averages of rows")
    entries: ClassVar = {**Algorithm.entries, **dict.fromkeys(("images", "labels"), Entry(Kind.IMAGES, "once"))}

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, NaiveMix)
        rule = "comes too late: averages are made before the stage's first round"
        require(self.mix > 0 or later.mix == 0, "schedule", f"mix={later.mix}", rule, "begin the stage with mix > 0")
        require(later.mash == self.mash, "schedule", f"mash={later.mash}", rule, f"keep mash={self.mash}")

    def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
        if self.mix == 0:
            return server
        if self.mash == 1:
            log.warning("mash=1: an average of one row is that row; every image is sent to all clients as it is")
        return {**server, **clients.map(partial(averages, size=self.mash), {}, reduce="stack")}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        if self.mix == 0:
            return super().broadcast(server, context)
        return {name: server[name] for name in ("weights", "images", "labels")}

    @idle_when(mix=0)
    def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
        if self.mix == 0:
            return {}
        return {"partner": torch.randint(len(received["labels"]), (1,), generator=client.rng("partner"))}

    @idle_when(mix=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        if self.mix == 0:
            return super().loss(net, batch, received, state)
        image, label = self.partner(batch, received)
        log_p = F.log_softmax(net((1 - self.mix) * batch.x + self.mix * image), dim=1)
        return self.mixed(log_p, batch, label)

    def partner(self, batch: Batch, received: Tensors) -> tuple[Tensor, Tensor]:
        """Return the step's average [1, channels, height, width] and its label [1, C]."""
        return received["images"][batch.drawn["partner"]], received["labels"][batch.drawn["partner"]]

    def mixed(self, log_p: Tensor, batch: Batch, label: Tensor) -> Tensor:
        """Return (1 - lambda) CE(., y_i) + lambda CE(., y_bar), mean over the batch; ``log_p``: [B, C]."""
        return (1 - self.mix) * F.nll_loss(log_p, batch.y) - self.mix * (label * log_p).sum(1).mean()
