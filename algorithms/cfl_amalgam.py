"""Knowledge amalgamation by common features (Luo et al. 2019, IJCAI): the student also comes near teachers' features.

Beside the merged logits of SKD2, with T = 1 and concatenated where class sets do not meet, a sample's last hidden
features count: those of the student and of each teacher in a space that is trained along (common_features.py).

    (1 - alpha) CE(labels) + alpha [w1 KD + w2 sum of discrepancies + w3 sum of decoding errors]

The paper has no labels (``alpha=1``); they are here so that all methods can be compared at one alpha. KD is a cross
entropy; it differs from the divergence minimised there by a constant that no student can change.

Features leave the devices: each teacher sends N D_i numbers more than the N |L_i| + C of its answers, D_i being the
width of its last hidden layer. They show the inside of a model that was trained on private rows, as its scores do
not; hence ``breaks_privacy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.answers import CHUNK_ROWS, own_model
from algorithms.common_features import CommonSpace
from algorithms.distillation import Distillation, Lesson, public_lesson, samples_per_class
from algorithms.skd2 import Skd2
from engine.algorithm import Clients, ClientView, Compute, Context, Net, Tensors, TrainingTools
from engine.base.declared import Doc, Ge, Neutral
from engine.models.model import fresh


def features_of(view: ClientView, shared: Tensors, per_class: int) -> Tensors:
    """Return a client's message: "0" [N, D_i], the last hidden layer of its model on the public set."""
    net = own_model(view)
    if net is None:
        return {}
    x, _ = view.public(per_class)
    return {"0": torch.cat([net.features(part) for part in x.split(CHUNK_ROWS)])}


def one_after_the_other(first: Tensors, second: Tensors) -> Tensors:
    """Merge clients' features, which differ in width: by their teachers' numbers, the second's after the first's."""
    return {str(number): features for number, features in enumerate((*first.values(), *second.values()))}


def amalgamate(tools: TrainingTools, shared: Tensors, method: CflAmalgam, width: int, teachers: int) -> Tensors:
    """Train, as :func:`~algorithms.distillation.train_student`, a student with ``width`` features, here with "0", "1",
    ... [N, D_i] of the teachers."""
    x, lesson, made = public_lesson(tools, shared, method)
    features = [shared[str(number)] for number in range(teachers)]
    widths = [theirs.shape[1] for theirs in features]
    space = fresh(lambda: CommonSpace(width, widths), tools.rng("common space")).to(x)

    def loss(net: Net, rows: Tensor) -> Tensor:
        own = net.features(x[rows])
        apart, lost = space(own, [theirs[rows] for theirs in features])
        taught = method.losses(net.head(own), lesson.of(rows)).mean()
        return taught + method.alpha * (method.feature_weight * apart + method.decoder_weight * lost)

    return {**method.fit(tools, loss, len(x), tuple(space.parameters())), **made}


@dataclass(frozen=True)
class CflAmalgam(Skd2):
    """Defaults are KamalEngine's, but for epochs and batch, in which methods are to be compared."""

    temperature: float = 1.0  # T, of teachers and student
    centre: bool = False
    lr: float = 0.001
    weight_decay: float = 1e-4
    optimizer: Literal["sgd", "adam"] = "adam"
    answer_weight: Annotated[float, Ge(0), Doc("w1, of the merged logits"), Neutral(0, "is none")] = 1.0
    feature_weight: Annotated[
        float,
        Ge(0),
        Doc("w2, of the discrepancy of features in the common space"),
        Neutral(0, "is none, and asks for no features"),
    ] = 10.0
    decoder_weight: Annotated[
        float, Ge(0), Doc("w3, of what is lost where teachers' features are decoded"), Neutral(0, "is none")
    ] = 10.0

    symbols: ClassVar[Mapping[str, str]] = {
        **Distillation.symbols,
        "w1": "answer_weight",
        "w2": "feature_weight",
        "w3": "decoder_weight",
    }
    breaks_privacy: ClassVar[bool] = True

    def answers_loss(self, logits: Tensor, lesson: Lesson) -> Tensor:
        return self.answer_weight * super().answers_loss(logits, lesson)

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        if self.alpha == 0 or self.feature_weight == 0:  # no student would notice: decoders concern the teachers alone
            return super().finish(server, clients, compute, context)
        ask = partial(features_of, per_class=samples_per_class(server["answers"]))
        features = clients.map(ask, {}, reduce=one_after_the_other, states=True)
        job = partial(amalgamate, width=context.layout.features, teachers=len(features))
        return self.trained(job, {**server, **features}, compute)
