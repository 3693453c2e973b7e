"""Ditto: FedAvg, and a personal model of each client that is held near the global one (Li et al. 2021,
arXiv:2012.04221, Alg. 1).

With the received weights w, client k trains its v_k by the gradient of f_k(v) + lambda/2 ||v - w||^2, and then w
itself, which is all that the server sees. The two do not meet within a round, so their order does not matter; their
random draws are separate, so the server's part is FedAvg to the bit. v_k starts at the first w that the client
receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.personal_model import PersonalModel
from engine.algorithm import Client, Context, LocalRun, ModelState, Phase, PhaseResult, Tensors, idle_when
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class Ditto(PersonalModel, FedAvg):
    lam: Annotated[
        float,
        Ge(0),
        Doc("lambda, how firmly a client's own model is held to the global one"),
        Neutral(0, "is local training beside FedAvg"),
    ] = 0.1
    personal_epochs: Annotated[
        int | None, Ge(1), Doc("passes for the personal model"), Neutral(None, "is as many as for the global one")
    ] = None

    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "lambda": "lam"}

    def phases(self, context: Context) -> tuple[Phase, ...]:
        # The global model is the last: the buffers that are averaged are those at the end.
        return Phase(name="personal", epochs=self.personal_epochs), Phase()

    def phase_start(self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(received["weights"], received["buffers"])

    @idle_when(lambda self, context, phase: self.lam == 0 or phase != "personal")
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        if self.lam == 0 or client.phase != "personal":
            return grad
        return grad + (weights - received["weights"]).mul_(self.lam)  # grad f_k(v) + lambda (v - w)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, self.keeping(run.ends["personal"].model)
