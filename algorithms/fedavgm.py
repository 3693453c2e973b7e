"""FedAvgM: momentum on the server's steps (Hsu et al. 2019, arXiv:1909.06335, section 4.3).

``form`` names three public readings of it, with D the cohort's mean update and v the velocity, 0 at first:

* ``heavy_ball``, the paper's: v <- beta v + D, step v;
* ``nesterov`` (Flower's baseline): v <- beta v + D, step D + beta v, which makes the first step (1 + beta) D;
* ``ema`` (MOON's code): v <- beta v + (1 - beta) D, step v, which does not lengthen steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Algorithm, Context, Entries, Kind, Pooled, Tensors
from engine.base.declared import Doc, Ge, Lt, Neutral


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    server_momentum: Annotated[
        float, Ge(0), Lt(1), Doc("beta, momentum of the server's steps"), Neutral(0, "is FedAvg")
    ] = 0.9
    form: Annotated[
        Literal["heavy_ball", "nesterov", "ema"],
        Doc("of that momentum: a sum, Nesterov's look-ahead, or a running mean"),
    ] = "heavy_ball"

    entries: ClassVar[Entries] = {**Algorithm.entries, "velocity": Kind.VECTOR}
    symbols: ClassVar[Mapping[str, str]] = {
        **FedAvg.symbols,
        "beta": "server_momentum",
        "beta_s": "server_momentum",
    }

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        if self.server_momentum == 0:
            return super().aggregate(server, pooled, context)
        return self.stepped(server, pooled.mean["weights"] - server["weights"])

    def stepped(self, server: Tensors, update: Tensor) -> Tensors:
        """Return the server after a step along the cohort's mean ``update`` [P]."""
        beta = self.server_momentum
        if beta == 0:
            return {**server, "weights": server["weights"] + self.server_lr * update}
        velocity = server.get("velocity", torch.zeros_like(update))  # none in a stage's first round
        velocity = beta * velocity + ((1 - beta) * update if self.form == "ema" else update)
        step = update + beta * velocity if self.form == "nesterov" else velocity
        return {**server, "weights": server["weights"] + self.server_lr * step, "velocity": velocity}
