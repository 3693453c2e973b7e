"""The result of local training, of a phase and of a client's whole round.

Shapes: P parameters of the model, Q floating buffers. A delta is always *after minus before*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from engine.algorithm.net import Net
from engine.algorithm.types import Batch, Client, ModelState, Scalar

if TYPE_CHECKING:
    from engine.experiment import Local


@dataclass(frozen=True)
class PhaseResult:
    """The weights that a phase began and ended with."""

    start: Tensor  # [P]
    end: Tensor  # [P]
    buffers: Tensor  # [Q] at the end
    num_examples: Scalar  # rows that it was about

    @property
    def model(self) -> ModelState:
        """The model that it ended with."""
        return ModelState(self.end, self.buffers)


@dataclass(frozen=True)
class LocalRun:
    """The result of a client's local training, from which the algorithm makes its upload."""

    start: Tensor  # [P]
    end: Tensor  # [P]
    buffers: Tensor  # [Q] at the end
    gradient: Tensor | None  # [P] of the last phase with emit="gradient"
    steps: Scalar  # optimizer steps that were really taken
    accumulation: Scalar  # sum of weights with which the steps' gradients entered the delta, see below
    num_examples: Scalar
    lr: float  # of the last phase
    local: Local  # the section that the client trained by; its lr is the first round's
    client: Client
    net: Net  # at the end weights, in eval mode
    rows: Callable[[], Iterator[Batch]]  # one pass over the client's rows, in order, not augmented
    ends: Mapping[str, PhaseResult] = field(default_factory=dict)  # of phases that have a name; of several, the last

    @property
    def model(self) -> ModelState:
        """The model that it ended with."""
        return ModelState(self.end, self.buffers)


def accumulation(momentum: float, steps: Scalar, nesterov: bool = False) -> Scalar:
    """Return how much of a constant gradient ``steps`` steps of SGD put into a delta, in units of lr.

    ``steps`` without momentum; with it the coefficient ||a||_1 of FedNova (Wang et al. 2020, arXiv:2007.07481):
    (steps - rho (1 - rho^steps) / (1 - rho)) / (1 - rho). Nesterov's look-ahead is one step further on.
    """
    if momentum == 0:
        return steps
    if nesterov:
        return accumulation(momentum, steps + 1) - 1
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
