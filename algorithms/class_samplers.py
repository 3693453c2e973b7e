"""The choice of the classes that a client asks its generator for: CBFL's class-balanced sampler and alternatives."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Sampler = Literal["balanced", "uniform", "fewest", "exact"]


def probabilities(sampler: Sampler, counts: Tensor, fewest: int = 0, rows: int = 0, fake: int = 0) -> Tensor:
    """Return the chance of each class [..., C], float64 on the CPU, from class counts [..., C].

    balanced    (1 - P_m) / (C - 1), P_m the client's share of class m (CBFL 2023, eqs. 3 to 5)
    uniform     1 / C
    fewest      balanced, but only over the ``fewest`` classes of which the client has least, ties by class number
    exact       ours: what ``fake`` images must be for them and ``rows`` of the client's to be as balanced as can be,
                in proportion to max(0, (rows + fake) / C - rows P_m)
    """
    counts = counts.detach().double().cpu()
    shares = counts / counts.sum(-1, keepdim=True)
    classes = counts.shape[-1]
    if sampler == "uniform":
        return torch.full_like(shares, 1 / classes)
    lacking = 1 - shares
    if sampler == "exact":
        lacking = ((rows + fake) / classes - rows * shares).clamp_min(0)
    if sampler == "fewest":
        rank = counts.argsort(dim=-1, stable=True).argsort(dim=-1)
        lacking = torch.where(rank < fewest, lacking, 0)
    return lacking / lacking.sum(-1, keepdim=True)
