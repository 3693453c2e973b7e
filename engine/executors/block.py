"""Several clients in one pass: their weights are stacked, and the loss of one is mapped over all of them.

The counterpart of ``phases.Course`` for K clients at once. What happens once a phase or once a round (draws of rows,
entering a phase, states) happens client by client, as there; what happens once a step happens for all whose next batch
has the same size. Clients are in descending order of rows, see ``ticks.py``.

Shapes: K clients, k of them in a pass, B rows of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from engine.algorithm import Algorithm, Batch, Client, Ended, Net, Phase, Tensors, accumulation
from engine.data.batches import Rows
from engine.entries import sliced
from engine.executors.dense import Dense, Gradient, Product
from engine.executors.rules import StackedRules
from engine.executors.stack import Stack, StackedNet
from engine.executors.ticks import ticks
from engine.experiment import Local
from engine.phases import CHUNK, CachedNet, RoundRows, in_phase, moved
from engine.weights import FlatNet


class Member:
    """One client of a block, and what is counted of it; the names are those of ``phases.Course``."""

    def __init__(self, local: Local, client: Client, indices: Tensor, received: Tensors, state: Tensors) -> None:
        self.round_client = client
        self.client = client  # as the phase that is under way has it
        self.order = RoundRows(local, client, indices)
        self.received = received
        self.state = state
        self.steps = 0
        self.accumulated = 0.0
        self.lr = client.context.lr
        self.gradient: Tensor | None = None
        self.ends: dict[str, Ended] = {}
        self.previous: Ended | None = None
        self.first: FirstBatches | None = None


@dataclass(frozen=True)
class FirstBatches:
    """The objective on the first batches of clients [first, last) before any step, to be measured once more at the end.

    Some of the clients may have had an earlier one.
    """

    first: int
    last: int
    client: Client  # one of them, in the phase
    x: Tensor  # [k, B, ...]
    y: Tensor  # [k, B]
    drawn: Tensors
    losses: Tensor  # [k]
    training: bool  # the mode of the modules


class Together:
    """The phases of a block of clients."""

    def __init__(
        self,
        net: FlatNet,
        rows: Rows,
        algorithm: Algorithm,
        local: Local,
        members: Sequence[Member],
        starts: Starts,
        forward: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """``starts``: weights [P] and buffers [Q] of each member. ``forward``: see ``Trainer``."""
        self.net = net
        self.rows = rows
        self.algorithm = algorithm
        self.local = local
        self.members = members
        hooks = type(algorithm)
        self._hooked = hooks.gradient is not Algorithm.gradient
        self._enters = hooks.enter is not Algorithm.enter
        self._draws = hooks.draw is not Algorithm.draw
        self.forward = forward
        with forward():
            is_exact = not torch.is_autocast_enabled(net.weights.device.type)
        self._dense = Dense.of(net.model) if hooks.loss is Algorithm.loss and is_exact else None
        phases = algorithm.phases(members[0].client.context)
        plain = local.optimizer == "sgd" and local.momentum == 0 and local.weight_decay == 0 and not self._hooked
        self._in_place = plain and all(p.emit == "step" and self._size(p) != "full" for p in phases)
        self.stack = Stack(net, *zip(*starts, strict=True), by_layer=self._in_place)
        self._own = _OwnEntries(algorithm, members, net.weights.dtype)
        self._starts: Tensor | None = None  # [K, P] of the phase, where somebody may ask

    def run_all(self) -> None:
        """All phases; the modules are in eval mode after them."""
        for number, phase in enumerate(self.algorithm.phases(self.members[0].client.context)):
            for row, member in enumerate(self.members):
                member.client = in_phase(member.round_client, phase.name)
                if number and member.previous is not None:
                    self._enter(row, member)
            needs_start = self._enters or self._hooked or bool(phase.name)
            self._starts = torch.stack(self._all_weights()) if needs_start else None
            self._run(phase)
            if self._starts is not None and (phase.name or self._enters):
                for row, member in enumerate(self.members):
                    count = len(member.order.part(phase))
                    buffers = self.stack.buffers_of(row)
                    member.previous = Ended(self._starts[row], self.stack.weights_of(row), buffers, count)
                    if phase.name:
                        member.ends[phase.name] = member.previous
        self.net.train(False)

    def losses(self) -> list[tuple[float, float] | None]:
        """Each member's objective on its first batch, before its first step and now."""
        found: list[tuple[float, float] | None] = [None] * len(self.members)
        for group in {id(member.first): member.first for member in self.members if member.first}.values():
            first, last = group.first, group.last
            self.net.train(group.training)
            leaves = self.stack.leaves(first, last, "all")
            with torch.no_grad():
                if self._dense is not None:
                    now = self._dense.losses(leaves, group.x, group.y)
                else:  # running statistics move in training mode; not the clients' own
                    buffers = {name: tensor.clone() for name, tensor in self.stack.buffers(first, last).items()}
                    now = self._losses(
                        first, last, group.client, leaves, buffers, group.x, group.y, group.drawn, cached=False
                    )
            for row, pair in enumerate(zip(group.losses.tolist(), now.tolist(), strict=True), start=first):
                if self.members[row].first is group:
                    found[row] = pair
        self.net.train(False)
        return found

    # --- a phase ----------------------------------------------------------------------------------------

    def _enter(self, row: int, member: Member) -> None:
        assert member.previous is not None
        entry = self.algorithm.enter(member.previous, member.received, member.state, member.client)
        if entry:
            self.stack.load(row, entry["weights"], entry.get("buffers", self.stack.buffers_of(row)))
        if "buffers" in entry:
            member.first = None  # another model is trained from here on

    def _run(self, phase: Phase) -> None:
        frozen_body = phase.trainable == "head" or phase.features == "cached"
        self.net.train(not frozen_body, head=True)
        kept = [self.stack.buffers_of(row) for row in range(len(self.members))] if phase.buffers == "keep" else None
        least = 2 if self.net.layout.has_batchnorm and not frozen_body else 1
        take = (
            self._cached(phase)
            if phase.features == "cached"
            else self._live("none" if frozen_body else self.local.augment)
        )
        step = self._emitter(phase) if phase.emit == "gradient" else self._stepper(phase)
        streams = [member.order.passes(phase, member.client, least) for member in self.members]
        taken = [0] * len(self.members)
        while True:
            ended = [phase.emit == "gradient" and count > 0 for count in taken]  # of the first batch alone
            passes = [None if end else next(stream, None) for end, stream in zip(ended, streams, strict=True)]
            if all(one is None for one in passes):
                break
            batches = [(one or [])[: 1 if phase.emit == "gradient" else None] for one in passes]
            places = [self._placed(member, phase, own) for member, own in zip(self.members, batches, strict=True)]
            at = [0] * len(self.members)
            for first, last in ticks([[one.numel() for one in own] for own in places]):
                own = [places[row][at[row]] for row in range(first, last)]
                self._tick(first, last, own, phase, take, step)
                for row in range(first, last):
                    at[row] += 1
                    taken[row] += 1
        if phase.emit == "step":
            for member, steps in zip(self.members, taken, strict=True):
                member.steps += steps
                member.accumulated += float(accumulation(self.local.momentum, steps, self.local.nesterov))
        if kept is not None:
            for row, buffers in enumerate(kept):
                self.stack.load(row, self.stack.weights_of(row), buffers)

    def _placed(self, member: Member, phase: Phase, batches: list[Tensor]) -> list[Tensor]:
        """For positions within the phase's rows the rows of the data set; with cached features the positions."""
        if not batches or phase.features == "cached":
            return batches
        return list(member.order.part(phase)[torch.cat(batches)].split([batch.numel() for batch in batches]))

    def _tick(self, first: int, last: int, places: list[Tensor], phase: Phase, take: Take, step: Step) -> None:
        """One step of clients [first, last)."""
        size = places[0].numel()
        if self._size(phase) != "full" or size <= CHUNK:
            step(first, last, self._backward(first, last, places, phase, take))
            return
        total: list[Gradient] = []
        for chunk in zip(*(one.tensor_split(-(-size // CHUNK)) for one in places), strict=True):
            grads = self._backward(first, last, list(chunk), phase, take)
            total = _plus(total, grads, len(chunk[0]) / size)
        step(first, last, total)

    def _backward(self, first: int, last: int, places: list[Tensor], phase: Phase, take: Take) -> list[Gradient]:
        """The gradient of each parameter."""
        x, y = take(first, last, places)
        drawn: Tensors = {}
        if self._draws:
            draws = [
                self.algorithm.draw(member.client, y.shape[1], member.received) for member in self.members[first:last]
            ]
            stacked = _stacked(f"{type(self.algorithm).__name__}.draw", draws)
            drawn = {name: moved(tensor, x.device) for name, tensor in stacked.items()}
        leaves = self.stack.leaves(first, last, phase.trainable)
        trained = [leaf.requires_grad for leaf in leaves]
        cached = phase.features == "cached"
        asked = any(member.first is None for member in self.members[first:last])
        if not any(trained) and not asked:
            return [None] * len(leaves)
        if self._dense is not None and not cached:
            with torch.no_grad():
                grads, losses = self._dense.gradients(leaves, trained, x, y, with_losses=asked)
        else:
            client, buffers = self.members[first].client, self.stack.buffers(first, last)
            losses = self._losses(first, last, client, leaves, buffers, x, y, drawn, cached)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found = iter(torch.autograd.grad(losses.sum(), wanted, allow_unused=True) if wanted else ())
            grads = list[Gradient](next(found) if is_trained else None for is_trained in trained)
        if asked and losses is not None:
            self._remember(first, last, x, y, drawn, losses.detach(), places, phase)
        return grads

    def _losses(
        self,
        first: int,
        last: int,
        template: Client,
        leaves: list[Tensor],
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        drawn: Tensors,
        cached: bool,
    ) -> Tensor:
        """[k] of clients [first, last), each on its rows; ``template``: one of them, in the phase."""
        shared_received, shared_state = self._own.shared

        def loss(
            leaves: list[Tensor],
            buffers: Tensors,
            x: Tensor,
            y: Tensor,
            drawn: Tensors,
            received: Tensors,
            state: Tensors,
            count: Tensor,
            counts: Tensor,
        ) -> Tensor:
            client = replace(template, num_examples=count, class_counts=counts, rng=_no_draws)
            net: Net = StackedNet(self.net, leaves, buffers)
            if cached:
                net = CachedNet(net)
            batch = Batch(x, y, client, drawn)
            return self.algorithm.loss(net, batch, shared_received | received, shared_state | state)

        own = self._own.of(first, last)
        with StackedRules(), self.forward():
            return vmap(loss, randomness="error")(leaves, buffers, x, y, drawn, *own)

    def _remember(
        self,
        first: int,
        last: int,
        x: Tensor,
        y: Tensor,
        drawn: Tensors,
        losses: Tensor,
        places: list[Tensor],
        phase: Phase,
    ) -> None:
        if phase.features == "cached":
            members = self.members[first:last]
            parts = [member.order.part(phase)[own] for member, own in zip(members, places, strict=True)]
            x = torch.stack([self.rows.batch(part)[0] for part in parts])
        training = self.net.model.training and phase.features == "live"
        group = FirstBatches(first, last, self.members[first].client, x, y, drawn, losses, training)
        for member in self.members[first:last]:
            member.first = member.first or group

    # --- gradients and steps ------------------------------------------------------------------------------

    def _written_out(self, first: int, last: int, phase: Phase, grads: list[Gradient]) -> Tensor:
        """[k, n] of the phase's part."""
        leaves = self.stack.leaves(first, last, phase.trainable)
        pieces = [
            (torch.zeros_like(leaf) if grad is None else _tensor(grad)).flatten(1)
            for leaf, grad in zip(leaves, grads, strict=True)
            if leaf.requires_grad
        ]
        return torch.cat(pieces, dim=1) if pieces else self.stack.weights.new_zeros(last - first, 0)

    def _stepper(self, phase: Phase) -> Step:
        lr = self.members[0].client.context.lr if phase.lr is None else phase.lr
        for member in self.members:
            member.lr = lr
        if self._in_place:
            return self._in_place_step(phase, lr)
        where, _ = self.net.slices[phase.trainable]
        weights = self.stack.weights[:, where]
        optimize = _adam(weights, self.local, lr) if self.local.optimizer == "adam" else _sgd(weights, self.local, lr)
        hook = self._hook(where) if self._hooked else None

        @torch.no_grad()
        def step(first: int, last: int, grads: list[Gradient]) -> None:
            grad = self._written_out(first, last, phase, grads)
            optimize(first, last, grad if hook is None else hook(first, last, grad, weights[first:last]))

        return step

    def _in_place_step(self, phase: Phase, lr: float) -> Step:
        """Plain SGD without any gradient written out: products go straight into the weights."""

        @torch.no_grad()
        def step(first: int, last: int, grads: list[Gradient]) -> None:
            for leaf, grad in zip(self.stack.leaves(first, last, phase.trainable), grads, strict=True):
                if isinstance(grad, Product):
                    leaf.baddbmm_(grad.dy.mT, grad.x, alpha=-lr)
                elif grad is not None:
                    leaf.add_(grad, alpha=-lr)

        return step

    def _emitter(self, phase: Phase) -> Step:
        where, _ = self.net.slices[phase.trainable]

        emitted = self.net.weights.new_zeros(len(self.members), len(self.net.weights))
        for member, row in zip(self.members, emitted, strict=True):
            member.gradient = row

        def step(first: int, last: int, grads: list[Gradient]) -> None:
            emitted[first:last, where] = self._written_out(first, last, phase, grads)

        return step

    def _hook(self, where: slice) -> Callable[[int, int, Tensor, Tensor], Tensor]:
        """The algorithm's gradient hook, for several clients."""
        assert self._starts is not None
        starts = self._starts[:, where]
        shared_received, shared_state = self._own.shared
        shared_received = sliced(self.algorithm, shared_received, where)
        shared_state = sliced(self.algorithm, shared_state, where)
        template = self.members[0].client
        context = replace(template.context, layout=template.context.layout.part(where))

        def one(
            grad: Tensor,
            weights: Tensor,
            start: Tensor,
            received: Tensors,
            state: Tensors,
            count: Tensor,
            counts: Tensor,
        ) -> Tensor:
            client = replace(template, context=context, num_examples=count, class_counts=counts, rng=_no_draws)
            received = shared_received | sliced(self.algorithm, received, where) | {"phase_start": start}
            return self.algorithm.gradient(
                grad, weights, received, shared_state | sliced(self.algorithm, state, where), client
            )

        mapped = vmap(one, randomness="error")
        return lambda first, last, grad, weights: mapped(grad, weights, starts[first:last], *self._own.of(first, last))

    # --- rows -----------------------------------------------------------------------------------------

    def _live(self, augment: str) -> Take:
        def take(first: int, last: int, places: list[Tensor]) -> tuple[Tensor, Tensor]:
            if augment == "none":
                x, y = self.rows.batch(torch.cat(places))
                size = places[0].numel()
                return x.unflatten(0, (last - first, size)), y.unflatten(0, (last - first, size))
            parts = [
                self.rows.batch(own, augment, self.members[row].client.rng("augment"))
                for row, own in zip(range(first, last), places, strict=True)
            ]
            return torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])

        return take

    def _cached(self, phase: Phase) -> Take:
        features, labels = [], []
        with torch.no_grad():
            for row, member in enumerate(self.members):
                self.net.load(self.stack.weights_of(row), self.stack.buffers_of(row))
                part = member.order.part(phase)
                features.append(torch.cat([self.net.features(self.rows.batch(c)[0]) for c in part.split(CHUNK)]))
                labels.append(self.rows.labels[part])

        def take(first: int, last: int, places: list[Tensor]) -> tuple[Tensor, Tensor]:
            chosen = list(zip(range(first, last), places, strict=True))
            return torch.stack([features[row][own] for row, own in chosen]), torch.stack(
                [labels[row][own] for row, own in chosen]
            )

        return take

    def _size(self, phase: Phase) -> Any:
        return self.members[0].order.batch_size(phase)

    def _all_weights(self) -> list[Tensor]:
        return [self.stack.weights_of(row) for row in range(len(self.members))]


class _OwnEntries:
    """What members have received and keep: what is the same for all once, the rest stacked."""

    def __init__(self, algorithm: Algorithm, members: Sequence[Member], dtype: torch.dtype) -> None:
        self._name = type(algorithm).__name__
        self._members = members
        self._dtype = dtype

    @cached_property
    def _received(self) -> tuple[Tensors, Tensors]:
        return _split(f"{self._name}: what clients receive", [member.received for member in self._members])

    @cached_property
    def _state(self) -> tuple[Tensors, Tensors]:
        return _split(f"{self._name}: what clients keep", [member.state for member in self._members])

    @cached_property
    def _counts(self) -> tuple[Tensor, Tensor]:
        class_counts = torch.stack([member.client.class_counts for member in self._members])
        counts = [float(member.client.num_examples) for member in self._members]
        return torch.tensor(counts, device=class_counts.device, dtype=self._dtype), class_counts

    @property
    def shared(self) -> tuple[Tensors, Tensors]:
        """Entries received, and entries kept."""
        return self._received[0], self._state[0]

    def of(self, first: int, last: int) -> tuple[Tensors, Tensors, Tensor, Tensor]:
        """Own entries received, own entries kept, numbers of examples [k], class counts [k, C]."""
        received, state = (
            {name: tensor[first:last] for name, tensor in own.items()} for own in (self._received[1], self._state[1])
        )
        examples, class_counts = self._counts
        return received, state, examples[first:last], class_counts[first:last]


def _split(what: str, entries: Sequence[Mapping[str, Tensor]]) -> tuple[Tensors, Tensors]:
    """Entries that are one tensor for all, and the others stacked."""
    first = entries[0]
    shared = {name: tensor for name, tensor in first.items() if all(own.get(name) is tensor for own in entries)}
    rest = [{name: own[name] for name in own if name not in shared} for own in entries]
    return shared, _stacked(what, rest)


def _stacked(what: str, entries: Sequence[Mapping[str, Any]]) -> Tensors:
    """Of K clients' entries each [K, ...]."""
    found: Tensors = {}
    for name in {name: None for own in entries for name in own}:
        try:
            found[name] = torch.stack([own[name] for own in entries])
        except (KeyError, TypeError, RuntimeError) as error:
            raise TypeError(
                f"{what}: {name!r} is no tensor of one shape for all clients of a block; "
                "say so in one_by_one, and they are trained one by one"
            ) from error
    return found


Starts = Sequence[tuple[Tensor, Tensor]]
Take = Callable[
    [int, int, list[Tensor]], tuple[Tensor, Tensor]
]  # rows of clients [first, last): x [k, B, ...], y [k, B]
Step = Callable[[int, int, list[Gradient]], None]  # of clients [first, last), by the gradient of each parameter
Optimize = Callable[[int, int, Tensor], None]  # the same by gradients [k, n]


def _tensor(grad: Tensor | Product) -> Tensor:
    return grad.written_out() if isinstance(grad, Product) else grad


def _plus(total: list[Gradient], grads: list[Gradient], share: float) -> list[Gradient]:
    """``total + share * grads``; an empty total is zero."""
    terms = [None if grad is None else _tensor(grad) * share for grad in grads]
    if not total:
        return list(terms)
    return [
        term if before is None else before if term is None else _tensor(before) + term
        for before, term in zip(total, terms, strict=True)
    ]


def _no_draws(purpose: str) -> torch.Generator:
    raise TypeError(f"a loss or gradient draws nothing itself: what it needs of {purpose!r} comes from Algorithm.draw")


def _sgd(weights: Tensor, local: Local, lr: float) -> Optimize:
    velocity = torch.zeros_like(weights) if local.momentum else None

    def step(first: int, last: int, grad: Tensor) -> None:
        sgd(
            [weights[first:last]],
            [grad],
            [None if velocity is None else velocity[first:last]],
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


def _adam(weights: Tensor, local: Local, lr: float) -> Optimize:
    means, squares = torch.zeros_like(weights), torch.zeros_like(weights)
    steps = [torch.zeros(()) for _ in weights]

    def step(first: int, last: int, grad: Tensor) -> None:
        adam(
            list(weights[first:last]),
            list(grad),
            list(means[first:last]),
            list(squares[first:last]),
            [],
            steps[first:last],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=local.weight_decay,
            eps=1e-8,
            maximize=False,
            foreach=False,
            capturable=False,
            differentiable=False,
            fused=False,
        )

    return step
