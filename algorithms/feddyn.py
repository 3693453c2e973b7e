"""FedDyn: each client's objective is corrected so that all have the global optimum in common (Acar et al. 2021,
arXiv:2111.04263, Alg. 1).

Client k trains from w by the gradient of its dynamically regularised objective (eq. 1 of the paper),

    grad f_k(y) - g_k + alpha (y - w),

and sets g_k <- g_k - alpha (y_k - w): where the training has come to its end, g_k is grad f_k(y_k). The server follows
h, the mean of all clients' g_k, without seeing one: h <- h - alpha / m sum over the cohort of (y_k - w), m being the
number of all clients. The new weights are the cohort's mean less h / alpha. In the first round g_k and h are 0, and a
client's part is FedProx with mu = alpha.

The paper's objective and means weigh clients alike. With ``weighting="samples"`` the cohort's mean and h both are by
rows, for the objective that FedAvg has; the released code comes to the same by an alpha of each client's own. That code
evaluates the mean of clients' models and never the server's, which swings more where alpha is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Algorithm, Client, Context, Entries, Kind, LocalRun, Pooled, Scalar, Tensors
from engine.base.declared import Doc, Gt


@dataclass(frozen=True)
class FedDyn(FedAvg):
    alpha: Annotated[
        float,
        Gt(0),
        Doc(
            "weight of the regulariser; no value is neutral, since the server divides by it; the paper's are 0.001 "
            "to 0.1"
        ),
    ] = 0.01
    weighting: Annotated[Literal["uniform", "samples"], Doc("how clients are weighted")] = "uniform"

    entries: ClassVar[Entries] = {
        **Algorithm.entries,
        "mean_gradient": Kind.VECTOR,  # h, on the server
        "local_gradient": Kind.VECTOR,  # g_k, of a client
    }

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {"weights": parent["weights"], "mean_gradient": torch.zeros_like(parent["weights"])}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"local_gradient": torch.zeros_like(received["weights"])}

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad - state["local_gradient"] + self.alpha * (weights - received["weights"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        kept = state["local_gradient"] - self.alpha * (run.end - run.start)
        return {"weights": run.end}, {"local_gradient": kept}

    def weight(self, run: LocalRun) -> Scalar:
        return run.num_examples if self.weighting == "samples" else 1.0

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        share = {  # from the cohort's mean to the mean over all clients, of whom the absent have not moved
            "samples": pooled.weight / context.num_examples,
            "uniform": pooled.count / context.num_clients,
        }[self.weighting]
        mean = pooled.mean["weights"]
        mean_gradient = server["mean_gradient"] - self.alpha * share * (mean - server["weights"])
        corrected = replace(pooled, mean={"weights": mean - mean_gradient / self.alpha})
        return {**super().aggregate(server, corrected, context), "mean_gradient": mean_gradient}
