"""Local training: the only training loop. Here one client at a time, the reference that can be stepped through.

``Trainer.train`` runs an algorithm's phases on one client's rows; ``Sums`` adds the uploads of a block. Neither knows
in which process it runs.

Shapes: n rows of a client, B of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd

from engine import seeds
from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Context,
    Ended,
    LocalRun,
    Net,
    Phase,
    Pooled,
    Tensors,
    accumulation,
)
from engine.data.batches import Rows, orders
from engine.entries import checked, kept, opened, sent, sliced
from engine.errors import RunError
from engine.experiment import Local
from engine.jvp import jvp
from engine.weights import FlatNet

CHUNK = 500  # rows of one forward pass, where no batch size is asked for
RESIDENT_BYTES = 64 * 2**20  # of one client's normalised rows; a larger client's are normalised batch by batch


@dataclass
class Trained:
    """What one client's round comes to."""

    upload: Tensors
    state: Tensors  # as it is stored
    weights: Tensor  # [P] at the end
    buffers: Tensor  # [Q] at the end
    weight: float
    num_examples: int
    steps: int
    loss_before: float | None  # the objective on the first batch, where the training of ``weights`` began
    loss_after: float | None  # the same batch, at the weights it ended with
    personal: Tensors  # "weights" and "buffers" that the client would use now


@dataclass
class Sums:
    """A block's uploads, added in client order in float64; blocks are added in block order.

    A block of one client holds what the client uploads, in the run's precision and half the size: whoever adds it
    up multiplies it by its weight first. ``scaled`` says that this has been done.
    """

    uploads: Tensors = field(default_factory=dict)  # sum of weight * upload
    buffers: Tensor = field(default_factory=lambda: torch.zeros(0))  # sum of num_examples * buffers
    weight: float = 0.0
    num_examples: int = 0
    members: int = 0

    @property
    def scaled(self) -> bool:
        return self.members > 1

    def add(self, trained: Trained) -> None:
        if self.members == 0:
            self.uploads, self.buffers = trained.upload, trained.buffers
        else:
            if self.members == 1:
                self.uploads = {name: tensor.double() * self.weight for name, tensor in self.uploads.items()}
                self.buffers = self.buffers.double() * self.num_examples
            for name, tensor in trained.upload.items():
                self.uploads[name].add_(tensor.double(), alpha=trained.weight)
            self.buffers.add_(trained.buffers.double(), alpha=trained.num_examples)
        self.members += 1
        self.weight += trained.weight
        self.num_examples += trained.num_examples


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


class Trainer:
    """Trains clients on one device, one after the other, in one network."""

    def __init__(self, net: FlatNet, rows: Rows, seed: int) -> None:
        self.net = net
        self.rows = rows
        self.seed = seed

    def client(self, number: int, indices: Tensor, context: Context) -> Client:
        """The client whose rows are ``indices`` [n] of the data set."""
        counts = torch.bincount(self.rows.labels[indices], minlength=context.layout.classes)
        return Client(len(indices), counts, context, Streams(self.seed, context.round, number))

    def train(
        self,
        algorithm: Algorithm,
        local: Local,
        number: int,
        indices: Tensor,
        context: Context,
        received: Tensors,
        state: Tensors,
        newcomer: bool = False,
        probe: bool = False,
    ) -> Trained:
        """One client's round. ``state`` is as it is stored; a ``newcomer`` to the stage brings what it kept of the
        stage before, if anything. ``probe`` fills the two losses."""
        client = self.client(number, indices, context)
        state = self.state_of(algorithm, client, number, received, state, newcomer)
        start = algorithm.start(received, state, client)
        self.net.load(start, algorithm.start_buffers(received, state, client))
        course = Course(self, algorithm, local, client, indices, received, state)
        phases = algorithm.phases(context)
        course.run_all(phases)
        run = LocalRun(
            start=start,
            end=self.net.weights.clone(),
            buffers=self.net.buffers.clone(),
            gradient=course.gradient,
            steps=course.steps,
            accumulation=course.accumulated,
            num_examples=len(indices),
            lr=course.lr,
            local=local,
            client=client,
            net=self.net,
            rows=partial(self.one_pass, client, indices),
            ends=course.ends,
        )
        if not all(map(_finite, (run.end, *(ended.end for ended in run.ends.values())))):
            raise RunError(
                f"client {number} diverged in round {context.round}: its weights are not finite after "
                f"{course.steps} steps{_lower_rates(phases, course.lr)}"
            )
        upload, new_state = algorithm.upload(run, received, state)
        if new_state and not algorithm.stateful:
            raise TypeError(
                f"{type(algorithm).__name__}.upload keeps a state, but init_state gives it no first one, or stateful "
                "says that there is none"
            )
        new_state = checked(algorithm, "upload", new_state, context.layout)
        return Trained(
            upload=sent(algorithm, upload, context.layout),
            state=kept(algorithm.entries, new_state, client),
            weights=run.end,
            buffers=run.buffers if algorithm.shares_buffers else run.buffers[:0],
            personal=algorithm.personal_after(run, received, new_state),
            weight=float(algorithm.weight(run)),
            num_examples=len(indices),
            steps=course.steps,
            loss_before=course.loss_before() if probe else None,
            loss_after=course.loss_after() if probe else None,  # after the upload: it may draw from client.rng
        )

    def state_of(
        self,
        algorithm: Algorithm,
        client: Client,
        number: int,
        received: Tensors,
        stored: Tensors,
        newcomer: bool,
    ) -> Tensors:
        """A client's state from what is stored of it, or its first one."""
        stored = opened(algorithm.entries, stored, client)
        if not newcomer:
            return stored
        early = replace(client, rng=Streams(self.seed, 0, number))  # the same whenever it first takes part
        kinds, first = algorithm.entries, algorithm.init_state(received, stored, early)
        first = checked(algorithm, "init_state", first, client.context.layout)
        return opened(kinds, kept(kinds, first, client), client)  # as if it had been stored

    def personalise(
        self,
        algorithm: Algorithm,
        local: Local,
        number: int,
        indices: Tensor,
        context: Context,
        received: Tensors,
        stored: Tensors,
        newcomer: bool,
    ) -> None:
        """Put into the net what the client would use with what it has received and keeps; neither is changed."""
        client = self.client(number, indices, context)
        client = replace(client, rng=Streams(self.seed, context.round, number, "evaluation/"))
        state = self.state_of(algorithm, client, number, received, stored, newcomer)
        model = algorithm.personal(received, state, client)
        self.net.load(model["weights"], model["buffers"])
        Course(self, algorithm, local, client, indices, received, state).run_all(algorithm.adapt(context))

    def fine_tune(
        self, algorithm: Algorithm, local: Local, number: int, indices: Tensor, context: Context, phase: Phase
    ) -> None:
        """Train what is in the net on the client's rows, by the cross entropy of its own predictions alone."""
        client = self.client(number, indices, context)
        client = replace(client, rng=Streams(self.seed, context.round, number, "fine tuning/"))
        Course(self, FineTuning(algorithm), local, client, indices, {}, {}).run_all((phase,))

    def one_pass(self, client: Client, indices: Tensor) -> Iterator[Batch]:
        """A client's rows in order, not augmented."""
        for part in indices.split(CHUNK):
            yield Batch(*self.rows.batch(part), client)


def _lower_rates(phases: Sequence[Phase], lr: float) -> str:
    """The end of a sentence on what diverged: the rate and the repair, where one rate alone can be to blame."""
    if all(phase.lr is None and phase.emit == "step" for phase in phases):
        return f" with lr={lr:g}; lower local.lr"
    return "; lower the algorithm's own learning rates and local.lr"


class Course:
    """The phases of one client's round, and what is counted over them."""

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
        self.net = trainer.net
        self.rows = trainer.rows
        self.algorithm = algorithm
        self.local = local
        self.client = client  # as the phase that is under way has it
        self.indices = indices
        self.received = received
        self.state = state
        self.steps = 0
        self.accumulated = 0.0
        self.lr = client.context.lr
        self.gradient: Tensor | None = None  # [P] of the last phase that emits one
        self.ends: dict[str, Ended] = {}
        self._client = client  # as the round has it
        self._previous: Ended | None = None
        self._start: Tensor | None = None  # [P] of the phase, where somebody may ask
        self._first: tuple[Batch, Tensor, bool] | None = None  # its objective before any step; training mode
        self._halves: dict[str, Tensor] | None = None

    def run_all(self, phases: Sequence[Phase]) -> None:
        """All phases; the net is in eval mode after them."""
        hooks = type(self.algorithm)
        remembers = hooks.enter is not Algorithm.enter or hooks.gradient is not Algorithm.gradient
        for number, phase in enumerate(phases):
            self.client = _in_phase(self._client, phase.name)
            if number and self._previous is not None:
                entry = self.algorithm.enter(self._previous, self.received, self.state, self.client)
                if entry:
                    self.net.load(entry["weights"], entry.get("buffers", self.net.buffers))
                if "buffers" in entry:
                    self._first = None  # another model is trained from here on
            self._start = self.net.weights.clone() if remembers or phase.name else None
            self.run(phase)
            if self._start is not None and (phase.name or hooks.enter is not Algorithm.enter):
                rows = len(self._part(phase))
                self._previous = Ended(self._start, self.net.weights.clone(), self.net.buffers.clone(), rows)
                if phase.name:
                    self.ends[phase.name] = self._previous
        self.net.train(False)

    def run(self, phase: Phase) -> None:
        """One phase: its steps, or its one gradient."""
        # A frozen body is frozen in its statistics too, and sees plain rows, so that features can be cached.
        frozen_body = phase.trainable == "head" or phase.features == "cached"
        self.net.train(not frozen_body)
        self.net.model.head.train()
        before = self.net.buffers.clone() if phase.buffers == "keep" else None
        indices = self._part(phase)
        augment = "none" if frozen_body else self.local.augment
        batch_of = self._cached(indices) if phase.features == "cached" else self._live(indices, augment)
        net = CachedNet(self.net) if phase.features == "cached" else self.net
        needs_two = self.net.layout.has_batchnorm and not frozen_body  # statistics of one row are none
        least = 2 if needs_two else 1
        batches = (b for b in self._batches(phase, len(indices)) if len(b) >= least)
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
        steps = 0
        for positions in batches:
            grad = self._grad(net, batch_of, positions, phase)
            step(self.algorithm.gradient(grad, weights, received, state, client))
            steps += 1
        self.steps += steps
        self.accumulated += float(accumulation(self.local.momentum, steps, self.local.nesterov))

    def _emit(self, net: Net, batch_of: BatchOf, batches: Iterator[Tensor], phase: Phase) -> None:
        where, _ = self.net.slices[phase.trainable]
        self.gradient = torch.zeros_like(self.net.weights)
        for positions in islice(batches, 1):
            self.gradient[where] = self._grad(net, batch_of, positions, phase)

    def _grad(self, net: Net, batch_of: BatchOf, positions: Tensor, phase: Phase) -> Tensor:
        """Of the mean loss over ``positions``; exact over chunks where the phase asks for a full batch."""
        if self._batch_size(phase) != "full" or len(positions) <= CHUNK:
            return self._backward(net, batch_of, positions, phase)
        total = None
        for chunk in positions.tensor_split(-(-len(positions) // CHUNK)):
            part = self._backward(net, batch_of, chunk, phase) * (len(chunk) / len(positions))
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _backward(self, net: Net, batch_of: BatchOf, positions: Tensor, phase: Phase) -> Tensor:
        batch = batch_of(positions)
        drawn = self.algorithm.draw(self.client, len(batch.y), self.received)
        if drawn:
            batch = replace(batch, drawn={name: _moved(value, batch.x.device) for name, value in drawn.items()})
        loss = self.algorithm.loss(net, batch, self.received, self.state)
        if self._first is None:
            cached = phase.features == "cached"
            x = self.rows.batch(self._part(phase)[positions])[0] if cached else batch.x
            self._first = replace(batch, x=x), loss.detach(), self.net.model.training and not cached
        return self.net.backward(loss, phase.trainable)

    # --- rows -----------------------------------------------------------------------------------------

    def _part(self, phase: Phase) -> Tensor:
        if phase.rows == "all":
            return self.indices
        if self._halves is None:  # one draw a round, so that support and query stay disjoint
            order = torch.randperm(len(self.indices), generator=self._client.rng("support"))
            cut = min(round(phase.support * len(order)), len(order) - 1)
            self._halves = {"support": self.indices[order[:cut]], "query": self.indices[order[cut:]]}
        return self._halves[phase.rows]

    def _batches(self, phase: Phase, num_rows: int) -> Iterator[Tensor]:
        """The positions of each step's rows."""
        size = self._batch_size(phase)
        if size == "full":
            passes: Iterator[list[Tensor]] = repeat([torch.arange(num_rows)]) if num_rows else iter(())
        else:
            passes = orders(num_rows, size, self.local.last_batch, self.client.rng("batches"))
        epochs, steps = phase.epochs, phase.steps
        if epochs is None and steps is None:
            epochs, steps = self.local.epochs, self.local.steps
        if steps is None:
            passes = islice(passes, epochs)
        batches = chain.from_iterable(passes)
        if phase.repeat > 1:
            batches = chain.from_iterable(repeat(batch, phase.repeat) for batch in batches)
        return batches if steps is None else islice(batches, steps)

    def _batch_size(self, phase: Phase) -> int | Literal["full"]:
        return self.local.batch_size if phase.batch == "local" else phase.batch

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
        with torch.no_grad():
            parts = [self.net.features(self.rows.batch(part)[0]) for part in indices.split(CHUNK)]
        features, labels = torch.cat(parts), self.rows.labels[indices]
        return lambda positions: Batch(features[positions], labels[positions], self.client)

    # --- the objective on the first batch ---------------------------------------------------------------

    def loss_before(self) -> float | None:
        return None if self._first is None else float(self._first[1])

    def loss_after(self) -> float | None:
        if self._first is None:
            return None
        batch, _, training = self._first
        self.net.train(training)
        return float(self.algorithm.loss(self.net, batch, self.received, self.state).detach())


@dataclass(frozen=True)
class FineTuning(Algorithm):
    """Local training of a client's own model, whatever the algorithm that it came from."""

    of: Algorithm

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return F.cross_entropy(self.of.predict_own(net, batch.x, batch.client), batch.y)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        raise TypeError("fine-tuning is for the client alone")

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        raise TypeError("fine-tuning is for the client alone")


BatchOf = Callable[[Tensor], Batch]  # positions [B] -> rows


class CachedNet:
    """The net over features that were computed before: its input is [B, D]."""

    def __init__(self, net: FlatNet) -> None:
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

    def narrow(self, width: float) -> Net:
        raise TypeError("a phase with cached features runs no body, so it cannot be narrowed")


def _in_phase(client: Client, name: str) -> Client:
    """The client during a phase; in one with a name it draws apart, so that what other phases draw is no matter."""
    if not name:
        return client
    return replace(client, phase=name, rng=lambda purpose: client.rng(f"{name}/{purpose}"))


def _finite(weights: Tensor) -> bool:
    low, high = torch.aminmax(weights)  # not a number if anything is; cheaper than isfinite
    return math.isfinite(low) and math.isfinite(high)


def _moved(value: Any, device: torch.device) -> Any:
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
