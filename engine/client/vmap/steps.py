"""Optimizers of several clients' weights at once, in operations that a captured graph can replay.

Those of torch.optim take the learning rate, and Adam's count of steps, as numbers: a graph would keep them as they were
when it was captured. Here both may be tensors on the device, and no step asks the device for anything.

Shapes: K clients, k of them in a step, n weights that are trained.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.client.vmap.dense import Product
from engine.client.vmap.step_memory import Memory
from engine.experiment import Local

Rate = float | Tensor  # a tensor [] where it may change between replays, [k, 1] where it is each client's
Optimize = Callable[[int, int, Tensor, Tensor], None]  # a step of clients [first, last): weights, gradients [k, n]
Step = Callable[[int, int, Tensor, Tensor, Rate], None]  # the same by a rate


def optimizer(local: Local, weights: Tensor, lr: Rate, memory: Memory, part: str) -> Optimize:
    """Make an optimizer of weights like these [K, n], the ``part`` that is trained; fresh, so that no client keeps
    momentum. A schedule by steps goes, for each client, by those that it has taken.
    """
    if local.optimizer in ("adam", "adamw"):
        take = adam(weights, memory, part, weight_decay=local.weight_decay, is_decoupled=local.optimizer == "adamw")
    else:
        take = (_sgd if local.optimizer == "sgd" else _rmsprop)(local, weights, memory, part)
    taken = _counts(weights, memory, f"scheduled steps of {part}") if local.by_step else None

    def step(first: int, last: int, own: Tensor, grad: Tensor) -> None:
        rate = lr
        if taken is not None:
            rate = (lr * local.factor(taken[first:last])).to(own.dtype)  # [k, 1]
            taken[first:last].add_(1)
        take(first, last, own, local.clipped(grad), rate)

    return step


def _counts(weights: Tensor, memory: Memory, name: str) -> Tensor:
    """Steps that each client has taken [K, 1], where a replayed step can count them."""
    return memory.rows(name, weights.new_zeros(len(weights), 1, dtype=torch.float64))


def descend(weights: Tensor, gradient: Tensor | Product, lr: Rate) -> None:
    """``weights - lr * gradient``, in place."""
    if isinstance(gradient, Product):  # straight into the weights; what is scaled is the smaller factor
        if isinstance(lr, Tensor):
            weights.baddbmm_(gradient.dy * lr, gradient.x.mT, alpha=-1)
        else:
            weights.baddbmm_(gradient.dy, gradient.x.mT, alpha=-lr)
    elif isinstance(lr, Tensor):
        weights.addcmul_(gradient, lr, value=-1)
    else:
        weights.add_(gradient, alpha=-lr)


def _sgd(local: Local, weights: Tensor, memory: Memory, part: str) -> Step:
    """torch.optim.SGD without dampening."""
    velocity = memory.rows(f"velocity of {part}", torch.zeros_like(weights)) if local.momentum else None

    def step(first: int, last: int, own: Tensor, grad: Tensor, lr: Rate) -> None:
        if local.weight_decay:
            grad = grad.add(own, alpha=local.weight_decay)
        if velocity is not None:
            moving = velocity[first:last].mul_(local.momentum).add_(grad)
            grad = grad.add(moving, alpha=local.momentum) if local.nesterov else moving
        descend(own, grad, lr)

    return step


def _rmsprop(local: Local, weights: Tensor, memory: Memory, part: str) -> Step:
    """torch.optim.RMSprop, not centred."""
    squares = memory.rows(f"squares of {part}", torch.zeros_like(weights))
    velocity = memory.rows(f"velocity of {part}", torch.zeros_like(weights)) if local.momentum else None

    def step(first: int, last: int, own: Tensor, grad: Tensor, lr: Rate) -> None:
        if local.weight_decay:
            grad = grad.add(own, alpha=local.weight_decay)
        square = squares[first:last].mul_(SMOOTHING).addcmul_(grad, grad, value=1 - SMOOTHING)
        grad = grad / square.sqrt().add_(EPS)
        descend(own, grad if velocity is None else velocity[first:last].mul_(local.momentum).add_(grad), lr)

    return step


EPS = 1e-8  # of torch.optim.Adam and RMSprop
SMOOTHING = 0.99  # of torch.optim.RMSprop


def adam(
    weights: Tensor,
    memory: Memory,
    part: str,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    is_decoupled: bool = False,
) -> Step:
    """torch.optim.Adam of ``weights`` [K, n], or AdamW if its decay is decoupled; the corrections for the start are
    computed in float64, as there.
    """
    means = memory.rows(f"means of {part}", torch.zeros_like(weights))
    squares = memory.rows(f"squares of {part}", torch.zeros_like(weights))
    counts = _counts(weights, memory, f"steps of {part}")
    first_beta, second_beta = betas

    def step(first: int, last: int, own: Tensor, grad: Tensor, lr: Rate) -> None:
        if weight_decay and is_decoupled:
            own.mul_(1 - lr * weight_decay)
        elif weight_decay:
            grad = grad.add(own, alpha=weight_decay)
        mean = means[first:last].lerp_(grad, 1 - first_beta)
        square = squares[first:last].mul_(second_beta).addcmul_(grad, grad, value=1 - second_beta)
        count = counts[first:last].add_(1)
        length = (lr / (1 - first_beta**count)).to(own.dtype)  # [k, 1]
        root = (1 - second_beta**count).sqrt().to(own.dtype)
        own.sub_(mean / (square.sqrt() / root).add_(EPS) * length)

    return step
