"""FedDC: a drift variable h_k per client bridges its weights and the global ones (Gao et al. 2022, arXiv:2203.11751).

Client k of relative size s_k = n_k K / n trains from w with the gradient

    grad f_k(y) + alpha/s_k (y - w + h_k) + g/s_k - g_k,      (weighting="samples": alpha in place of alpha/s_k)

then adds its update to h_k and sets g_k <- g_k - g/s_k - (y - w)/(eta a_k). The server adds the mean of all h_k,
which it follows without seeing them, to the cohort's mean. So alpha = 0 is not FedAvg.

Where the released code differs, this is what the equations need, and an option has the code's:

* eta is the round's learning rate and a_k the accumulated weight of the steps really taken (``run.accumulation``);
  ``reference_norm``: the first round's rate, and the steps of a client of mean size.
* ``weighting="uniform"`` is the code's. With ``"samples"`` both means are by samples, that of the cohort's weights and
  that of all h_k, and the penalty is alpha for every client: the means then give client k the share s_k/K that 1/s_k
  would take from its penalty. With alpha/s_k the penalties would not cancel where the clients' gradients do, and the
  iteration would end beside the optimum.

The s_k are the repository's weights w_k (``weight_list``). It has them in its SCAFFOLD as well, where the paper of that
method has none: ours is that paper's, see scaffold.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Algorithm,
    Client,
    Context,
    Entries,
    Kind,
    LocalRun,
    Pooled,
    Requires,
    Scalar,
    Tensors,
    batches_in,
)
from engine.base.declared import Doc, Ge, Gt, Neutral


@dataclass(frozen=True)
class FedDC(FedAvg):
    alpha: Annotated[
        float,
        Ge(0),
        Doc("weight of the penalty, by a client's relative size if weighting=uniform"),
        Neutral(0, "is none, which is not FedAvg"),
    ] = 0.01
    weighting: Annotated[Literal["uniform", "samples"], Doc("how clients are weighted")] = "uniform"
    clip: Annotated[
        float | None,
        Gt(0),
        Doc("the largest norm of a step's corrected gradient; the released code: 10"),
        Neutral(None, "is no limit"),
    ] = None
    reference_norm: Annotated[
        bool,
        Doc("scale the correction as the released code does: first rate, steps of the mean client"),
        Neutral(False, "is the paper"),
    ] = False

    entries: ClassVar[Entries] = {
        **Algorithm.entries,
        **dict.fromkeys(("control", "control_delta", "drift", "mean_drift"), Kind.VECTOR),
    }
    requires: ClassVar[Requires] = Requires(linear_optimizer=True)

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        zero = torch.zeros_like(parent["weights"])
        return {"weights": parent["weights"], "control": zero, "mean_drift": zero}  # w, g, mean of all h_k

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        zero = torch.zeros_like(received["weights"])
        return {"drift": zero, "control": zero}  # h_k, g_k

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"weights": server["weights"], "control": server["control"]}

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        size = relative_size(client)
        grad = grad + (received["control"] / size - state["control"])
        if self.alpha != 0:
            alpha = self.alpha if self.weighting == "samples" else self.alpha / size
            grad = grad + alpha * (weights - received["weights"] + state["drift"])
        if self.clip is not None:  # a norm over all parameters: the one phase trains them all
            grad = grad * (self.clip / torch.linalg.vector_norm(grad)).clamp(max=1)
        return grad

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        size, update = relative_size(run.client), run.end - run.start
        path = -update / (self.reference_travel(run) if self.reference_norm else run.lr * run.accumulation)
        moved = path - received["control"] / size  # g_k+ - g_k
        moved = torch.where(torch.as_tensor(run.steps > 0), moved, torch.zeros_like(moved))  # no step, no news
        # The server wants the sum of n_k/n moved, and gets a mean weighted uniformly or by samples.
        upload = {"weights": run.end, "control_delta": size * moved if self.weighting == "uniform" else moved}
        return upload, {"drift": state["drift"] + update, "control": state["control"] + moved}

    def reference_travel(self, run: LocalRun) -> float:
        """Return eta tau as the released code has it: of a client with the mean number of rows, in every round."""
        local, context = run.local, run.client.context
        rows = context.num_examples / context.num_clients
        batches = 1 if local.batch_size == "full" else math.ceil(rows / local.batch_size)
        return local.lr * (local.steps or batches_in(local.epochs, batches))

    def weight(self, run: LocalRun) -> Scalar:
        return run.num_examples if self.weighting == "samples" else 1.0

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        share = {  # from the cohort's mean to the mean over all clients
            "samples": pooled.weight / context.num_examples,
            "uniform": pooled.count / context.num_clients,
        }[self.weighting]
        mean = pooled.mean["weights"]
        drift = server["mean_drift"] + share * (mean - server["weights"])
        control = server["control"] + share * pooled.mean["control_delta"]
        bridged = replace(pooled, mean={"weights": mean + drift})
        return {**super().aggregate(server, bridged, context), "control": control, "mean_drift": drift}


def relative_size(client: Client) -> Scalar:
    """Return s_k = n_k K / n, of mean 1 over all clients."""
    return client.num_examples * client.context.num_clients / client.context.num_examples
