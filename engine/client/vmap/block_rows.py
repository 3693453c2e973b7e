"""The rows of a block's steps: looked up, augmented or run through a frozen body, for several clients at once.

Shapes: k clients of a pass, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from engine.algorithm import Phase, Tensors
from engine.client.client_round import ClientRound
from engine.client.flat_net import FlatNet
from engine.client.training_loop import CHUNK
from engine.client.vmap.lockstep import lockstep
from engine.client.vmap.stack import Stack
from engine.client.vmap.step_memory import Inputs
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

    def steps(self, phase: Phase, batches: Sequence[Sequence[Tensor]]) -> Iterator[tuple[int, int, Tensor]]:
        """Each step of a pass: clients [first, last), and their rows [k, B] of the data set; with cached features the
        positions of these rows within the phase's.

        batches: of each client, positions within its rows of the phase. The steps' rows are looked up together: some
        operations a pass, and not some of every client.
        """
        plan = list(lockstep([[batch.numel() for batch in own] for own in batches]))
        left = [iter(own) for own in batches]
        members = [row for first, last in plan for row in range(first, last)]
        taken = [next(left[row]) for row in members]
        if not taken:
            return
        places = torch.cat(taken)
        if phase.features != "cached":
            parts = [member.order.part(phase) for member in self._members]
            begins = np.cumsum([0, *(part.numel() for part in parts[:-1])])
            places += torch.from_numpy(np.repeat(begins[members], [batch.numel() for batch in taken]))
            places = torch.cat(parts).index_select(0, places.to(parts[0].device))
        done = 0
        for first, last in plan:
            size = taken[done].numel()
            yield first, last, places[: (last - first) * size].view(last - first, size)
            places, done = places[(last - first) * size :], done + last - first

    def taken(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """x [k, B, ...] and y [k, B]."""
        if "rows" not in inputs.rows:
            return inputs.rows["x"], inputs.rows["y"]
        shape = inputs.rows["rows"].shape
        x, y = self._rows.batch(inputs.rows["rows"].flatten())
        return x.unflatten(0, shape), y.unflatten(0, shape)

    def augmented(self, first: int, last: int, places: Tensor) -> Tensors:
        parts = [
            self._rows.batch(own, self._local.augment, self._members[row].phase_client.rng("augment"))
            for row, own in zip(range(first, last), places, strict=True)
        ]
        return {"x": torch.stack([x for x, _ in parts]), "y": torch.stack([y for _, y in parts])}

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
