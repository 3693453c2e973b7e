"""The network as algorithms see it: a model at certain weights, which may be called and looked into."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from engine.algorithm.types import Tensors

Statistics = Literal["batch", "running"]  # what a sub-network's BatchNorm layers normalise by, in training mode


class Net(Protocol):
    """A model at certain weights: a body and a linear head."""

    @property
    def tap_names(self) -> tuple[str, ...]:
        """The names of the blocks whose outputs make sense to compare: residual units, convolutions, hidden layers."""
        ...

    @property
    def norm_names(self) -> tuple[str, ...]:
        """The names of the BatchNorm layers, in the order of the buffers: each layer's running mean, then variance."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits [B, C] of rows ``x`` [B, ...]: ``head(features(x))``."""
        ...

    def features(self, x: Tensor) -> Tensor:
        """Return the body's output [B, D] for rows ``x`` [B, ...]."""
        ...

    def head(self, z: Tensor) -> Tensor:
        """Return the logits [B, C] of features ``z`` [B, D]."""
        ...

    def taps(self, x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, Tensors]:
        """Return the logits [B, C] of rows ``x``, and the outputs of the inner modules ``names``, by their name.

        ``names`` are of :attr:`tap_names` or :attr:`norm_names`; ``inputs``: their inputs in place of their outputs.
        """
        ...

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [B, C] and their derivative [B, C] along ``direction`` (in input space, broadcast to x).

        One forward pass; a loss may be made of both. See :mod:`engine.client.steps.jvp`.
        """
        ...

    def at(self, weights: Tensor, buffers: Tensor, train: bool = False) -> Net:
        """Return the network at other ``weights`` [P] and ``buffers`` [Q], frozen: no gradient goes through it.

        Nothing in it changes. ``train``: BatchNorm layers normalise by the batch, as in training mode.
        """
        ...

    def stepped(self, loss: Tensor, lr: float, first_order: bool = False) -> Net:
        """Return the network one step of size ``lr`` down the gradient of ``loss`` [], which was made with this net.

        A loss of it has a gradient at this net's weights: through the step too, by second derivatives, or with
        ``first_order`` as if the step did not depend on them.
        """
        ...

    def narrow(self, width: float, divisor: int = 1, statistics: Statistics = "batch") -> Net:
        """Return the sub-network of the first ``width`` share of each layer's channels, on the same weights.

        With a ``divisor`` their numbers are multiples of it, see :func:`engine.models.narrow.kept`. In training mode
        its BatchNorm layers normalise by its own batch, or with ``statistics="running"`` by the running statistics as
        they are, which no sub-network changes. Raises ConfigError for a model that has no sub-networks.
        """
        ...
