"""The contract's :class:`~engine.algorithm.TrainingTools`: a net, random numbers by purpose, and a way to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice
from math import cos, pi
from typing import Literal

import torch
from torch import Tensor

from engine.algorithm import Net, Tensors
from engine.client.drawing_modules import StepDraws, drawing_from
from engine.client.flat_net import FlatNet
from engine.data.batches import orders
from engine.data.public import PublicSet, none_set_aside


class FlatTrainingTools:
    """On the net's device; the net is in eval mode, at the weights that its maker has put into it."""

    def __init__(self, net: FlatNet, rng: Callable[[str], torch.Generator], public: PublicSet = none_set_aside) -> None:
        self.net = net
        self.rng = rng
        self.public = public
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
        optimizer: Literal["sgd", "adam"] = "sgd",
        schedule: Literal["constant", "cosine"] = "constant",
        beside: Sequence[Tensor] = (),
    ) -> Tensors:
        net = self.net
        net.train(trainable != "head")
        where, _ = net.slices[trainable]
        weights = net.weights[where]
        trained = [weights, *beside]
        if optimizer == "adam":
            stepper: torch.optim.Optimizer = torch.optim.Adam(trained, lr=lr, weight_decay=weight_decay)
        else:
            stepper = torch.optim.SGD(trained, lr=lr, momentum=momentum, weight_decay=weight_decay)
        draws = drawing_from(StepDraws([self.rng])) if net.draws else nullcontext()
        passes = orders(num_rows, batch_size, "keep", self.rng("batches"))
        least = 2 if net.layout.has_batchnorm and trainable != "head" else 1  # statistics of one row are none
        with draws:
            for epoch, batches in enumerate(islice(passes, epochs)):
                if schedule == "cosine":
                    stepper.param_groups[0]["lr"] = lr / 2 * (1 + cos(pi * epoch / epochs))
                for positions in batches:
                    if len(positions) < least:
                        continue
                    weights.grad, grads = net.gradients(loss(net, positions.to(self.device)), trainable, beside)
                    for leaf, grad in zip(beside, grads, strict=True):
                        leaf.grad = grad
                    stepper.step()
        net.train(False)
        return {"weights": net.weights.clone(), "buffers": net.buffers.clone()}
