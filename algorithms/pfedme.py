"""pFedMe: the global model is trained on Moreau envelopes of the clients' losses (Dinh, Tran and Nguyen 2020,
arXiv:2006.08848, Alg. 1).

In each of R local rounds a client goes K steps from its w towards the minimum theta of f(theta) + lambda/2 ||theta -
w||^2 on one mini-batch, drawn anew, and then w <- w - eta lambda (w - theta), a step down the envelope. The server
takes w <- (1 - beta) w + beta mean of w_k. The last theta is the client's own model.

eta is the round's learning rate, ``local.lr``; ``local.epochs`` and ``local.steps`` are not read. The K steps begin at
w; in the authors' code they go on from the last theta. The mean is by samples, as in that code; the paper's is uniform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.personal_model import PersonalModel
from engine.algorithm import Client, Context, LocalRun, ModelState, Phase, PhaseResult, Setting, Tensors
from engine.base.declared import Doc, Ge, Gt
from engine.base.errors import require


@dataclass(frozen=True)
class PFedMe(PersonalModel, FedAvg):
    lam: Annotated[float, Gt(0), Doc("lambda, how firmly a client's own model is held to the global one")] = 15.0
    local_rounds: Annotated[
        int, Ge(1), Doc("R, mini-batches of a round, in place of `local.epochs` and `local.steps`")
    ] = 20
    inner_steps: Annotated[int, Ge(1), Doc("K, steps of the personal model on each of them")] = 5
    personal_lr: Annotated[float, Gt(0), Doc("of these steps, below 2 / lam; `local.lr` is the outer step's")] = 0.01

    symbols: ClassVar[Mapping[str, str]] = {
        **FedAvg.symbols,
        "lambda": "lam",
        "beta": "server_lr",
        "R": "local_rounds",
        "K": "inner_steps",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must be below 2 / lam = {2 / self.lam:g}, beyond which no steps converge"
        require(self.personal_lr < 2 / self.lam, "personal_lr", self.personal_lr, rule, "for example 0.01")

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(received["weights"], received["buffers"])

    def phases(self, context: Context) -> tuple[Phase, ...]:
        inner = Phase(name="theta", steps=self.inner_steps, repeat=self.inner_steps, lr=self.personal_lr)
        return (inner,) * self.local_rounds

    def phase_start(self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return self.outer(previous, client)

    def outer(self, inner: PhaseResult, client: Client) -> Tensor:
        """Return [P] w after a local round that came to theta = ``inner.end``."""
        return inner.start - client.context.lr * self.lam * (inner.start - inner.end)

    def check(self, setting: Setting) -> None:
        if setting.local.by_step:
            setting.local.demand("is not for pfedme, whose steps have rates of their own", lr_by="round")

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + (weights - received["phase_start"]).mul_(self.lam)  # grad f(theta) + lambda (theta - w)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": self.outer(run.ends["theta"], run.client)}, self.keeping(run.model)
