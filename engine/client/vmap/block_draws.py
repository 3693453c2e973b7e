"""A loss mapped over clients whose network draws random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engine.client.drawing_modules import StepDraws, drawing_from


def mapped_with_draws(loss: Callable[..., Tensor], draws: StepDraws, clients: int) -> Callable[..., Tensor]:
    """Map ``loss`` over ``clients``, the draws of its modules each from its client's stream."""

    def one(token: Tensor, *args: Any) -> Tensor:
        draws.token = token
        try:
            return loss(*args)
        finally:
            draws.token = None

    def mapped(*args: Any) -> Tensor:
        tokens = torch.zeros(clients, device=args[2].device)
        with drawing_from(draws):
            return vmap(one, randomness="different")(tokens, *args)

    return mapped
