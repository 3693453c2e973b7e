"""The base of calibrations: after training, the head alone is trained anew, on features of a frozen body."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm import Compute, Net, ParamLayout, PostTraining, Setting, Tensors, TrainingTools
from engine.base.declared import Doc, Ge, Gt, Lt, Neutral
from engine.base.errors import RunError, require


def random_head(tools: TrainingTools, shared: Tensors, layout: ParamLayout) -> Tensors:
    """Return the weights with a head as a new network has it, uniform in +-1 / sqrt(D)."""
    head = (2 * torch.rand(layout.head, generator=tools.rng("head")) - 1) / layout.features**0.5
    return {"weights": layout.join(layout.body_of(shared["weights"]), head.to(shared["weights"]))}


def fit_head(
    tools: TrainingTools, shared: Tensors, epochs: int, batch_size: int, lr: float, momentum: float, weight_decay: float
) -> Tensors:
    """Train the head by SGD on the mean cross entropy over the rows of "features" [N, D] and "labels" [N]."""
    features, labels = shared["features"], shared["labels"]

    def loss(net: Net, rows: Tensor) -> Tensor:
        return F.cross_entropy(net.head(features[rows]), labels[rows])

    return tools.fit(loss, len(labels), epochs, batch_size, lr, momentum, weight_decay, trainable="head")


@dataclass(frozen=True)
class HeadCalibration(PostTraining):
    """The head's training. Public variants of its values: spec 1.8."""

    init: Annotated[Literal["aggregated", "random"], Doc("where the head starts")] = "aggregated"
    lr: Annotated[float, Gt(0), Doc("of the head's SGD")] = 0.01
    momentum: Annotated[float, Ge(0), Lt(1), Doc("of the head's SGD"), Neutral(0, "is none")] = 0.9
    weight_decay: Annotated[float, Ge(0), Doc("of the head's SGD"), Neutral(0, "is none")] = 1e-5
    batch_size: Annotated[int, Ge(1), Doc("features of a step")] = 64
    epochs: Annotated[
        int,
        Ge(0),
        Doc("passes over the features"),
        Neutral(0, "leaves the model as it is, to the bit, and asks nothing of clients"),
    ] = 10

    def check(self, setting: Setting) -> None:
        head = getattr(setting.model, "head", "linear")
        for stage in setting.chain:
            needed = stage.requires.model.get("head", "linear")
            if needed != "linear":
                rule = f"is what stage {stage.name} needs, and a calibration needs a linear one"
                repair = "they cannot be combined: take another algorithm for one of the two"
                require(False, "model.head", needed, rule, repair)
        require(head == "linear", "model.head", head, "is not the linear head that is trained anew", "set it to linear")

    @property
    def keeps_head(self) -> bool:
        return self.init == "aggregated"

    @property
    def changes_nothing(self) -> bool:
        return self.epochs == 0 and self.init == "aggregated"

    def retrained(
        self, server: Tensors, features: Tensor, labels: Tensor, compute: Compute, layout: ParamLayout
    ) -> Tensors:
        """Return the server's entries with a head trained on ``features`` [N, D] and ``labels`` [N]; the rest stays."""
        model = {name: server[name] for name in ("weights", "buffers")}
        if self.init == "random":
            model |= compute(partial(random_head, layout=layout), model)
        fit = partial(
            fit_head,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        weights = compute(fit, {**model, "features": features, "labels": labels})["weights"]
        if not torch.isfinite(weights).all():
            raise RunError(f"the head's calibration diverged with lr={self.lr:g}: lower the stage's algorithm.lr")
        return {**server, "weights": weights}
