"""A net over features that were computed before, for phases that train the head alone."""

from __future__ import annotations

from torch import Tensor

from engine.algorithm import Net, Statistics, Tensors
from engine.client.steps.jvp import jvp


class CachedNet:
    """The net over features that were computed before: its input is [B, D]."""

    def __init__(self, net: Net) -> None:
        self._net = net

    @property
    def tap_names(self) -> tuple[str, ...]:
        return ()

    @property
    def norm_names(self) -> tuple[str, ...]:
        return ()

    def __call__(self, x: Tensor) -> Tensor:
        return self._net.head(x)

    def features(self, x: Tensor) -> Tensor:
        return x

    def head(self, z: Tensor) -> Tensor:
        return self._net.head(z)

    def taps(self, x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, Tensors]:
        raise TypeError("a phase with cached features runs no body, so it has no taps")

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        return jvp(self, x, direction)

    def stepped(self, loss: Tensor, lr: float, first_order: bool = False) -> Net:
        raise TypeError("a phase with cached features runs no body, so it has no step of all weights")

    def at(self, weights: Tensor, buffers: Tensor, train: bool = False) -> Net:
        return self._net.at(weights, buffers, train)

    def narrow(self, width: float, divisor: int = 1, statistics: Statistics = "batch") -> Net:
        raise TypeError("a phase with cached features runs no body, so it cannot be narrowed")
