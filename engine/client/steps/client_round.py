"""One client's round in three records: what comes in, what changes while it trains, what goes out.

Shapes: n rows of a client, P parameters, Q floating buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor

from engine.algorithm import Algorithm, Client, Context, ModelState, Phase, PhaseResult, Tensors, batches_in, seeds
from engine.data.samples.batches import orders
from engine.experiment import Local


@dataclass(frozen=True, eq=False, repr=False)
class ClientTask:
    """What comes in: what a client is to do, and what it was sent and keeps."""

    algorithm: Algorithm
    local: Local
    number: int  # the client's
    indices: Tensor  # [n] rows of the data set
    context: Context
    sent: Tensors  # what all clients of the round receive, and what is meant for this one
    stored: Tensors  # its state, as it is stored; of a newcomer what it kept of the stage before, if anything
    newcomer: bool = False  # to the stage

    @property
    def num_examples(self) -> int:
        return self.indices.numel()


class ClientProgress:
    """What changes: how far a client's phases have come. Training loops count over them."""

    def __init__(self, task: ClientTask, client: Client, received: Tensors, state: Tensors, start: ModelState) -> None:
        """Nothing of its training is done yet. ``received``: what was sent, and what the client made for itself."""
        self.task = task
        self.client = client
        self.received = received
        self.state = state
        self.start = start
        self.phase_client = client  # as the phase that is under way has it
        self.order = RoundRows(task.local, client, task.indices)
        self.steps = 0
        self.accumulated = 0.0  # see accumulation of the contract
        self.lr = client.context.lr
        self.gradient: Tensor | None = None  # [P] of the last phase that emits one
        self.ends: dict[str, PhaseResult] = {}  # of phases that have a name
        self.previous: PhaseResult | None = None

    def enter(self, phase: Phase) -> None:
        """Let the client be in a phase; in one with a name its draws are separate from those of others."""
        self.phase_client = in_phase(self.client, phase.name)

    def leave(self, phase: Phase, start: Tensor, end: ModelState) -> None:
        """Note what a phase began with [P] and came to."""
        self.previous = PhaseResult(start, *end, len(self.order.part(phase)))
        if phase.name:
            self.ends[phase.name] = self.previous

    def result(
        self, end: ModelState, upload: Tensors, weight: float, new_state: Tensors, personal: ModelState
    ) -> ClientResult:
        """Make the result of a client whose phases have come to ``end``."""
        task = self.task
        buffers = end.buffers if task.algorithm.shares_buffers else end.buffers[:0]
        return ClientResult(
            task.number, task.num_examples, self.steps, upload, weight, new_state, end.weights, buffers, personal
        )


@dataclass(frozen=True, eq=False, repr=False)
class ClientResult:
    """What goes out: what a client sends and keeps, and what is told of it."""

    number: int  # the client's
    num_examples: int
    steps: int
    upload: Tensors
    weight: float  # of the upload in the mean
    new_state: Tensors  # as it is stored
    weights: Tensor  # [P] at the end
    buffers: Tensor  # [Q] at the end; [0] where they are not shared
    personal: ModelState  # that the client would use now
    loss_before: float | None = None  # the objective on the first batch, at the start
    loss_after: float | None = None  # on the same batch, at the end


class RoundRows:
    """The rows that each step of a client's round takes."""

    def __init__(self, local: Local, client: Client, indices: Tensor) -> None:
        self.indices = indices
        self._local = local
        self._client = client  # as the round has it
        self._halves: dict[str, Tensor] | None = None

    def part(self, phase: Phase) -> Tensor:
        """The phase's rows of the data set."""
        if phase.rows == "all":
            return self.indices
        if self._halves is None:  # one draw a round, so that support and query stay disjoint
            order = torch.randperm(len(self.indices), generator=self._client.rng("support"))
            cut = min(round(phase.support * len(order)), len(order) - 1)
            self._halves = {"support": self.indices[order[:cut]], "query": self.indices[order[cut:]]}
        return self._halves[phase.rows]

    def passes(self, phase: Phase, client: Client, least: int) -> Iterator[list[Tensor]]:
        """Yield pass after pass the positions, in the phase's part, of each step's rows.

        Steps of fewer than ``least`` rows are none. ``client`` is as the phase has it.
        """
        num_rows, size = self.part(phase).numel(), self.batch_size(phase)
        if size == "full":
            passes: Iterator[list[Tensor]] = repeat([torch.arange(num_rows)]) if num_rows else iter(())
        else:
            passes = orders(num_rows, size, self._local.last_batch, client.rng("batches"))
        epochs, steps = phase.epochs, phase.steps
        if epochs is None and steps is None:
            epochs, steps = self._local.epochs, self._local.steps
        if steps == 0 or (steps is None and epochs == 0):  # before an order is drawn
            return
        for batches in passes:
            if steps is None:
                steps = batches_in(epochs or 0, len(batches)) * phase.repeat
            if phase.repeat > 1:
                batches = [batch for batch in batches for _ in range(phase.repeat)]
            batches = batches[:steps]
            steps -= len(batches)
            yield batches if least == 1 else [batch for batch in batches if len(batch) >= least]
            if steps == 0:
                return

    def batch_size(self, phase: Phase) -> int | Literal["full"]:
        return self._local.batch_size if phase.batch == "local" else phase.batch


SERVER = -1  # whose draws are no client's


class Streams:
    """The generators of one client, or of the server, in one round: one for each purpose, each consumed in step order.

    ``prefix`` sets purposes apart from those of the same client's training in that round.
    """

    def __init__(self, seed: int, round: int, client: int, prefix: str = "") -> None:
        self._key = (seed, round, client)
        self._prefix = prefix
        self._open: dict[str, torch.Generator] = {}

    def __call__(self, purpose: str) -> torch.Generator:
        if purpose not in self._open:
            seed, round, client = self._key
            self._open[purpose] = seeds.generator(seed, self._prefix + purpose, round, client)
        return self._open[purpose]


def in_phase(client: Client, name: str) -> Client:
    """The client during a phase of that name; "" is none."""
    if not name:
        return client
    return replace(client, phase=name, rng=lambda purpose: client.rng(f"{name}/{purpose}"))
