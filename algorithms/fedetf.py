r"""FedETF: all clients learn features for one classifier, the simplex that neural collapse ends with (Li et al. 2023,
arXiv:2303.10058).

The classes' vectors are those of an equiangular tight frame,

    E = sqrt(C / (C - 1)) (I - 1 1^T / C) Q,

unit vectors [C, D] any two of which have the cosine -1/(C - 1); Q, orthonormal rows, is the nearest to the head that
is there (``orthogonal`` of fedbabu.py), where the released code draws it. With z the features that the head reads and
n_c the client's rows of class c, the loss is the cross entropy of

    beta E_c^T z / ||z|| + gamma log n_c        for every class c.

beta, a temperature, is trained and averaged with the body. It is the length of the head, beta E without bias: of the
head's gradient g the part along E alone is taken, <g, E> E, which is SGD's step of beta. Other optimizers would turn E.

In the released code a class that the client lacks counts as one of a single row, log 1 = 0, and takes part; here and in
the formula it does not. The paper's projection layer is the model's last below the head, or ``model.projection=true``:
where features come of a ReLU, cosines with E_c end at about 0.7. Its fine-tuning of projection and classifier by turns
is left out; ``evaluation.fine_tune_epochs`` trains all numbers of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.fedbabu import orthogonal
from engine.algorithm import Algorithm, Batch, Client, Context, Net, ParamLayout, Pooled, Requires, Setting, Tensors
from engine.base.declared import Doc, Ge, Gt, Neutral
from engine.base.errors import require


@dataclass(frozen=True)
class FedETF(FedAvg):
    scale: Annotated[float, Gt(0), Doc("beta at the start; the released code's are 1 and 10")] = 1.0
    gamma: Annotated[float, Ge(0), Doc("power of class counts in the loss"), Neutral(0, "is cross entropy")] = 1.0

    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "beta": "scale"}
    requires: ClassVar[Requires] = Requires(model={"head": "linear"})

    def check(self, setting: Setting) -> None:
        setting.local.demand("would not leave fedetf's classifier fixed", optimizer="sgd")

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, FedETF)
        rule = "cannot change in mid-run: it has been trained since"
        require(self.scale == later.scale, "scale", later.scale, rule, f"leave it at {self.scale}")

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        layout, weights = context.layout, parent["weights"]
        return {"weights": layout.join(layout.body_of(weights), self.scale * simplex(layout.head_of(weights), layout))}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        made, layout = super().aggregate(server, pooled, context), context.layout
        along = F.normalize(layout.head_of(server["weights"]).to(made["weights"]), dim=0)
        head = (layout.head_of(made["weights"]) @ along) * along  # noise on the mean (privacy) would turn it
        return {**made, "weights": layout.join(layout.body_of(made["weights"]), head)}

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = self.predict(net, batch.x)
        if self.gamma == 0:
            return F.cross_entropy(logits, batch.y)
        prior = self.gamma * batch.client.class_counts.to(logits.dtype).log()  # [C], -inf where there are none
        return F.cross_entropy(logits + prior, batch.y)

    def predict(self, net: Net, x: Tensor) -> Tensor:
        return net.head(F.normalize(net.features(x), dim=1))

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        layout = client.context.layout
        head, along = layout.head_of(grad), F.normalize(layout.head_of(received["weights"]), dim=0)  # E / ||E||
        return layout.join(layout.body_of(grad), layout.classes * (head @ along) * along)  # ||E||^2 = C


def simplex(head: Tensor, layout: ParamLayout) -> Tensor:
    """Return E as a head [P_head], without bias; raises ConfigError for fewer features than classes."""
    classes, features = layout.classes, layout.features
    rule = f"needs {classes} features or more for {classes} classes, and the model has {features}"
    require(features >= classes, "algorithm.name", "fedetf", rule, "take a wider model, or set model.projection=true")
    basis, bias = orthogonal(head, layout).tensor_split([classes * features])
    rows = basis.view(classes, features)
    return torch.cat((sqrt(classes / (classes - 1)) * (rows - rows.mean(0)).flatten(), bias))
