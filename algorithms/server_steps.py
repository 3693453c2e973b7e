"""Optimizers of the server, as steps along a gradient: SGD, Adam and Yogi (Reddi et al. 2021, arXiv:2003.00295).

What they remember is in the server's entries "moment1", "moment2" and "server_steps", absent before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from engine.algorithm import Kind, Tensors
from engine.base.declared import Doc, Ge, Gt, Lt
from engine.base.errors import require


@dataclass(frozen=True)
class ServerSteps:
    """Fields and a step for an algorithm whose server does more than take a mean."""

    server_optimizer: Annotated[Literal["sgd", "adam", "yogi"], Doc("of the server")] = "adam"
    server_lr: Annotated[float, Gt(0), Doc("eta, the rate of the server's optimizer")] = 0.003
    server_betas: Annotated[
        tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]],
        Doc("of adam and yogi: decay of the first and the second moment"),
    ] = (0.9, 0.999)
    server_eps: Annotated[float, Gt(0), Doc("of adam and yogi")] = 1e-8

    moments: ClassVar[Mapping[str, Kind]] = {
        "moment1": Kind.TENSOR,
        "moment2": Kind.TENSOR,
        "server_steps": Kind.SCALAR,
    }

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
