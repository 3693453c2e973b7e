"""Optimizers of the server, as steps along a gradient: SGD, Adam and Yogi (Reddi et al. 2021, arXiv:2003.00295).

What they remember is in the server's entries "moment1", "moment2" and "server_steps", absent before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from engine.algorithm import Kind, Tensors
from engine.base.errors import require


@dataclass(frozen=True)
class ServerSteps:
    """Fields and a step for an algorithm whose server does more than take a mean."""

    server_optimizer: Literal["sgd", "adam", "yogi"] = "adam"
    server_lr: float = 0.003  # eta
    server_betas: tuple[float, float] = (0.9, 0.999)  # of adam and yogi: decay of the first and the second moment
    server_eps: float = 1e-8  # of adam and yogi

    moments: ClassVar[Mapping[str, Kind]] = {
        "moment1": Kind.TENSOR,
        "moment2": Kind.TENSOR,
        "server_steps": Kind.SCALAR,
    }

    def check_server(self) -> None:
        """Refuse fields out of range."""
        require(self.server_lr > 0, "server_lr", self.server_lr, "must be greater than 0", "for example 0.003")
        inside = all(0 <= beta < 1 for beta in self.server_betas)
        require(inside, "server_betas", self.server_betas, "must be at least 0 and below 1", "[0.9, 0.999] is usual")
        require(self.server_eps > 0, "server_eps", self.server_eps, "must be greater than 0", "for example 1e-8")

    def check_same_optimizer(self, later: ServerSteps) -> None:
        """Refuse that a schedule makes ``later`` of this one with another optimizer."""
        before, after = self.server_optimizer, later.server_optimizer
        rule = "cannot change in mid-run: what one optimizer remembers means nothing to another"
        require(before == after, "server_optimizer", after, rule, f"keep {before}")

    def stepped(self, server: Tensors, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Tensors]:
        """Return ``weights`` [n] after one step down ``gradient`` [n], and what the server remembers of it."""
        if self.server_optimizer == "sgd":
            return weights - self.server_lr * gradient, {}
        zero = torch.zeros_like(gradient)
        first, second = (server.get(name, zero).to(gradient, copy=True) for name in ("moment1", "moment2"))
        steps = server.get("server_steps", zero.new_zeros(())).to(gradient, copy=True)
        moved = weights.to(gradient, copy=True)
        beta1, beta2 = self.server_betas
        if self.server_optimizer == "adam":
            adam(
                [moved],
                [gradient],
                [first],
                [second],
                [],
                [steps],  # one more after it
                foreach=False,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=self.server_lr,
                weight_decay=0.0,
                eps=self.server_eps,
                maximize=False,
            )
        else:  # without bias correction, as published
            steps = steps + 1
            square = gradient.square()
            first = beta1 * first + (1 - beta1) * gradient
            second = second - (1 - beta2) * square * torch.sign(second - square)
            moved = moved - self.server_lr * first / (second.sqrt() + self.server_eps)
        return moved, {"moment1": first, "moment2": second, "server_steps": steps}
