"""The contract's :class:`~engine.algorithm.TrainingTools`: a net, random numbers by purpose, and a way to train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from math import cos, pi
from typing import Literal, NoReturn

import torch
from torch import Tensor

from engine.algorithm import Batch, Net, Tensors
from engine.client.steps.batched_upload import in_one_copy
from engine.client.steps.drawing_modules import StepDraws, drawing_from
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.step_inputs import Inputs, sent_ahead
from engine.client.vmap.cuda_graph import Program, Recorder
from engine.client.vmap.steps import adam
from engine.data.samples.batches import orders
from engine.data.samples.public import PublicSet, none_set_aside


def no_rows() -> NoReturn:
    """Raise TypeError, in place of yielding a client's rows."""
    raise TypeError("tools.rows is for client_setup; the server has no client's rows")


class FlatTrainingTools:
    """On the net's device; the net is in eval mode, at the weights that its maker has put into it."""

    def __init__(
        self,
        net: FlatNet,
        rng: Callable[[str], torch.Generator],
        public: PublicSet = none_set_aside,
        recorder: Callable[[], Recorder] | None = None,
        rows: Callable[[], Iterator[Batch]] = no_rows,
    ) -> None:
        """``recorder``: makes what captures steps of :meth:`minimise`, where they are to be. ``rows``: a client's."""
        self.net = net
        self._recorder = recorder
        self.rng = rng
        self.public = public
        self.rows = rows
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
                for positions in in_one_copy([own for own in batches if len(own) >= least], self.device):
                    weights.grad, grads = net.gradients(loss(net, positions), trainable, beside)
                    for leaf, grad in zip(beside, grads, strict=True):
                        leaf.grad = grad
                    stepper.step()
        net.train(False)
        return {"weights": net.weights.clone(), "buffers": net.buffers.clone()}

    def minimise(
        self,
        loss: Callable[..., Tensor],
        leaves: Sequence[Tensor],
        inputs: Iterable[Sequence[Tensor]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        named = (Inputs({str(number): tensor for number, tensor in enumerate(own)}) for own in inputs)
        coming = sent_ahead(named, self.device)
        if self._recorder is not None:
            _replayed(Program(self._recorder(), 1, "training beside rounds"), loss, leaves, coming, lr, betas)
            return
        stepper = torch.optim.Adam(leaves, lr=lr, betas=betas)
        for own in coming:
            for leaf, grad in zip(leaves, torch.autograd.grad(loss(*own.rows.values()), leaves), strict=True):
                leaf.grad = grad  # of these alone: a net that is trained against gets none
            stepper.step()


def _replayed(
    program: Program,
    loss: Callable[..., Tensor],
    leaves: Sequence[Tensor],
    inputs: Iterable[Inputs],
    lr: float,
    betas: tuple[float, float],
) -> None:
    """:meth:`FlatTrainingTools.minimise` in steps of a program; the leaves are views of one vector from here on."""
    vector = torch.cat([leaf.detach().reshape(-1) for leaf in leaves])
    for leaf, piece in zip(leaves, vector.split([leaf.numel() for leaf in leaves]), strict=True):
        leaf.data = piece.view(leaf.shape)
    optimize = adam(vector[None], program, "leaves", betas)

    def step(own: Inputs) -> None:
        grads = torch.autograd.grad(loss(*own.rows.values()), leaves)
        optimize(0, 1, vector[None], torch.cat([grad.reshape(-1) for grad in grads])[None], lr)

    for own in inputs:
        program.step("", step, own)
