"""FedNova: clients' updates are normalised by their local work before they are averaged (Wang et al. 2020,
arXiv:2007.07481, Alg. 1 and eq. 9).

a_k is the sum of weights with which client k's gradients entered its update: its number of steps for plain SGD,
``run.accumulation`` with momentum, (1 - (1 - eta mu)^tau_k) / (eta mu) with a proximal term. The server steps by
tau_eff sum_k p_k Delta_k / a_k with tau_eff = sum_k p_k a_k; as both factors are weighted means, no upload has to
be kept. BatchNorm's statistics are left to the engine and are never normalised.

Where clients' sizes are far apart, tau_eff / a_k blows up the updates of the smallest (by 100 in the usual
Dirichlet(0.1) split). ``max_multiplier``, which is ours, limits that; ``rounds.parquet`` says for each round how
many clients it limited (``scalars``: ``held``), and single uploads are kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.fedavgm import FedAvgM
from engine.algorithm import (
    Client,
    Context,
    Entries,
    Kind,
    LocalRun,
    Pooled,
    Requires,
    Scalar,
    Setting,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Gt, Lt, Neutral
from engine.base.errors import require


@dataclass(frozen=True)
class FedNova(FedAvgM):
    server_momentum: Annotated[
        float, Ge(0), Lt(1), Doc("momentum of the server's steps, on the normalised ones"), Neutral(0, "is none")
    ] = 0.0
    tau_eff: Annotated[
        Literal["norm", "steps"],
        Doc("scale of the normalised mean: the mean of a_k, or of the steps as in the authors' code with mu > 0"),
    ] = "norm"
    mu: Annotated[float, Ge(0), Doc("weight of a proximal term"), Neutral(0, "is none")] = 0.0
    max_multiplier: Annotated[
        float | None,
        Gt(0),
        Doc(
            "the most by which a client's update may be stretched, tau_eff / a_k; how many were held is in "
            "`rounds.parquet`"
        ),
        Neutral(None, "is no limit"),
    ] = None

    entries: ClassVar[Entries] = {
        **FedAvgM.entries,
        "direction": Kind.VECTOR,  # Delta_k / a_k
        **dict.fromkeys(("accumulation", "steps", "samples"), Kind.SCALAR),  # a_k, tau_k, n_k
        **dict.fromkeys(("tau_eff", "held"), Kind.SCALAR),  # of the last round, on the server
    }
    requires: ClassVar[Requires] = Requires(linear_optimizer=True)

    def check(self, setting: Setting) -> None:
        local = setting.local
        require(
            self.mu == 0 or local.momentum == 0,
            "algorithm.mu",
            self.mu,
            "a_k is known for a proximal term or for momentum, not for both",
            "set algorithm.mu=0 or local.momentum=0",
        )
        if self.mu > 0 and local.by_step:
            local.demand("is not for a_k of a proximal term, which is known for one rate a round", lr_by="round")
        require(
            local.lr * self.mu < 1,
            "algorithm.mu",
            self.mu,
            f"must be below 1 / local.lr = {1 / local.lr:g}, beyond which steps overshoot the received weights",
            "lower it or local.lr",
        )

    @property
    def stack_uploads(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.max_multiplier is not None

    @idle_when(mu=0)
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if self.mu == 0:
            return grad
        return grad + (weights - received["weights"]).mul_(self.mu)

    def accumulation(self, run: LocalRun) -> Scalar:
        """Return a_k, such that (end - start) is -lr a_k times a constant gradient."""
        if self.mu == 0:
            return run.accumulation
        pull = run.lr * self.mu
        return (1 - (1 - pull) ** run.steps) / pull

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        accumulation = scalar(self.accumulation(run), run.end)
        direction = (run.end - run.start) / accumulation
        direction = torch.where(accumulation > 0, direction, torch.zeros_like(direction))  # no step, no direction
        upload = {"direction": direction, "accumulation": accumulation}
        if self.tau_eff == "steps":
            upload["steps"] = scalar(run.steps, run.end)
        if self.max_multiplier is not None:
            upload["samples"] = scalar(run.num_examples, run.end)
        return upload, state

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        tau_eff = pooled.mean["steps" if self.tau_eff == "steps" else "accumulation"]
        update = tau_eff * pooled.mean["direction"]
        if self.max_multiplier is None:
            return {**self.stepped(server, update), "tau_eff": tau_eff}
        assert pooled.stacked is not None
        single = {name: tensor.double() for name, tensor in pooled.stacked.items()}  # [K, ...]
        highest = self.max_multiplier * single["accumulation"]  # of tau_eff, client by client
        share = single["samples"] / single["samples"].sum()
        update = (share * torch.minimum(tau_eff, highest)) @ single["direction"]
        held = ((highest < tau_eff) & (highest > 0)).sum().to(tau_eff)
        return {**self.stepped(server, update), "tau_eff": tau_eff, "held": held}


def scalar(value: Scalar, like: Tensor) -> Tensor:
    """Return ``value`` as a tensor of the precision and on the device of ``like``."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)
