"""An algorithm's hooks that see whole gradients, mapped over the clients of a block.

Shapes: K clients, k of them in a step, P parameters, n of them trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import vmap

from engine.algorithm import Algorithm, Client, Tensors
from engine.client.steps.entries import sliced
from engine.client.vmap.block_inputs import OwnEntries
from engine.client.vmap.dense import Gradient
from engine.client.vmap.stack import Stack

StackedHook = Callable[[int, int, Tensor, Tensor], Tensor]  # of clients [first, last): gradients, weights [k, n]
Perturbed = Callable[[int, int, list[Gradient]], list[Tensor]]  # a first pass's gradients -> the second's parameters


def stacked_hook(
    hook: Callable[..., Tensor], algorithm: Algorithm, where: slice, starts: Tensor, own: OwnEntries, template: Client
) -> StackedHook:
    """Make of a bound ``hook`` of one client that of several, for the numbers ``where`` of their weight vectors.

    ``starts``: [K, P] of the phase. ``template``: a client, but for what is each client's own.
    """
    starts, shared_received = starts[:, where], sliced(algorithm, own.shared, where)

    def one(
        grad: Tensor,
        weights: Tensor,
        start: Tensor,
        received: Tensors,
        state: Tensors,
        count: Tensor,
        counts: Tensor,
    ) -> Tensor:
        client = replace(template, num_examples=count, class_counts=counts)
        received = shared_received | sliced(algorithm, received, where) | {"phase_start": start}
        return hook(grad, weights, received, sliced(algorithm, state, where), client)

    mapped = vmap(one, randomness="error")
    return lambda first, last, grad, weights: mapped(grad, weights, starts[first:last], *own.of(first, last))


def perturber(stack: Stack, part: str, hook: StackedHook) -> Perturbed:
    """Make what gives the parameters of a step's second pass; ``part``: of the weights that is trained."""
    weights, (where, _) = stack.weights, stack.net.slices[part]

    @torch.no_grad()
    def perturbed(first: int, last: int, grads: list[Gradient]) -> list[Tensor]:
        moved = weights[first:last].clone()
        moved[:, where] += hook(first, last, stack.written_out(first, last, part, grads), moved[:, where])
        return stack.leaves_at(moved, part)

    return perturbed
