"""The only training loop: the phases of one client's round, here one client at a time, to be stepped through.

:class:`Course` runs an algorithm's phases on one client's rows, and counts over them.

Shapes: n rows of a client, B of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd

from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Context,
    LocalRun,
    ModelState,
    Net,
    Phase,
    PhaseResult,
    Pooled,
    Statistics,
    Tensors,
    accumulation,
    personalised,
)
from engine.client.entries import is_finite, sliced
from engine.client.jvp import jvp
from engine.data.batches import orders
from engine.experiment import Local

if TYPE_CHECKING:
    from engine.client.flat_net import FlatNet
    from engine.client.trainer import Trainer

CHUNK = 500  # rows of one forward pass, where no batch size is asked for
RESIDENT_BYTES = 64 * 2**20  # of one client's normalised rows; a larger client's are normalised batch by batch


class RoundRows:
    """Which of a client's rows each step of a round takes."""

    def __init__(self, local: Local, client: Client, indices: Tensor) -> None:
        self.indices = indices
        self._local = local
        self._client = client  # as the round has it
        self._halves: dict[str, Tensor] | None = None

    def part(self, phase: Phase) -> Tensor:
        if phase.rows == "all":
            return self.indices
        if self._halves is None:  # one draw a round, so that support and query stay disjoint
            order = torch.randperm(len(self.indices), generator=self._client.rng("support"))
            cut = min(round(phase.support * len(order)), len(order) - 1)
            self._halves = {"support": self.indices[order[:cut]], "query": self.indices[order[cut:]]}
        return self._halves[phase.rows]

    def passes(self, phase: Phase, client: Client, least: int) -> Iterator[list[Tensor]]:
        """Pass after pass the positions, in the phase's part, of each step's rows; steps of fewer than ``least`` are
        none. ``client`` is as the phase has it."""
        num_rows, size = self.part(phase).numel(), self.batch_size(phase)
        if size == "full":
            passes: Iterator[list[Tensor]] = repeat([torch.arange(num_rows)]) if num_rows else iter(())
        else:
            passes = orders(num_rows, size, self._local.last_batch, client.rng("batches"))
        epochs, steps = phase.epochs, phase.steps
        if epochs is None and steps is None:
            epochs, steps = self._local.epochs, self._local.steps
        if steps == 0:
            return
        for batches in passes if steps is not None else islice(passes, epochs):
            if phase.repeat > 1:
                batches = [batch for batch in batches for _ in range(phase.repeat)]
            if steps is not None:
                batches = batches[:steps]
                steps -= len(batches)
            yield batches if least == 1 else [batch for batch in batches if len(batch) >= least]
            if steps == 0:
                return

    def batch_size(self, phase: Phase) -> int | Literal["full"]:
        return self._local.batch_size if phase.batch == "local" else phase.batch


def freezes_body(phase: Phase) -> bool:
    """A frozen body is frozen in its statistics too, and sees plain rows, so that features can be cached."""
    return phase.trainable == "head" or phase.features == "cached"


def least_rows(net: FlatNet, phase: Phase) -> int:
    """Of a batch; statistics of one row are none."""
    return 2 if net.layout.has_batchnorm and not freezes_body(phase) else 1


class Tally:
    """A client's round as its phases go by, one client at a time or in a block: its rows, and what is counted."""

    def __init__(self, local: Local, client: Client, indices: Tensor, received: Tensors, state: Tensors) -> None:
        self.round_client = client
        self.client = client  # as the phase that is under way has it
        self.order = RoundRows(local, client, indices)
        self.received = received
        self.state = state
        self.steps = 0
        self.accumulated = 0.0
        self.lr = client.context.lr
        self.gradient: Tensor | None = None  # [P] of the last phase that emits one
        self.ends: dict[str, PhaseResult] = {}
        self.previous: PhaseResult | None = None


class NotFinite(Exception):
    """Weights that are not finite any more."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step  # of the round, from 1


class Course(Tally):
    """The phases of one client's round, alone in the net."""

    def __init__(
        self,
        trainer: Trainer,
        algorithm: Algorithm,
        local: Local,
        client: Client,
        indices: Tensor,
        received: Tensors,
        state: Tensors,
    ) -> None:
        super().__init__(local, client, indices, received, state)
        self.net = trainer.net
        self.rows = trainer.rows
        self.forward = trainer.forward
        self.algorithm = algorithm
        self.local = local
        self.stops_unless_finite = False  # with NotFinite, after the step in which it happens
        self._start: Tensor | None = None  # [P] of the phase, where somebody may ask
        self._first: tuple[Batch, Tensor, bool] | None = None  # its objective before any step; training mode

    def run_all(self, phases: Sequence[Phase]) -> None:
        """All phases; the net is in eval mode after them."""
        hooks = type(self.algorithm)
        remembers = hooks.phase_start is not Algorithm.phase_start or hooks.gradient is not Algorithm.gradient
        for number, phase in enumerate(phases):
            self.client = in_phase(self.round_client, phase.name)
            if number and self.previous is not None:
                entry = self.algorithm.phase_start(self.previous, self.received, self.state, self.client)
                if isinstance(entry, ModelState):
                    self.net.load(*entry)
                    self._first = None  # another model is trained from here on
                elif entry is not None:
                    self.net.load(entry, self.net.buffers)
            self._start = self.net.weights.clone() if remembers or phase.name else None
            self.run(phase)
            if self._start is not None and (phase.name or hooks.phase_start is not Algorithm.phase_start):
                rows = len(self.order.part(phase))
                self.previous = PhaseResult(self._start, self.net.weights.clone(), self.net.buffers.clone(), rows)
                if phase.name:
                    self.ends[phase.name] = self.previous
        self.net.train(False)

    def run(self, phase: Phase) -> None:
        """One phase: its steps, or its one gradient."""
        frozen_body = freezes_body(phase)
        self.net.train(not frozen_body, head=True)
        before = self.net.buffers.clone() if phase.buffers == "keep" else None
        indices = self.order.part(phase)
        augment = "none" if frozen_body else self.local.augment
        batch_of = self._cached(indices) if phase.features == "cached" else self._live(indices, augment)
        net = CachedNet(self.net) if phase.features == "cached" else self.net
        batches = chain.from_iterable(self.order.passes(phase, self.client, least_rows(self.net, phase)))
        if phase.emit == "gradient":
            self._emit(net, batch_of, batches, phase)
        else:
            self._steps(net, batch_of, batches, phase)
        if before is not None:
            self.net.buffers.copy_(before)

    def _steps(self, net: Net, batch_of: BatchOf, batches: Iterator[Tensor], phase: Phase) -> None:
        where, _ = self.net.slices[phase.trainable]
        weights = self.net.weights[where]
        received = sliced(self.algorithm, self.received, where)
        if self._start is not None:
            received["phase_start"] = self._start[where]
        state = sliced(self.algorithm, self.state, where)
        context = self.client.context
        client = replace(self.client, context=replace(context, layout=context.layout.part(where)))
        self.lr = self.client.context.lr if phase.lr is None else phase.lr
        step = _optimizer(weights, self.local, self.lr)
        plain = self._is_plain(phase)
        steps = 0
        for positions in batches:
            if plain:
                self.net.descend(self._loss(net, batch_of, positions, phase), phase.trainable, self.lr)
            else:
                grad = self._grad(net, batch_of, positions, phase)
                step(self.algorithm.gradient(grad, weights, received, state, client))
            steps += 1
            if self.stops_unless_finite and not is_finite(self.net.weights):
                raise NotFinite(self.steps + steps)
        self.steps += steps
        self.accumulated += float(accumulation(self.local.momentum, steps, self.local.nesterov))

    def _is_plain(self, phase: Phase) -> bool:
        """Whether a step is SGD and nothing else, so that nobody sees the gradient as a vector."""
        has_hook = type(self.algorithm).gradient is not Algorithm.gradient
        return self.local.is_plain_sgd and not has_hook and self.order.batch_size(phase) != "full"

    def _emit(self, net: Net, batch_of: BatchOf, batches: Iterator[Tensor], phase: Phase) -> None:
        where, _ = self.net.slices[phase.trainable]
        self.gradient = torch.zeros_like(self.net.weights)
        for positions in islice(batches, 1):
            self.gradient[where] = self._grad(net, batch_of, positions, phase)

    def _grad(self, net: Net, batch_of: BatchOf, positions: Tensor, phase: Phase) -> Tensor:
        """Of the mean loss over ``positions``; exact over chunks where the phase asks for a full batch."""
        if self.order.batch_size(phase) != "full" or len(positions) <= CHUNK:
            return self._backward(net, batch_of, positions, phase)
        total = None
        for chunk in positions.tensor_split(-(-len(positions) // CHUNK)):
            part = self._backward(net, batch_of, chunk, phase) * (len(chunk) / len(positions))
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _backward(self, net: Net, batch_of: BatchOf, positions: Tensor, phase: Phase) -> Tensor:
        return self.net.backward(self._loss(net, batch_of, positions, phase), phase.trainable)

    def _loss(self, net: Net, batch_of: BatchOf, positions: Tensor, phase: Phase) -> Tensor:
        batch = batch_of(positions)
        drawn = self.algorithm.step_randomness(self.client, len(batch.y), self.received)
        if drawn:
            batch = replace(batch, drawn={name: moved(value, batch.x.device) for name, value in drawn.items()})
        with self.forward():
            loss = self.algorithm.loss(net, batch, self.received, self.state)
        if self._first is None:
            cached = phase.features == "cached"
            x = self.rows.batch(self.order.part(phase)[positions])[0] if cached else batch.x
            self._first = replace(batch, x=x), loss.detach(), self.net.model.training and not cached
        return loss

    # --- rows -----------------------------------------------------------------------------------------

    def _live(self, indices: Tensor, augment: str) -> BatchOf:
        if augment == "none" and self.rows.normalised_bytes(len(indices)) <= RESIDENT_BYTES:
            x, y = self.rows.batch(indices)  # normalised once a round and not once a step

            def take(positions: Tensor) -> Batch:
                where = positions.to(x.device)
                return Batch(x.index_select(0, where), y.index_select(0, where), self.client)

            return take
        rng = self.client.rng("augment") if augment != "none" else None
        return lambda positions: Batch(*self.rows.batch(indices[positions], augment, rng), self.client)

    def _cached(self, indices: Tensor) -> BatchOf:
        with torch.no_grad(), self.forward():
            parts = [self.net.features(self.rows.batch(part)[0]) for part in indices.split(CHUNK)]
        features, labels = torch.cat(parts).to(self.net.weights.dtype), self.rows.labels[indices]
        return lambda positions: Batch(features[positions], labels[positions], self.client)

    # --- the objective on the first batch ---------------------------------------------------------------

    def loss_before(self) -> float | None:
        return None if self._first is None else float(self._first[1])

    def loss_after(self) -> float | None:
        if self._first is None:
            return None
        batch, _, training = self._first
        self.net.train(training)
        with self.forward():
            return float(self.algorithm.loss(self.net, batch, self.received, self.state).detach())


@dataclass(frozen=True)
class FineTuning(Algorithm):
    """Local training of a client's own model, whatever the algorithm that it came from."""

    of: Algorithm

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return F.cross_entropy(personalised.predict_own(self.of, net, batch.x, batch.client), batch.y)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        raise TypeError("fine-tuning is for the client alone")

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        raise TypeError("fine-tuning is for the client alone")


BatchOf = Callable[[Tensor], Batch]  # positions [B] -> rows


class CachedNet:
    """The net over features that were computed before: its input is [B, D]."""

    def __init__(self, net: Net) -> None:
        self._net = net

    @property
    def tap_names(self) -> tuple[str, ...]:
        return ()

    @property
    def norm_names(self) -> tuple[str, ...]:
        return ()

    def __call__(self, x: Tensor) -> Tensor:
        return self._net.head(x)

    def features(self, x: Tensor) -> Tensor:
        return x

    def head(self, z: Tensor) -> Tensor:
        return self._net.head(z)

    def taps(self, x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, Tensors]:
        raise TypeError("a phase with cached features runs no body, so it has no taps")

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        return jvp(self, x, direction)

    def stepped(self, loss: Tensor, lr: float, first_order: bool = False) -> Net:
        raise TypeError("a phase with cached features runs no body, so it has no step of all weights")

    def at(self, weights: Tensor, buffers: Tensor, train: bool = False) -> Net:
        return self._net.at(weights, buffers, train)

    def narrow(self, width: float, divisor: int = 1, statistics: Statistics = "batch") -> Net:
        raise TypeError("a phase with cached features runs no body, so it cannot be narrowed")


def in_phase(client: Client, name: str) -> Client:
    """The client during a phase; in one with a name it draws apart, so that what other phases draw is no matter."""
    if not name:
        return client
    return replace(client, phase=name, rng=lambda purpose: client.rng(f"{name}/{purpose}"))


def moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _optimizer(weights: Tensor, local: Local, lr: float) -> Callable[[Tensor], None]:
    """A step of torch.optim on ``weights`` for a gradient; fresh each time, so no client keeps momentum."""
    if local.optimizer == "adam":
        adam = torch.optim.Adam([weights], lr=lr, weight_decay=local.weight_decay)

        def adam_step(grad: Tensor) -> None:
            weights.grad = grad
            adam.step()

        return adam_step
    velocity: list[Tensor | None] = [None]

    @torch.no_grad()
    def sgd_step(grad: Tensor) -> None:
        # The functional form: the hooks around SGD.step() take a tenth of a small network's step.
        sgd(
            [weights],
            [grad],
            velocity,
            weight_decay=local.weight_decay,
            momentum=local.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=local.nesterov,
            maximize=False,
            foreach=False,
            fused=False,
        )

    return sgd_step
