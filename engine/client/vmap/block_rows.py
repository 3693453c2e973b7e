"""The rows of a block's steps: looked up, augmented or run through a frozen body, for several clients at once.

Shapes: k clients of a pass, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.algorithm import Phase, Tensors
from engine.client.client_round import ClientRound
from engine.client.flat_net import FlatNet
from engine.client.step_inputs import Inputs
from engine.client.training_loop import CHUNK
from engine.client.vmap.lockstep import lockstep
from engine.client.vmap.stack import Stack
from engine.data import augmentation
from engine.data.batches import Rows

Take = Callable[[int, int, Tensor], Tensors]  # "x" and "y" of clients [first, last), made outside of the step


class BlockRows:
    """The rows that the clients of a block take, step by step."""

    def __init__(
        self,
        net: FlatNet,
        rows: Rows,
        stack: Stack,
        members: Sequence[ClientRound],
        forward: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._net = net
        self._rows = rows
        self._stack = stack
        self._members = members
        self._local = members[0].local
        self._forward = forward

    def steps(self, phase: Phase, batches: Sequence[Sequence[Tensor]]) -> list[tuple[int, int, Tensor]]:
        """Each step of a pass: clients [first, last), and the positions [k, B] of their rows within the rows of the
        phase of all clients, one after another; with cached features within each client's own.

        batches: of each client, positions within its rows of the phase. They are put together for the whole pass: some
        operations a pass, and not some of every client.
        """
        plan = list(lockstep([[batch.numel() for batch in own] for own in batches]))
        left = [iter(own) for own in batches]
        members = [row for first, last in plan for row in range(first, last)]
        taken = [next(left[row]) for row in members]
        if not taken:
            return []
        positions = torch.cat(taken)
        if phase.features != "cached":
            begins = np.cumsum([0, *(member.order.part(phase).numel() for member in self._members[:-1])])
            positions += torch.from_numpy(np.repeat(begins[members], [batch.numel() for batch in taken]))
        found, done, begin = [], 0, 0
        for first, last in plan:
            size, count = taken[done].numel(), last - first
            found.append((first, last, positions[begin : begin + count * size].view(count, size)))
            done, begin = done + count, begin + count * size
        return found

    def drawn(self, first: int, last: int, size: int) -> Tensors:
        """The draws of augmentation for a step of clients [first, last), [k, B] each, each client's from its stream."""
        members, augment = self._members[first:last], self._local.augment
        draws = [augmentation.draw(augment, size, member.phase_client.rng("augment")) for member in members]
        return {name: torch.stack([own[name] for own in draws]) for name in draws[0]}

    def places(self, phase: Phase) -> Callable[[Inputs], Inputs]:
        """Return the function from a step's positions, as :meth:`steps` has them, to its places in the data set.

        With cached features there is nothing to look up.
        """
        if phase.features == "cached":
            return lambda inputs: inputs
        places = torch.cat([member.order.part(phase) for member in self._members])

        def found(inputs: Inputs) -> Inputs:
            positions = inputs.rows["rows"]
            rows = places.index_select(0, positions.flatten()).view(positions.shape)
            return replace(inputs, rows=inputs.rows | {"rows": rows})

        return found

    def taken(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """x [k, B, ...] and y [k, B]."""
        if "rows" not in inputs.rows:
            return inputs.rows["x"], inputs.rows["y"]
        shape = inputs.rows["rows"].shape
        draws = {name: own.flatten() for name, own in augmentation.of(inputs.rows).items()}
        x, y = self._rows.batch(inputs.rows["rows"].flatten(), draws)
        return x.unflatten(0, shape), y.unflatten(0, shape)

    def cached(self, phase: Phase) -> Take:
        features, labels = [], []
        for row, member in enumerate(self._members):
            self._net.load(self._stack.weights_of(row), self._stack.buffers_of(row))
            part = member.order.part(phase)
            with torch.no_grad(), self._forward():
                parts = [self._net.features(self._rows.batch(own)[0]) for own in part.split(CHUNK)]
            features.append(torch.cat(parts).to(self._net.weights.dtype))
            labels.append(self._rows.labels[part])

        def take(first: int, last: int, places: Tensor) -> Tensors:
            chosen = list(zip(range(first, last), places, strict=True))
            return {
                "x": torch.stack([features[row][own] for row, own in chosen]),
                "y": torch.stack([labels[row][own] for row, own in chosen]),
            }

        return take
