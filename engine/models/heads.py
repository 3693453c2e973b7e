"""The layers after a body: MOON's projection, and the classifier."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Head = Literal["linear", "normalised"]

PROJECTED = 256  # features after the projection


class NormalisedLinear(nn.Linear):
    """Logits phi_i^T z / max(||phi_i||, 1e-12) [B, out] of features z [B, in], without bias.

    No class can win by a long weight vector, as the frequent ones do under skew (Luo et al. 2021, arXiv:2106.05001:
    the normalised classifier, one of the remedies beside which CCVR is put).
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, F.normalize(self.weight, dim=1, eps=1e-12))


def head_layer(head: Head, features: int, num_classes: int) -> nn.Linear:
    """Return the layer from features [B, D] to logits [B, num_classes]."""
    return NormalisedLinear(features, num_classes) if head == "normalised" else nn.Linear(features, num_classes)


def is_plain_linear(layer: nn.Module) -> bool:
    """Return whether a layer computes what a trained ``nn.Linear`` with a bias does, and nothing else."""
    plain = type(layer) is nn.Linear and layer.bias is not None and not is_hooked(layer)
    return plain and all(parameter.requires_grad for parameter in layer.parameters())


def is_hooked(network: nn.Module) -> bool:
    """Return whether a call of any module does more than its class says: by hooks, or a forward method of its own."""
    more = ("_forward_hooks", "_forward_pre_hooks", "forward")  # hooks on gradients are refused
    return any(vars(module).get(name) for module in network.modules() for name in more)


def project(body: nn.Sequential, features: int) -> int:
    """Append MOON's projection z = fc(relu(fc(h))) to ``body`` (Li, He and Song 2021); return its features' number."""
    body.add_module("project1", nn.Linear(features, features))
    body.add_module("project_relu", nn.ReLU())
    body.add_module("project2", nn.Linear(features, PROJECTED))
    return PROJECTED
