"""Networks with modules that draw random numbers, each in another way of torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models import MODELS, Model, ModelSpec

WIDTH = 12


class Noise(nn.Module):
    """Adds what ``draw`` gives for its input, in training mode."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.draw(x).to(x.dtype) if self.training else x


class StochasticDepth(nn.Module):
    """A residual layer that single rows go round, written as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x + self.layer(x)
        noise = torch.empty(x.shape[0], 1, dtype=x.dtype, device=x.device).bernoulli_(0.7)
        return x + self.layer(x) * noise.div_(0.7)


class Attention(nn.Module):
    """torch's, with dropout, over a row's features in four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q = self.project(x).view(-1, 4, WIDTH // 4)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if self.training else 0.0).flatten(1)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Dropout(0.3),
    "dropout in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3, inplace=True)),
    "dropout of channels": lambda: nn.Sequential(nn.Unflatten(1, (4, 3)), nn.Dropout1d(0.3), nn.Flatten()),
    "alpha dropout": lambda: nn.AlphaDropout(0.2),
    "alpha dropout of channels": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 3)), nn.FeatureAlphaDropout(0.2), nn.Flatten()
    ),
    "rrelu": nn.RReLU,
    "stochastic depth": StochasticDepth,
    "attention": Attention,
    "gauss": lambda: Noise(torch.randn_like),
    "uniform": lambda: Noise(torch.rand_like),
    "one for all rows": lambda: Noise(lambda x: torch.rand(WIDTH, dtype=x.dtype)),
    "filled in place": lambda: Noise(lambda x: torch.empty_like(x).normal_(1.0, 0.5)),
    "filled, of no rows": lambda: Noise(lambda x: x.new_empty(WIDTH).uniform_(-1, 1)),
    "bernoulli of chances": lambda: Noise(lambda x: torch.bernoulli(x.detach().sigmoid())),
    "bernoulli in place": lambda: Noise(lambda x: torch.zeros_like(x).bernoulli_(x.detach().sigmoid())),
    "whole numbers": lambda: Noise(lambda x: torch.randint(5, (len(x), 1)) + torch.randint_like(x, 2, 4)),
    "gumbel": lambda: Noise(lambda x: F.gumbel_softmax(x)),
    "distribution": lambda: Noise(lambda x: torch.distributions.Normal(x.detach(), 0.5).sample()),
    "normal": lambda: Noise(lambda x: torch.normal(0.5, 2.0, (WIDTH,))),
    "choices": lambda: Noise(lambda x: torch.multinomial(x.detach().softmax(1), 2)[:, :1]),
    "order of rows": lambda: Noise(lambda x: x.detach()[torch.randperm(len(x))]),
}


@cache
def drawing(*layers: str) -> type[ModelSpec]:
    """Return a specification: a linear layer, then these with a ReLU, then a linear head."""

    @dataclass(frozen=True)
    class Drawing(ModelSpec):
        def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
            body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), WIDTH), nn.ReLU())
            for name in layers:
                body.append(LAYERS[name]())
            return self.assemble(body, WIDTH, num_classes, ("body.2",))

    return Drawing


def registered(monkeypatch: pytest.MonkeyPatch, *layers: str) -> dict[str, str]:
    """Register such a model for a test; the ``model`` section that names it."""
    monkeypatch.setitem(MODELS, "drawing", drawing(*layers))
    return {"name": "drawing"}
