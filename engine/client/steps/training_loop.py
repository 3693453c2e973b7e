"""The training loop: the phases of one client's round, one client at a time, to be stepped through.

A client's step is taken here, or for several clients at once in ``vmap/training_loop.py``.

Shapes: n rows of a client, B of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, count, islice

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd

from engine.algorithm import (
    Algorithm,
    Batch,
    Context,
    LocalRun,
    Loss,
    ModelState,
    Net,
    Phase,
    Pooled,
    Tensors,
    accumulated,
    acts,
    loss_of,
    overrides,
    personalised,
)
from engine.client.steps.cached_net import CachedNet
from engine.client.steps.client_round import ClientProgress
from engine.client.steps.drawing_modules import StepDraws, drawing_from
from engine.client.steps.entries import is_finite, sliced
from engine.client.steps.flat_net import FlatNet, flatten
from engine.client.steps.manual_head_gradient import ManualHeadGradient
from engine.client.steps.step_constants import with_constants
from engine.client.steps.step_inputs import Inputs, on_device
from engine.data.samples import augmentation
from engine.data.samples.batches import Rows
from engine.experiment import Local

VECTOR_HOOKS = ("perturbation", "gradient")  # that see gradients, in the order of a step
CHUNK = 500  # rows of one forward pass, where no batch size is asked for
RESIDENT_BYTES = 64 * 2**20  # of one client's normalised rows; a larger client's are normalised batch by batch


def freezes_body(phase: Phase) -> bool:
    """A frozen body is frozen in its statistics too, and sees plain rows, so that features can be cached."""
    return phase.trainable == "head" or phase.features == "cached"


def least_rows(net: FlatNet, phase: Phase) -> int:
    """Return the fewest rows that a batch may have: one row has no statistics."""
    return 2 if net.layout.has_batchnorm and not freezes_body(phase) else 1


class NotFinite(Exception):
    """Weights that are not finite any more."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step  # of the round, from 1


@dataclass(frozen=True)
class FirstBatch:
    """The objective on a client's first batch before any step, to be measured once more at the end."""

    batch: Batch
    objective: Loss
    loss: Tensor  # []
    training: bool  # the mode of the modules
    draws: list[Tensor]  # the state from which these drew


class SequentialLoop:
    """The phases of one client's round, alone in the net: the reference, to be stepped through."""

    def __init__(
        self,
        net: FlatNet,
        rows: Rows,
        forward: Callable[[], AbstractContextManager[object]],
        progress: ClientProgress,
    ) -> None:
        """``forward``: what surrounds a forward pass and its loss, see precision.py. The round has begun."""
        self.net = net
        self.rows = rows
        self.forward = forward
        self.progress = progress
        self.algorithm = progress.task.algorithm
        self.local = progress.task.local
        self.stops_unless_finite = False  # with NotFinite, after the step in which it happens
        self._start: Tensor | None = None  # [P] of the phase, where somebody may ask
        self._first: FirstBatch | None = None

    def run_all(self, phases: Sequence[Phase]) -> None:
        """Run all phases; the net is in eval mode after them."""
        has_starts = overrides(self.algorithm, "phase_start")
        for number, phase in enumerate(phases):
            self.progress.enter(phase)
            if number:
                self._load_start()
            remembers = has_starts or phase.name or self._is_hooked(phase)
            self._start = self.net.weights.clone() if remembers else None
            self.run(phase)
            if self._start is not None and (phase.name or has_starts):
                self.progress.leave(phase, self._start, ModelState(self.net.weights.clone(), self.net.buffers.clone()))
        self.net.train(False)

    def _acts(self, hook: str, phase: Phase) -> bool:
        return acts(self.algorithm, hook, self.progress.client.context, phase.name)

    def _is_hooked(self, phase: Phase) -> bool:
        """Return whether a hook of the algorithm's sees gradients as vectors."""
        return any(self._acts(hook, phase) for hook in VECTOR_HOOKS)

    def _load_start(self) -> None:
        """Put into the net what the phase starts from, if that is not what the one before ended with."""
        progress = self.progress
        if progress.previous is None:
            return
        start = self.algorithm.phase_start(progress.previous, progress.received, progress.state, progress.phase_client)
        if isinstance(start, ModelState):
            self.net.load(*start)
            self._first = None  # another model is trained from here on
        elif start is not None:
            self.net.load(start, self.net.buffers)

    def run(self, phase: Phase) -> None:
        """One phase: its steps, or its one gradient."""
        self._draws = StepDraws([self.progress.phase_client.rng])
        with drawing_from(self._draws) if self.net.draws else nullcontext():
            self._run(phase)

    def _run(self, phase: Phase) -> None:
        frozen_body = freezes_body(phase)
        self.net.train(not frozen_body, head=True)
        self._objective = loss_of(self.algorithm, self.progress.client.context, phase.name)
        client = self.progress.phase_client
        self._head = ManualHeadGradient.of(self.net.model, self.algorithm, phase, client, self.forward)
        before = self.net.buffers.clone() if phase.buffers == "keep" else None
        indices = self.progress.order.part(phase)
        augment = "none" if frozen_body else self.local.augment
        batch_of = self._cached(indices, phase) if phase.features == "cached" else self._live(indices, augment)
        net = CachedNet(self.net) if phase.features == "cached" else self.net
        steps = self._inputs(phase, augment)
        if phase.emit == "gradient":
            self._emit(net, batch_of, steps, phase)
        else:
            self._steps(net, batch_of, steps, phase)
        if before is not None:
            self.net.buffers.copy_(before)

    def _inputs(self, phase: Phase, augment: str) -> Iterator[Sequence[Inputs]]:
        """Yield step after step the inputs of its chunks, of which there is one but in a large full batch, where no
        statistics are of the whole batch.
        """
        client, order = self.progress.phase_client, self.progress.order
        least = least_rows(self.net, phase)
        is_cut = order.batch_size(phase) == "full" and least == 1
        for batches in order.passes(phase, client, least):
            taken = batches[:1] if phase.emit == "gradient" else batches
            chunked = [chunks(positions) if is_cut else (positions,) for positions in taken]
            drawn = on_device([self._drawn(own, augment) for own in chain(*chunked)], self.net.weights.device)
            received, context = self.progress.received, client.context
            inputs = iter(with_constants(drawn, self.algorithm, self.net, received, context, self.forward))
            yield from (tuple(islice(inputs, len(own))) for own in chunked)

    def _drawn(self, positions: Tensor, augment: str) -> Inputs:
        """The inputs of a forward pass over ``positions``."""
        client, rows = self.progress.phase_client, {"rows": positions}
        if augment != "none":
            rows |= augmentation.draw(augment, len(positions), client.rng("augment"))
        return Inputs(rows, dict(self.algorithm.step_randomness(client, len(positions), self.progress.received)))

    def _steps(self, net: Net, batch_of: BatchOf, inputs: Iterator[Sequence[Inputs]], phase: Phase) -> None:
        where, _ = self.net.slices[phase.trainable]
        weights = self.net.weights[where]
        received = sliced(self.algorithm, self.progress.received, where)
        if self._start is not None:
            received["phase_start"] = self._start[where]
        state = sliced(self.algorithm, self.progress.state, where)
        context = self.progress.phase_client.context
        client = replace(self.progress.phase_client, context=replace(context, layout=context.layout.part(where)))
        self.progress.lr = self.progress.phase_client.context.lr if phase.lr is None else phase.lr
        local = self.local.of_phase(phase.lr)
        step = _optimizer(weights, local, self.progress.lr)
        plain = self._is_plain(phase)
        perturbation, hook = (
            getattr(self.algorithm, name) if self._acts(name, phase) else None for name in VECTOR_HOOKS
        )
        steps = 0
        for chunked in inputs:
            if plain and self._head is not None and self._first is not None:
                self.net.descend_along(self._head.gradients(*batch_of(chunked[0].rows)), "head", self.progress.lr)
            elif plain:
                self.net.descend(self._loss(net, batch_of, chunked[0], phase), phase.trainable, self.progress.lr)
            else:
                grad = self._grad(net, batch_of, chunked, phase)
                if perturbation is not None:
                    before = weights.clone()
                    weights.add_(perturbation(grad, before, received, state, client))
                    grad = self._grad(net, batch_of, chunked, phase)
                    weights.copy_(before)
                step(grad if hook is None else hook(grad, weights, received, state, client))
            steps += 1
            if self.stops_unless_finite and not is_finite(self.net.weights):
                raise NotFinite(self.progress.steps + steps)
        self.progress.steps += steps
        self.progress.accumulated += accumulated(local, steps)

    def _is_plain(self, phase: Phase) -> bool:
        """Return whether a step is SGD and nothing else, so that nobody sees the gradient as a vector."""
        is_small = self.progress.order.batch_size(phase) != "full"
        return self.local.of_phase(phase.lr).is_plain_sgd and is_small and not self._is_hooked(phase)

    def _emit(self, net: Net, batch_of: BatchOf, inputs: Iterator[Sequence[Inputs]], phase: Phase) -> None:
        where, _ = self.net.slices[phase.trainable]
        self.progress.gradient = torch.zeros_like(self.net.weights)
        for chunked in islice(inputs, 1):
            self.progress.gradient[where] = self._grad(net, batch_of, chunked, phase)

    def _grad(self, net: Net, batch_of: BatchOf, chunked: Sequence[Inputs], phase: Phase) -> Tensor:
        """Return the gradient of the mean loss over the rows of all chunks."""
        if len(chunked) == 1:
            return self._backward(net, batch_of, chunked[0], phase)
        rows = sum(len(inputs.rows["rows"]) for inputs in chunked)
        total = None
        for inputs in chunked:
            part = self._backward(net, batch_of, inputs, phase) * (len(inputs.rows["rows"]) / rows)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _backward(self, net: Net, batch_of: BatchOf, inputs: Inputs, phase: Phase) -> Tensor:
        if self._head is not None and self._first is not None:  # the first batch's loss is kept
            grads = self._head.gradients(*batch_of(inputs.rows))
            return flatten(grads, out=self.net.grad[self.net.slices["head"][0]])
        return self.net.backward(self._loss(net, batch_of, inputs, phase), phase.trainable)

    def _loss(self, net: Net, batch_of: BatchOf, inputs: Inputs, phase: Phase) -> Tensor:
        x, y = batch_of(inputs.rows)
        batch = Batch(x, y, self.progress.phase_client, inputs.drawn)
        draws = self._draws.states() if self._first is None and self.net.draws else []
        with self.forward():
            loss = self._objective(net, batch, self.progress.received, self.progress.state)
        if self._first is None:
            cached = phase.features == "cached"
            x = self.rows.batch(self.progress.order.part(phase)[inputs.rows["rows"]])[0] if cached else batch.x
            training = self.net.model.training and not cached
            self._first = FirstBatch(replace(batch, x=x), self._objective, loss.detach(), training, draws)
        return loss

    # --- rows -----------------------------------------------------------------------------------------

    def _live(self, indices: Tensor, augment: str) -> BatchOf:
        if augment == "none" and self.rows.normalised_bytes(len(indices)) <= RESIDENT_BYTES:
            x, y = self.rows.batch(indices)  # normalised once a round and not once a step
            return lambda rows: (x.index_select(0, rows["rows"]), y.index_select(0, rows["rows"]))
        return lambda rows: self.rows.batch(indices[rows["rows"]], augmentation.of(rows))

    def _cached(self, indices: Tensor, phase: Phase) -> BatchOf:
        with torch.no_grad(), self.forward():
            parts = [self.net.features(self.rows.batch(part)[0]) for part in indices.split(CHUNK)]
        features, labels = torch.cat(parts).to(self.net.weights.dtype), self.rows.labels[indices]

        def take(rows: Tensors) -> tuple[Tensor, Tensor]:
            return features.index_select(0, rows["rows"]), labels.index_select(0, rows["rows"])

        is_full = self.progress.order.batch_size(phase) == "full"
        return kept(take) if is_full and features.device.type == "cpu" else take

    # --- the objective on the first batch ---------------------------------------------------------------

    def loss_before(self) -> float | None:
        return None if self._first is None else float(self._first.loss)

    def loss_after(self) -> float | None:
        if self._first is None:
            return None
        first = self._first
        self.net.train(first.training)
        with drawing_from(StepDraws.again(first.draws)), self.forward():
            return float(first.objective(self.net, first.batch, self.progress.received, self.progress.state).detach())


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


BatchOf = Callable[[Tensors], tuple[Tensor, Tensor]]  # Inputs.rows -> x [B, ...] and y [B]


def kept(take: BatchOf) -> BatchOf:
    """Take the rows of full batches once for all steps: their positions are the same parts of one range in each."""
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def again(rows: Tensors) -> tuple[Tensor, Tensor]:
        part = int(rows["rows"].storage_offset()), rows["rows"].numel()
        if part not in parts:
            parts[part] = take(rows)
        return parts[part]

    return again


def chunks(positions: Tensor) -> tuple[Tensor, ...]:
    """Cut a full batch [..., B] into parts of at most ``CHUNK`` rows, as equal as they can be."""
    return positions.tensor_split(-(-positions.shape[-1] // CHUNK), dim=-1)


def _optimizer(weights: Tensor, local: Local, lr: float) -> Callable[[Tensor], None]:
    """A step of torch.optim on ``weights`` for a gradient; fresh each time, so no client keeps momentum."""
    take = _sgd(weights, local) if local.optimizer == "sgd" else _adaptive(weights, local)
    taken = count()

    def step(grad: Tensor) -> None:
        rate = lr * float(local.factor(torch.tensor(next(taken)))) if local.by_step else lr
        take(local.clipped(grad), rate)

    return step


def _adaptive(weights: Tensor, local: Local) -> Callable[[Tensor, float], None]:
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    more = {"momentum": local.momentum} if local.optimizer == "rmsprop" else {}
    optimizer = kinds[local.optimizer]([weights], weight_decay=local.weight_decay, **more)

    def step(grad: Tensor, lr: float) -> None:
        weights.grad, optimizer.param_groups[0]["lr"] = grad, lr
        optimizer.step()

    return step


def _sgd(weights: Tensor, local: Local) -> Callable[[Tensor, float], None]:
    velocity: list[Tensor | None] = [None]

    @torch.no_grad()
    def step(grad: Tensor, lr: float) -> None:
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

    return step
