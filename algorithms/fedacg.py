r"""FedACG: clients start where the server's momentum will have led (Kim, Kim and Han 2024, arXiv:2201.03172, Alg. 1).

The server sends w + lambda m. Clients train from there, held to it by FedProx's term (mu is the paper's beta), and with
D their mean update

    m <- lambda m + D,      w <- w + m.

With ``server_lr=1`` the new w is thus the mean of the clients' weights, and m the step from the old w to it. The mean
is by samples; the paper's is uniform. BatchNorm's statistics have no momentum. The released code adds
0.001 ||y - w||^2, without the half: mu = 0.002.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from engine.algorithm import Context, Entries, Kind, Pooled, Tensors
from engine.base.declared import Doc, Ge, Lt, Neutral


@dataclass(frozen=True)
class FedACG(FedProx):
    server_momentum: Annotated[
        float,
        Ge(0),
        Lt(1),
        Doc("lambda, of the server's momentum ahead of which clients start"),
        Neutral(0, "is FedProx"),
    ] = 0.85
    mu: Annotated[float, Ge(0), Doc("weight of the proximal term"), Neutral(0, "is none")] = 0.002

    entries: ClassVar[Entries] = {**FedAvg.entries, "velocity": Kind.VECTOR}
    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "lambda": "server_momentum", "beta": "mu"}
    neutral: ClassVar[Mapping[str, Any]] = {"server_momentum": 0, "mu": 0}

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {"weights": parent["weights"], "velocity": torch.zeros_like(parent["weights"])}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        if self.server_momentum == 0:
            return super().broadcast(server, context)
        return {"weights": server["weights"] + self.server_momentum * server["velocity"]}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        velocity = pooled.mean["weights"] - server["weights"]  # lambda m + D, since D is from w + lambda m on
        return {**super().aggregate(server, pooled, context), "velocity": velocity}
