"""Clients answer the public set once; response-based aggregation knows nothing else of their models.

A stage without rounds after one whose clients keep whole models of their own. Each client runs its model, whatever its
architecture, over the public samples in eval mode. It sends its logits for the classes of which it has rows, and says
which classes these are: N |L_i| + C numbers, and nothing else. The answers are a stage of their own, so they depend on
the models and the public set alone, and all methods that learn from them can share them.

A client that took no part in the stage before has no model of its own, so it is not a teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from algorithms.personal_model import PersonalModel
from engine.algorithm import Clients, ClientView, Compute, Context, Entries, Kind, Net, PostTraining, Setting, Tensors
from engine.base.declared import Doc, Ge
from engine.base.errors import ConfigError, RunError

CHUNK_ROWS = 500  # of one forward pass


def own_model(view: ClientView) -> Net | None:
    """Return the client's model as the stage before has left it; a client that never took part has none."""
    return view.at(view.state["personal"], view.state["personal_buffers"]) if view.state else None


def answer(view: ClientView, shared: Tensors, per_class: int) -> Tensors:
    """Return a client's message: "logits" [N |L_i|] of its own classes, and "known" bool [1, C], which these are."""
    net, known = own_model(view), view.client.class_counts > 0
    if net is None:
        return {}
    x, _ = view.public(per_class)
    logits = torch.cat([net(part)[:, known] for part in x.split(CHUNK_ROWS)])
    return {"logits": logits.reshape(-1), "known": known[None]}


def spread(logits: Tensor, known: Tensor) -> Tensor:
    """Return [M, N, C] answers, 0 where a teacher does not know the class, from [N |L_i|] logits teacher by teacher.

    known: bool [M, C].
    """
    rows = len(logits) // int(known.sum())
    answers = logits.new_zeros(len(known), rows, known.shape[1])
    sizes = [rows * size for size in known.sum(1).tolist()]
    for teacher, part in enumerate(logits.split(sizes)):
        answers[teacher][:, known[teacher]] = part.view(rows, -1)
    return answers


@dataclass(frozen=True)
class Answers(PostTraining, PersonalModel):
    per_class: Annotated[int, Ge(1), Doc("n_c, public images of each class that clients answer")] = 100

    entries: ClassVar[Entries] = {
        **PersonalModel.entries,
        "answers": Kind.LOGITS,  # [M, N, C] of the teachers, in the order of the clients
        "known": Kind.TENSOR,  # bool [M, C]
    }
    symbols: ClassVar[Mapping[str, str]] = {"n_c": "per_class"}
    global_model: ClassVar[bool] = False
    mixed_models: ClassVar[bool] = True

    def check(self, setting: Setting) -> None:
        for before in setting.before:
            if not isinstance(before.algorithm, PersonalModel):
                field = f"stages.{before.name}.algorithm.name"
                rule = "leaves clients no whole models of their own that could answer"
                raise ConfigError(field, before.algorithm_name, rule, "set it to local")

    @property
    def public_per_class(self) -> int:
        return self.per_class

    @property
    def keeps_head(self) -> bool:
        return False

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        sent = clients.map(partial(answer, per_class=self.per_class), {}, reduce="stack", states=True)
        if not sent:
            raise RunError(
                "no client has taken part in training, so that none could answer: give the stage more rounds"
            )
        known = sent["known"]
        unknown = [str(number) for number, taught in enumerate(known.any(0).tolist()) if not taught]
        if unknown:
            raise RunError(
                f"no client that has trained has rows of classes {', '.join(unknown)}, so that nobody could teach "
                "these: let all clients take part, and choose a partition by which every class has an owner"
            )
        answers = spread(sent["logits"], known)
        if answers.shape[1] != self.per_class * known.shape[1]:
            raise RunError(
                f"the public set has samples of {answers.shape[1] // self.per_class} of {known.shape[1]} classes: "
                "choose a partition that sets some of each aside"
            )
        return {**server, "answers": answers, "known": known}
