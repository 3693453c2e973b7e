"""The contract's :class:`~engine.algorithm.Workbench`: a net, random numbers by their purpose, and a way to train."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Literal

import torch
from torch import Tensor

from engine.algorithm import Net, Tensors
from engine.data.batches import orders
from engine.weights import FlatNet


class FlatWorkbench:
    """On the net's device; the net is in eval mode, at what whoever makes the bench has put into it."""

    def __init__(self, net: FlatNet, rng: Callable[[str], torch.Generator]) -> None:
        self.net = net
        self.rng = rng
        self.device = net.weights.device

    def fit(
        self,
        loss: Callable[[Net, Tensor], Tensor],
        num_rows: int,
        epochs: int,
        batch_size: int,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trainable: Literal["all", "body", "head"] = "all",
    ) -> Tensors:
        net = self.net
        net.train(trainable != "head")
        where, _ = net.slices[trainable]
        weights = net.weights[where]
        optimizer = torch.optim.SGD([weights], lr=lr, momentum=momentum, weight_decay=weight_decay)
        passes = orders(num_rows, batch_size, "keep", self.rng("batches"))
        least = 2 if net.layout.has_batchnorm and trainable != "head" else 1  # statistics of one row are none
        for positions in chain.from_iterable(islice(passes, epochs)):
            if len(positions) >= least:
                weights.grad = net.backward(loss(net, positions.to(self.device)), trainable)
                optimizer.step()
        net.train(False)
        return {"weights": net.weights.clone(), "buffers": net.buffers.clone()}
