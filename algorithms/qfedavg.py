r"""q-FedAvg: clients with a high loss count for more (q-FFL, Li et al. 2020, arXiv:1905.10497, Alg. 2).

The objective is sum_k p_k / (q + 1) F_k(w)^(q + 1). With F_k the mean loss of the received model on the rows of client
k, d_k = w_k - w its update and L = 1 / eta, all divided by L, the server steps by

    w <- w + sum_k p_k F_k^q d_k / sum_k p_k (F_k^q + q F_k^(q - 1) L ||d_k||^2),

which for q = 0 is FedAvg. A client goes over its rows once more for F_k, in eval mode and not augmented. As in the
released code 1e-10 is added to F_k, and L is 1 / the round's learning rate whatever the optimizer.

The paper draws clients with the probability p_k = n_k / n and sums alike; here they are drawn alike, and the sums have
the p_k. ``weighting="uniform"`` is the released code's p_k = 1 / N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch

from algorithms.fedavg import FedAvg
from engine.algorithm import Context, Entries, Kind, LocalRun, Pooled, Scalar, Tensors
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class QFedAvg(FedAvg):
    q: Annotated[
        float,
        Ge(0),
        Doc("power of a client's loss in its weight; the paper's are 0.001 to 5"),
        Neutral(0, "is FedAvg"),
    ] = 1.0
    weighting: Annotated[Literal["samples", "uniform"], Doc("how clients are weighted besides")] = "samples"

    entries: ClassVar[Entries] = {**FedAvg.entries, "update": Kind.VECTOR, "curvature": Kind.SCALAR}

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        if self.q == 0:
            return super().upload(run, received, state)
        first = run.net.at(received["weights"], received["buffers"])
        with torch.no_grad():
            losses = [len(batch.y) * self.loss(first, batch, received, state) for batch in run.rows()]
        risk = torch.stack(losses).sum() / run.num_examples + 1e-10  # F_k
        update = run.end - run.start
        growth = self.q * risk ** (self.q - 1) * update.square().sum() / run.lr
        return {"update": risk**self.q * update, "curvature": risk**self.q + growth}, state

    def weight(self, run: LocalRun) -> Scalar:
        return run.num_examples if self.weighting == "samples" else 1.0

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        if self.q == 0:
            return super().aggregate(server, pooled, context)
        step = pooled.mean["update"] / pooled.mean["curvature"]
        pooled = replace(pooled, mean={"weights": server["weights"] + step})
        return super().aggregate(server, pooled, context)
