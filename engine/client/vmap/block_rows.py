"""The rows of a block's steps: which clients step together, and what they read.

A client's steps have an order; steps of different clients have none. So clients whose next batches have equal sizes
step together (:func:`lockstep`), the largest first: full batches as long as there are any, then the short ones at the
end of a pass. With clients of equal epochs in descending order of rows, those with full batches left are a prefix, and
no step is padded.

A head's steps over all rows of each client are padded all the same (:func:`padded`): each is one small product of what
is computed already, so clients of similar sizes step together, and what is padded adds zeros to the gradient.

Shapes: k clients of a pass, B rows of a batch, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor

from engine.algorithm import Phase, Tensors, overrides
from engine.client.steps.client_round import ClientProgress
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.step_constants import with_constants
from engine.client.steps.step_inputs import Inputs, on_device
from engine.client.steps.training_loop import CHUNK, chunks, freezes_body, least_rows
from engine.client.vmap.block_inputs import shared, stacked
from engine.client.vmap.stack import Stack
from engine.data.samples import augmentation
from engine.data.samples.batches import Rows

Take = Callable[[int, int, Tensor], Tensors]  # "x" and "y" of clients [first, last), made outside of the step


class BlockRows:
    """The rows that the clients of a block take, step by step."""

    def __init__(
        self,
        net: FlatNet,
        rows: Rows,
        stack: Stack,
        members: Sequence[ClientProgress],
        forward: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._net = net
        self._rows = rows
        self._stack = stack
        self._members = members
        self._local = members[0].task.local
        self._forward = forward

    def steps(
        self, phase: Phase, batches: Sequence[Sequence[Tensor]], draws: bool, compiles: bool = False
    ) -> Iterator[tuple[int, int, Sequence[Inputs]]]:
        """Yield each step of a pass: clients [first, last), and what its chunks are given.

        There is one chunk but in a large full batch without BatchNorm's statistics. Rows are places in the data set,
        and with cached features positions within each client's rows of the phase.

        batches: of each client, positions within its rows of the phase. draws: whether the algorithm draws for a step.
        compiles: whether steps of the usual size are of few different numbers of clients.
        """
        is_full, place = self._members[0].order.batch_size(phase) == "full", self._places(phase)
        is_cut = is_full and least_rows(self._net, phase) == 1
        steps = [
            (first, last, chunks(positions) if is_cut else (positions,))
            for first, last, positions in self._positions(phase, batches, compiles)
        ]
        drawn = [self._drawn(first, last, own, phase, draws) for first, last, chunked in steps for own in chunked]
        inputs = map(place, self._with_constants(on_device(drawn, self._net.weights.device)))
        for first, last, chunked in steps:
            yield first, last, tuple(islice(inputs, len(chunked)))

    def made(self, first: int, last: int, inputs: Inputs, take: Take | None, with_rows: bool) -> Inputs:
        """Return the inputs as a step of clients [first, last) reads them.

        with_rows: with the rows themselves, since its losses are measured once more.
        """
        if take is not None:
            return replace(inputs, rows=take(first, last, inputs.rows["rows"]))
        if with_rows:
            x, y = self.taken(inputs)
            return replace(inputs, rows={"x": x, "y": y})
        return inputs

    def taken(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """x [k, B, ...] and y [k, B]."""
        if "rows" not in inputs.rows:
            return inputs.rows["x"], inputs.rows["y"]
        shape = inputs.rows["rows"].shape
        draws = {name: own.flatten() for name, own in augmentation.of(inputs.rows).items()}
        x, y = self._rows.batch(inputs.rows["rows"].flatten(), draws)
        return x.unflatten(0, shape), y.unflatten(0, shape)

    def features(self, phase: Phase) -> tuple[list[Tensor], list[Tensor]]:
        """Return each client's features [n, D] by its body as it is, and its labels [n]."""
        features, labels = [], []
        for row, member in enumerate(self._members):
            self._net.load(self._stack.weights_of(row), self._stack.buffers_of(row))
            part = member.order.part(phase)
            with torch.no_grad(), self._forward():
                parts = [self._net.features(self._rows.batch(own)[0]) for own in part.split(CHUNK)]
            features.append(torch.cat(parts).to(self._net.weights.dtype))
            labels.append(self._rows.labels[part])
        return features, labels

    def cached(self, phase: Phase) -> Take:
        features, labels = self.features(phase)
        z, y = torch.cat(features), torch.cat(labels)
        begins = torch.tensor(np.cumsum([0, *map(len, labels[:-1])]), device=z.device)

        def take(first: int, last: int, places: Tensor) -> Tensors:
            where = (places + begins[first:last, None]).flatten()
            return {
                "x": z.index_select(0, where).unflatten(0, places.shape),
                "y": y.index_select(0, where).unflatten(0, places.shape),
            }

        return take

    def alike(self, phase: Phase, labels: Sequence[Tensor]) -> Iterator[tuple[int, int, int]]:
        """Yield clients [first, last) of similar numbers of rows, and the full batches that each of them takes."""
        begins = 0
        for _, group in groupby(member.task.local for member in self._members):
            ends, own = begins + len(list(group)), self._members[begins]
            count = sum(map(len, own.order.passes(phase, own.phase_client, 1)))
            sizes = [len(own) for own in labels[begins:ends] if count and len(own)]
            yield from ((begins + first, begins + last, count) for first, last in alike(sizes))
            begins = ends

    # --- a pass -----------------------------------------------------------------------------------------

    def _positions(
        self, phase: Phase, batches: Sequence[Sequence[Tensor]], compiles: bool
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield each step: clients [first, last), and the positions [k, B] of their rows within the phase's rows of all
        members, one after another; with cached features within each client's own.

        They are put together for the whole pass: some operations a pass, and not some of every client.
        """
        plan, usual = list[tuple[int, int]](), self._members[0].order.batch_size(phase)
        for first, last, size in lockstep([[batch.numel() for batch in own] for own in batches]):
            plan += parts(first, last, len(self._members)) if compiles and size == usual else [(first, last)]
        left = [iter(own) for own in batches]
        members = [row for first, last in plan for row in range(first, last)]
        taken = [next(left[row]) for row in members]
        if not taken:
            return
        positions = torch.cat(taken)
        if phase.features != "cached":
            begins = np.cumsum([0, *(member.order.part(phase).numel() for member in self._members[:-1])])
            positions += torch.from_numpy(np.repeat(begins[members], [batch.numel() for batch in taken]))
        done = 0
        for first, last in plan:
            size, count = taken[done].numel(), last - first
            yield first, last, positions[: count * size].view(count, size)
            positions, done = positions[count * size :], done + count

    def _drawn(self, first: int, last: int, positions: Tensor, phase: Phase, draws: bool) -> Inputs:
        """Return the inputs of a forward pass over ``positions``, with the draws that are its own."""
        members, size, rows = self._members[first:last], positions.shape[1], {"rows": positions}
        augment = self._local.augment
        if augment != "none" and not freezes_body(phase):
            own = [augmentation.draw(augment, size, member.phase_client.rng("augment")) for member in members]
            rows |= stacked(augment, own)
        if not draws:
            return Inputs(rows)
        algorithm = members[0].task.algorithm
        noise = [algorithm.step_randomness(member.phase_client, size, member.received) for member in members]
        return Inputs(rows, stacked(f"{type(algorithm).__name__}.step_randomness", noise))

    def _with_constants(self, steps: Sequence[Inputs]) -> Iterable[Inputs]:
        first = self._members[0]
        algorithm = first.task.algorithm
        if not overrides(algorithm, "step_constants"):
            return steps
        received = {name: first.received[name] for name in shared([member.received for member in self._members])}
        context = first.phase_client.context
        return with_constants(steps, algorithm, self._net, received, context, self._forward, stacked=True)

    def _places(self, phase: Phase) -> Callable[[Inputs], Inputs]:
        """Return the function that puts places in the data set for positions."""
        if phase.features == "cached":
            return lambda inputs: inputs
        places = torch.cat([member.order.part(phase) for member in self._members])

        def placed(inputs: Inputs) -> Inputs:
            positions = inputs.rows["rows"]
            rows = places.index_select(0, positions.flatten()).view(positions.shape)
            return replace(inputs, rows=inputs.rows | {"rows": rows})

        return placed


def lockstep(sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges [first, last) of clients that take their next step together, and the rows of each in it.

    sizes: of each client's batches in a pass, in its order; all are at least 1. Every step is in exactly one range.
    """
    done = [0] * len(sizes)
    heads = [own[0] if own else 0 for own in sizes]
    while largest := max(heads, default=0):
        first = 0
        while first < len(heads):
            if heads[first] != largest:
                first += 1
                continue
            last = first
            while last < len(heads) and heads[last] == largest:
                last += 1
            yield first, last, largest
            for client in range(first, last):
                done[client] += 1
                own = sizes[client]
                heads[client] = own[done[client]] if done[client] < len(own) else 0
            first = last


def parts(first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) in ranges of ``most``, 4 and 1 clients: three steps are compiled, and not one for each
    number of clients that have rows left."""
    for count in (most, 4, 1):
        while last - first >= count:
            yield first, first + count
            first += count


LEAST = 0.75  # of the rows of the largest client that goes along: less costs more padding than it saves operations


def alike(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of clients that step together. sizes: their rows, in descending order."""
    first = 0
    for client in range(1, len(sizes) + 1):
        if client == len(sizes) or sizes[client] < LEAST * sizes[first]:
            yield first, client
            first = client


def padded(features: Sequence[Tensor], labels: Sequence[Tensor]) -> Inputs:
    """Return "x" [k, n, D], "y" [k, n] and "weights" [k, n] of each client's features and labels, largest first.

    The weights are those of a mean over a client's own rows, and 0 beyond them.
    """
    most = len(labels[0])
    x = features[0].new_zeros(len(features), most, features[0].shape[1])
    y = labels[0].new_zeros(len(labels), most)
    weights = x.new_zeros(len(labels), most)
    for row, (z, own) in enumerate(zip(features, labels, strict=True)):
        x[row, : len(own)], y[row, : len(own)], weights[row, : len(own)] = z, own, 1 / len(own)
    return Inputs({"x": x, "y": y, "weights": weights})
