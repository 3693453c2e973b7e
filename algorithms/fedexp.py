r"""FedExP: the server steps further where clients' updates disagree (Jhunjhunwala, Wang and Joshi 2023,
arXiv:2301.09604, Alg. 1).

With d_k the updates of the cohort and D their mean, the server goes by eta D,

    eta = max(1, mean of ||d_k||^2 / (2 (||D||^2 + epsilon))),

which is in ``rounds.parquet`` (``scalars``: ``extrapolation``). Both means are by samples, as in the released code.
That code takes epsilon times the size of the cohort, and lets it fall as the square of the learning rate does.
Clients go on from these weights, while the model is the mean of the last two rounds', since they swing. A client's own
model, where that is measured or fine-tuned, is what it has received.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from algorithms.fedavg import FedAvg
from engine.algorithm import Context, Entries, Kind, LocalRun, Pooled, Tensors
from engine.base.declared import Doc, Gt, Neutral


@dataclass(frozen=True)
class FedExP(FedAvg):
    epsilon: Annotated[
        float, Gt(0), Doc("added to the squared norm of the mean update; the more, the nearer eta to 1")
    ] = 0.001
    averaged: Annotated[
        bool, Doc("the model is the mean of the last two rounds' weights"), Neutral(False, "takes the last")
    ] = True

    entries: ClassVar[Entries] = {
        **FedAvg.entries,
        "last": Kind.VECTOR,  # the weights that clients start from
        "square": Kind.SCALAR,
        "extrapolation": Kind.SCALAR,
    }

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {"weights": parent["weights"], "last": parent["weights"]}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"weights": server["last"]}

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end, "square": (run.end - run.start).square().sum()}, state

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        mean = pooled.mean["weights"]
        start = server["last"]
        update = mean - start
        eta = (pooled.mean["square"] / (2 * (update.square().sum() + self.epsilon))).clamp(min=1)
        end = torch.where(eta > 1, start + eta * update, mean)  # FedAvg's to the bit where it is 1
        at_start = {**server, "weights": start}
        last = super().aggregate(at_start, replace(pooled, mean={"weights": end}), context)["weights"]
        weights = (start + last) / 2 if self.averaged else last
        return {**server, "weights": weights, "last": last, "extrapolation": eta}
