"""SCAFFOLD: control variates correct client drift (Karimireddy et al. 2020, arXiv:1910.06378, Alg. 1).

By default two things differ from the paper:

* ``weighting="samples"``: weights are averaged by samples, as in FedAvg, and the control variates with the matching
  share of all samples. ``"uniform"`` is the paper's.
* With client momentum, option II divides by the steps' accumulated weight (``run.accumulation``) in place of their
  number. The correction is part of the gradient here, so momentum accumulates it too: with the number the control
  variates would come out 1/(1 - momentum) times too large, and the iteration would diverge.

``weighting="cbfl_code"`` takes over one thing of the code released with CBFL, its averages: weights by samples, and
control variates with 1/|S| in place of 1/N. Without momentum that gives the code's weights. It does not give its table:

* The code applies the correction after the optimizer's step, outside momentum, and divides by the number of steps;
  these two go together, as the two here do. With momentum 0.9, as in the table, the weights differ. The contract has no
  hook after a step.
* The code corrects BatchNorm's running means and variances too, which are not weights and have no gradient, and keeps a
  client's variate in whichever process happened to train it.

Two other codes have rules that are the paper's in part only, and no option has them:

* FedDC's repository weighs clients by w_k = n_k K / n, their relative size: the correction is c / w_k - c_k, and what a
  client adds to c is taken w_k times, while weights are averaged uniformly. Where all w_k are 1 it is ``"uniform"``,
  the paper's, which has no w_k.
* NIID-Bench starts all control variates from the weights of a network that is drawn for that, ours start from 0. With
  all clients in each round both come to the same; with some of them that network stays in everybody's correction until
  all have taken part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Context, Kind, LocalRun, Phase, Pooled, Requires, Scalar, Tensors, idle_when
from engine.base.declared import Doc


@dataclass(frozen=True)
class Scaffold(FedAvg):
    option: Annotated[Literal["I", "II"], Doc("of c_k: the gradient at the received weights, or the path")] = "II"
    weighting: Annotated[Literal["samples", "uniform", "cbfl_code"], Doc("how clients are weighted")] = "samples"

    entries: ClassVar = {**FedAvg.entries, "control": Kind.VECTOR, "control_delta": Kind.VECTOR}
    requires: ClassVar = Requires(linear_optimizer=True)

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {"weights": parent["weights"], "control": torch.zeros_like(parent["weights"])}  # c = 0

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"control": torch.zeros_like(received["weights"])}  # c_k = 0; any other start biases every later round

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"weights": server["weights"], "control": server["control"]}

    def phases(self, context: Context) -> tuple[Phase, ...]:
        full = Phase(batch="full", emit="gradient", buffers="keep")
        return (full, Phase()) if self.option == "I" else (Phase(),)

    @idle_when(lambda self, context: context.stage_round == 1)  # all control variates are 0 in the first round
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + (received["control"] - state["control"])  # g_k(y) - c_k + c

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        if run.gradient is not None:
            control = run.gradient  # option I: grad f_k(w)
        else:
            path = (run.start - run.end) / (run.lr * run.accumulation)  # (w - y_k) / (eta a_k)
            control = state["control"] - received["control"] + path  # option II
            control = torch.where(torch.as_tensor(run.steps > 0), control, state["control"])  # no step, no news
        delta = control - state["control"]
        if self.weighting == "cbfl_code":
            delta = delta / run.num_examples  # undone by the sample weights of the mean
        return {"weights": run.end, "control_delta": delta}, {"control": control}

    def weight(self, run: LocalRun) -> Scalar:
        return 1.0 if self.weighting == "uniform" else run.num_examples

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        share = {  # from the cohort's mean to the mean over all clients
            "samples": pooled.weight / context.num_examples,  # pi_k = n_k / n
            "uniform": pooled.count / context.num_clients,  # |S| / N
            "cbfl_code": pooled.weight / pooled.count,  # 1 / |S| where 1 / N is right
        }[self.weighting]
        control = server["control"] + share * pooled.mean["control_delta"]
        return {**super().aggregate(server, pooled, context), "control": control}
