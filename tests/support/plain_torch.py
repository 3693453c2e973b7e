"""What the tests hold the engine against: a network of two layers in plain torch, and gradient descent on full batches.

It shares the engine's order of parameters (each layer's weights, then its biases) and nothing else with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.data import Assignment, Dataset
from tests.support.full_batches import CLASSES, HIDDEN, LR, MEAN, STD, STEPS, Driven

PIXELS = 64
HEAD = CLASSES * HIDDEN + CLASSES  # the last numbers of a weight vector


@dataclass(frozen=True)
class Own:
    """A client's rows."""

    x: Tensor  # [n, 64]
    y: list[int]
    counts: list[int]  # of each class

    @property
    def size(self) -> int:
        return len(self.y)


def rows_of(images: np.ndarray, labels: np.ndarray) -> Own:
    x = torch.tensor((images.reshape(len(images), -1) / 255 - MEAN) / STD)
    y = labels.tolist()
    return Own(x, y, [y.count(number) for number in range(CLASSES)])


def owns(data: tuple[Dataset, Assignment]) -> list[Own]:
    """The training rows of each client."""
    train, parts = data[0].train, data[1]
    return [rows_of(train.images[part], train.labels[part]) for part in parts.clients]


def features(weights: Tensor, x: Tensor) -> Tensor:
    """[n, H], of weights [P]."""
    first = weights[: HIDDEN * PIXELS].view(HIDDEN, PIXELS)
    return (x @ first.T + weights[HIDDEN * PIXELS : HIDDEN * (PIXELS + 1)]).clamp(min=0)


def head(weights: Tensor, z: Tensor) -> Tensor:
    """[n, C], of weights that end with the head."""
    last = weights[-HEAD:]
    return z @ last[: CLASSES * HIDDEN].view(CLASSES, HIDDEN).T + last[CLASSES * HIDDEN :]


def logits(weights: Tensor, x: Tensor) -> Tensor:
    return head(weights, features(weights, x))


def cross_entropy(scores: Tensor, y: Sequence[int]) -> Tensor:
    """The mean over rows of log sum_c e^(s_c) - s_y."""
    return torch.stack([row.exp().sum().log() - row[label] for row, label in zip(scores, y, strict=True)]).mean()


def descend(objective: Callable[[Tensor], Tensor], start: Tensor, steps: int = STEPS) -> Tensor:
    """Where ``steps`` steps of gradient descent lead to."""
    weights = start.clone()
    for _ in range(steps):
        weights.requires_grad_()
        (grad,) = torch.autograd.grad(objective(weights), weights)
        weights = weights.detach() - LR * grad
    return weights


Objective = Callable[[Tensor, Tensor, Own], Tensor]  # of weights in training, those received, and a client's rows


def averaged(run: Driven, data: tuple[Dataset, Assignment], objective: Objective) -> Tensor:
    """The weights that FedAvg with this objective ends with, on the cohorts of the run."""
    weights, own = run.first["weights"], owns(data)
    for cohort in run.cohorts:
        ends = [descend(lambda w, k=k, w0=weights: objective(w, w0, own[k]), weights) for k in cohort]
        total = sum(own[k].size for k in cohort)
        weights = torch.stack([own[k].size / total * end for k, end in zip(cohort, ends, strict=True)]).sum(0)
    return weights


def close(found: object, wanted: object) -> None:
    """Equal but for the rounding of float64 sums in another order."""
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-9, atol=1e-11)
