"""One client's round as one record, from what the client was sent to what is added up.

Shapes: n rows of a client, P parameters, Q floating buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor

from engine.algorithm import Algorithm, Client, Context, ModelState, Phase, PhaseResult, Tensors, batches_in, seeds
from engine.data.batches import orders
from engine.experiment import Local


@dataclass(eq=False, repr=False)
class ClientRound:
    """A client's round: what it was sent, what it began with, how far its training has come, what it came to.

    Whoever sends it fills the first fields. :meth:`begin` fills the next, loops count over its phases, and
    :class:`~engine.client.trainer.Trainer` ends it.
    """

    algorithm: Algorithm
    local: Local
    number: int  # the client's
    indices: Tensor  # [n] rows of the data set
    context: Context
    sent: Tensors  # what all clients of the round receive, and what is meant for this one
    stored: Tensors  # its state, as it is stored; of a newcomer what it kept of the stage before, if anything
    newcomer: bool = False  # to the stage

    # What it begins with.
    client: Client = field(init=False)
    received: Tensors = field(init=False)  # what was sent, and what the client made for itself
    state: Tensors = field(init=False)
    start: ModelState = field(init=False)

    # How far its phases have come.
    phase_client: Client = field(init=False)  # the client as the phase that is under way has it
    order: RoundRows = field(init=False)
    steps: int = field(init=False)
    accumulated: float = field(init=False)
    lr: float = field(init=False)
    gradient: Tensor | None = field(init=False)  # [P] of the last phase that emits one
    ends: dict[str, PhaseResult] = field(init=False)  # of phases that have a name
    previous: PhaseResult | None = field(init=False)

    # What it came to.
    upload: Tensors = field(init=False)
    new_state: Tensors = field(init=False)  # as it is stored
    end: ModelState = field(init=False)  # [P] and [Q]; no buffers where they are not shared
    weight: float = field(init=False)  # of the upload in the mean
    personal: ModelState = field(init=False)  # that the client would use now
    loss_before: float | None = field(init=False, default=None)  # the objective on the first batch, at the start
    loss_after: float | None = field(init=False, default=None)  # on the same batch, at the end

    def begin(self, client: Client, received: Tensors, state: Tensors) -> None:
        """Take in what the client begins with; nothing of its training is done yet."""
        self.client = self.phase_client = client
        self.received, self.state = received, state
        self.order = RoundRows(self.local, client, self.indices)
        self.steps, self.accumulated, self.lr = 0, 0.0, client.context.lr
        self.gradient, self.ends, self.previous = None, {}, None

    def enter(self, phase: Phase) -> None:
        """Let the client be in a phase; in one with a name its draws are separate from those of others."""
        self.phase_client = in_phase(self.client, phase.name)

    def leave(self, phase: Phase, start: Tensor, end: ModelState) -> None:
        """Note what a phase began with [P] and came to."""
        self.previous = PhaseResult(start, *end, len(self.order.part(phase)))
        if phase.name:
            self.ends[phase.name] = self.previous

    def let_go(self) -> None:
        """Drop what only training needs, so that one client's memory is not held while the next one trains."""
        self.received, self.state, self.gradient, self.ends, self.previous = {}, {}, None, {}, None
        del self.start, self.order

    @property
    def num_examples(self) -> int:
        return self.indices.numel()

    @property
    def weights(self) -> Tensor:  # [P] at the end
        return self.end.weights

    @property
    def buffers(self) -> Tensor:  # [Q] at the end, none where they are not shared
        return self.end.buffers


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


class Streams:
    """The generators of one client in one round, one for each purpose, each consumed in step order.

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
