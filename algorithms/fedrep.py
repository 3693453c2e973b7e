"""FedRep: heads first, then the shared body (Collins et al. 2021, arXiv:2102.07078, Alg. 1).

A client trains its own head with the body frozen, then the body with that head frozen; bodies are averaged by rows.
The fields say for how long, not ``local.epochs`` or ``local.steps``; the rest of the section ``local`` holds for both
phases. In the released code all clients train their heads once more at the end, for 10 epochs:
``evaluation.fine_tune_epochs=10``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from algorithms.personal_head import PersonalHead
from engine.algorithm import Context, Phase
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class FedRep(PersonalHead):
    head_epochs: Annotated[
        int,
        Ge(0),
        Doc("passes at the head, before the body's, in place of `local.epochs`"),
        Neutral(0, "leaves heads as they were"),
    ] = 10
    body_epochs: Annotated[
        int,
        Ge(0),
        Doc("passes at the body; the released scripts: 1 for CIFAR-10 with (100, 2), else 5"),
        Neutral(0, "leaves the body"),
    ] = 1

    def phases(self, context: Context) -> tuple[Phase, ...]:
        heads = Phase(epochs=self.head_epochs, trainable="head", features="cached")
        body = Phase(epochs=self.body_epochs, trainable="body")
        return (heads, body) if self.head_epochs else (body,)
