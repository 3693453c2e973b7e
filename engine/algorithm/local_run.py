"""The result of local training, of a phase and of a client's whole round.

Shapes: P parameters of the model, Q floating buffers. A delta is always *after minus before*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.algorithm.local import Local
from engine.algorithm.net import Net
from engine.algorithm.types import Batch, Client, ModelState, Scalar


@dataclass(frozen=True)
class PhaseResult:
    """The weights that a phase began and ended with.

    Attributes:
        start: [P] the weights before it
        end: [P] the weights after it
        buffers: [Q] the buffers after it
        num_examples: the rows that it trained on
    """

    start: Tensor
    end: Tensor
    buffers: Tensor
    num_examples: Scalar

    @property
    def model(self) -> ModelState:
        """The model that training ended with."""
        return ModelState(self.end, self.buffers)


@dataclass(frozen=True)
class LocalRun:
    """The result of a client's local training, from which the algorithm makes its upload.

    Attributes:
        start: [P] the weights that training began with
        end: [P] the weights that it ended with
        buffers: [Q] the buffers at the end
        gradient: [P] of the last phase with ``emit="gradient"``; None if there is none
        steps: optimizer steps that were really taken
        accumulation: a_k, such that with plain SGD ``end - start`` is -lr a_k times a constant gradient: the number of
            steps, or with momentum the sum of the weights with which their gradients enter, see
            :func:`accumulation`
        num_examples: the client's rows
        lr: the learning rate of the last phase
        local: the section that the client trained by, with its own epochs or steps; its ``lr`` is that of the first
            round
        client: the :class:`Client`
        net: the :class:`Net` at the end weights, in eval mode
        rows: rows() yields the client's rows once as :class:`Batch` es, in order, not augmented
        ends: the :class:`PhaseResult` of each phase that has a name; of several with one name, the last
    """

    start: Tensor
    end: Tensor
    buffers: Tensor
    gradient: Tensor | None
    steps: Scalar
    accumulation: Scalar
    num_examples: Scalar
    lr: float
    local: Local
    client: Client
    net: Net
    rows: Callable[[], Iterator[Batch]]
    ends: Mapping[str, PhaseResult] = field(default_factory=dict)

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


def accumulated(local: Local, steps: int) -> float:
    """Return :func:`accumulation` of a phase's ``steps``, in units of the rate before the schedule of ``local``."""
    if not local.by_step:
        return float(accumulation(local.momentum, steps, local.nesterov))
    velocity = total = 0.0
    for factor in local.factor(torch.arange(steps)).tolist():
        velocity = local.momentum * velocity + 1
        total += factor * (1 + local.momentum * velocity if local.nesterov else velocity)
    return total
