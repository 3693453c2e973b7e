"""Several clients in one pass: their weights are stacked, and the loss of one is mapped over all of them.

The counterpart of ``sequential.SequentialLoop`` for K clients at once. What happens once a phase or once a round
(draws of rows, starts of phases, states) happens client by client, as there; what happens once a step happens for all
whose next batch has the same size. Clients are in descending order of work, and of rows where it is equal, see
``block_rows.py``.

Shapes: K clients, k of them in a pass, B rows of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engine.algorithm import Algorithm, Batch, Client, Loss, ModelState, Net, Phase, Tensors, accumulated, overrides
from engine.client.steps.cached_net import CachedNet
from engine.client.steps.client_round import ClientProgress
from engine.client.steps.drawing_modules import StepDraws, drawing_from
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.step_inputs import Inputs
from engine.client.steps.training_loop import CHUNK, chunks, freezes_body, least_rows
from engine.client.vmap.block_inputs import OwnEntries
from engine.client.vmap.block_rows import BlockRows, Take, padded
from engine.client.vmap.compiled_step import Usual
from engine.client.vmap.cuda_graph import Programs
from engine.client.vmap.dense import Gradient, as_tensor
from engine.client.vmap.stack import Stack, StackedNet
from engine.client.vmap.step_memory import Memory
from engine.client.vmap.step_plan import StepPlan, step_plans
from engine.client.vmap.steps import Rate, descend, optimizer
from engine.client.vmap.vector_hooks import Perturbed, StackedHook, perturber, stacked_hook
from engine.client.vmap.vmap_rules import StackedRules
from engine.data.samples.batches import Rows


@dataclass(frozen=True)
class FirstBatches:
    """The objective on the first batches of clients [first, last) before any step, to be measured once more at the end.

    Some of the clients may have had an earlier one.
    """

    first: int
    last: int
    client: Client  # one of them, in the phase
    inputs: Inputs
    losses: Tensor  # [k]
    training: bool  # the mode of the modules
    plan: StepPlan
    draws: list[Tensor]  # the states from which its modules drew


class VmapLoop:
    """The phases of a block of clients, in one pass."""

    def __init__(
        self,
        net: FlatNet,
        rows: Rows,
        members: Sequence[ClientProgress],
        forward: Callable[[], AbstractContextManager[object]] = nullcontext,
        programs: Programs | None = None,
        probe: bool = False,
    ) -> None:
        """Take in rounds that have begun, in order, all of one algorithm, and of one local section but for their work.

        ``forward``, ``programs``: see ``Trainer``. ``probe``: whether :meth:`losses` will be asked for.
        """
        algorithm, local = members[0].task.algorithm, members[0].task.local
        self.net = net
        self.algorithm = algorithm
        self.local = local
        self.members = members
        self._firsts: list[FirstBatches | None] = [None] * len(members)
        self._has_starts = overrides(algorithm, "phase_start")
        self._probe = probe
        self.forward = forward
        with forward():
            is_exact = not torch.is_autocast_enabled(net.weights.device.type)
        context = members[0].client.context
        self._phases = algorithm.phases(context)
        self._plans = step_plans(algorithm, local, self._phases, context, net, is_exact)
        self._plan = self._plans[0]
        received, states = [member.received for member in members], [member.state for member in members]
        clients = [member.client for member in members]
        self._captured = programs is not None
        self._memory = Memory()
        if programs is not None:
            self._memory = programs.of(algorithm, local, self._plans, clients, received, states)
        starts = zip(*(member.start for member in members), strict=True)
        self.stack = Stack(net, *starts, by_layer=self._plan.by_layer, memory=self._memory)
        self._rows = BlockRows(net, rows, self.stack, members, forward)
        self._own = None
        if any(plan.mapped for plan in self._plans):
            if not any(plan.reads_entries for plan in self._plans):
                received, states = ([{} for _ in members] for _ in range(2))
            name = type(algorithm).__name__
            self._own = OwnEntries(name, clients, received, states, net.weights.dtype, self._memory)
        self._absent_of = _absent(algorithm, clients, self._memory)
        self._first_losses = self._memory.rows("first losses", net.weights.new_zeros(len(members)))
        self._starts: Tensor | None = None  # [K, P] of the phase, where somebody may ask
        self._emitted: Tensor | None = None  # [K, P] of the phase
        self._perturbed: Perturbed | None = None  # of the phase

    def phases(self) -> Iterator[Iterator[None]]:
        """Yield phase after phase its steps, which are taken by going on; all of them before the next phase.

        The modules are in eval mode after all phases.
        """
        for number, (phase, plan) in enumerate(zip(self._phases, self._plans, strict=True)):
            self._plan = plan
            self.stack.lay_out(plan.by_layer)
            for row, member in enumerate(self.members):
                member.enter(phase)
                if number and member.previous is not None:
                    self._load_start(row, member)
            needs_start = self._has_starts or plan.hooked or plan.perturbed or bool(phase.name)
            self._starts = self._memory.rows("starts", self.stack.all_weights()) if needs_start else None
            kept = self.stack.all_buffers() if phase.buffers == "keep" else None
            taken = [0] * len(self.members)
            yield self._run(phase, taken)
            self._memory.settle()
            self._end(phase, taken, kept)
            if self._starts is not None and (phase.name or self._has_starts):
                for row, member in enumerate(self.members):
                    end = ModelState(self.stack.weights_of(row), self.stack.buffers_of(row))
                    member.leave(phase, self._starts[row].clone(), end)
        self.net.train(False)

    def losses(self) -> list[tuple[float, float] | None]:
        """Each member's objective on its first batch, before its first step and now; to be asked for beforehand."""
        pairs: list[tuple[float, float] | None] = [None] * len(self.members)
        for group in {id(group): group for group in self._firsts if group}.values():
            first, last = group.first, group.last
            self.net.train(group.training)
            leaves = self.stack.leaves(first, last, "all")
            x, y = self._rows.taken(group.inputs)
            with torch.no_grad():
                if group.plan.dense is not None and not group.plan.head:
                    now = group.plan.dense.losses(leaves, x, y, self._absent_of(first, last))
                else:  # running statistics move in training mode; not the clients' own
                    buffers = {name: tensor.clone() for name, tensor in self.stack.buffers(first, last).items()}
                    draws, drawn = StepDraws.again(group.draws, stacked=True), group.inputs.drawn
                    objective, client = group.plan.objective, group.client
                    now = self._losses(first, last, client, objective, leaves, buffers, x, y, drawn, draws)
            for row, pair in enumerate(zip(group.losses.tolist(), now.tolist(), strict=True), start=first):
                if self._firsts[row] is group:
                    pairs[row] = pair
        self.net.train(False)
        return pairs

    # --- a phase ----------------------------------------------------------------------------------------

    def _load_start(self, row: int, member: ClientProgress) -> None:
        assert member.previous is not None
        entry = self.algorithm.phase_start(member.previous, member.received, member.state, member.phase_client)
        if isinstance(entry, ModelState):
            self.stack.load(row, *entry)
            self._firsts[row] = None  # another model is trained from here on
        elif entry is not None:
            self.stack.load(row, entry, self.stack.buffers_of(row))

    def _run(self, phase: Phase, taken: list[int]) -> Iterator[None]:
        """Take the phase's steps, one by going on once; count in ``taken`` those of each client."""
        frozen_body = freezes_body(phase)
        self.net.train(not frozen_body, head=True)
        whole_heads = self._plan.whole_head
        take = self._rows.cached(phase) if phase.features == "cached" and not whole_heads else None
        step = self._emitter(phase) if phase.emit == "gradient" else self._stepper(phase)
        self._perturbed = None
        if self._plan.perturbed:
            where, _ = self.net.slices[phase.trainable]
            self._perturbed = perturber(self.stack, phase.trainable, self._hook(where, self.algorithm.perturbation))
        streams = [
            member.order.passes(phase, member.phase_client, least_rows(self.net, phase)) for member in self.members
        ]
        if whole_heads:
            taken[:] = yield from self._whole_head_steps(phase, step)
            return
        while True:
            ended = [phase.emit == "gradient" and count > 0 for count in taken]  # of the first batch alone
            passes = [None if end else next(stream, None) for end, stream in zip(ended, streams, strict=True)]
            if all(one is None for one in passes):
                return
            batches = [(one or [])[: 1 if phase.emit == "gradient" else None] for one in passes]
            for first, last, chunked in self._rows.steps(phase, batches, self._plan.draws, self._memory.compiles):
                self._take_step(first, last, chunked, phase, take, step)
                yield
            taken[:] = [count + len(own) for count, own in zip(taken, batches, strict=True)]

    def _end(self, phase: Phase, taken: Sequence[int], kept: Tensor | None) -> None:
        """Note what a phase's steps have come to; ``kept``: the buffers [K, Q] that they leave as they were."""
        if self._emitted is not None:
            for member, row in zip(self.members, self._emitted, strict=True):
                member.gradient = row.clone()
            self._emitted = None
        if phase.emit == "step":
            for member, steps in zip(self.members, taken, strict=True):
                member.steps += steps
                member.accumulated += accumulated(self.local.of_phase(phase.lr), steps)
        if kept is not None:
            for row, buffers in enumerate(kept):
                self.stack.load(row, self.stack.weights_of(row), buffers)

    def _take_step(
        self, first: int, last: int, chunked: Sequence[Inputs], phase: Phase, take: Take | None, step: Step
    ) -> None:
        """One step of clients [first, last)."""
        if len(chunked) == 1:
            with_losses, places = self._wants_losses(first, last), chunked[0].rows["rows"]
            is_usual = places.shape[1] == self.members[0].order.batch_size(phase)
            compiles = self._memory.compiles and is_usual and bool(self.net.slices[phase.trainable][1])
            usual = Usual((phase, last - first, len(self.members)), first, last) if compiles else None
            keeps = with_losses or compiles  # so that there is one compiled step
            inputs = self._rows.made(first, last, chunked[0], take, with_losses and not compiles)
            plan, perturbed, draws = self._plan, self._perturbed, self._draws(first, last)
            before = draws.states() if with_losses and self.net.draws else []

            def work(inputs: Inputs) -> None:
                gradients = partial(self._gradients, first, last, inputs, draws, phase, plan)
                grads = gradients(keeps)
                if perturbed is not None:
                    grads = gradients(False, perturbed(first, last, grads))
                step(first, last, grads)

            self._memory.step((phase, first, last, keeps), work, inputs, usual)
            if with_losses:
                self._remember(first, last, places, phase, inputs, before)
            return
        self._memory.aside(f"full batches of more than {CHUNK} rows")
        grads = self._of_chunks(first, last, chunked, phase, take)
        if self._perturbed is not None:
            grads = self._of_chunks(first, last, chunked, phase, take, self._perturbed(first, last, grads))
        step(first, last, grads)

    def _of_chunks(
        self,
        first: int,
        last: int,
        chunked: Sequence[Inputs],
        phase: Phase,
        take: Take | None,
        leaves: list[Tensor] | None = None,
    ) -> list[Gradient]:
        """The gradient of each parameter over the rows of all chunks."""
        size = sum(inputs.rows["rows"].shape[1] for inputs in chunked)
        total: list[Gradient] = []
        for chunk in chunked:
            with_losses, places = self._wants_losses(first, last), chunk.rows["rows"]
            inputs, draws = self._rows.made(first, last, chunk, take, with_losses), self._draws(first, last)
            before = draws.states() if with_losses and self.net.draws else []
            grads = self._gradients(first, last, inputs, draws, phase, self._plan, with_losses, leaves)
            if with_losses:
                self._remember(first, last, places, phase, inputs, before)
            total = _plus(total, grads, places.shape[1] / size)
        return total

    def _whole_head_steps(self, phase: Phase, step: Step) -> Generator[None, None, list[int]]:
        """All steps of a head over all rows of each client; return how many each client has taken."""
        features, labels = self._rows.features(phase)
        plan, taken = self._plan, [0] * len(self.members)
        for first, last, count in self._rows.alike(phase, labels):
            inputs, draws = padded(features[first:last], labels[first:last]), self._draws(first, last)
            if self._wants_losses(first, last):
                for row in range(first, last):
                    self._first_head(row, phase, inputs.rows["x"][row - first], inputs.rows["y"][row - first])

            def work(inputs: Inputs, first: int = first, last: int = last, draws: StepDraws = draws) -> None:
                step(first, last, self._gradients(first, last, inputs, draws, phase, plan, with_losses=False))

            for _ in range(count):
                self._memory.step((phase, first, last, False), work, inputs)
                yield
            taken[first:last] = [count] * (last - first)
        return taken

    def _first_head(self, row: int, phase: Phase, x: Tensor, y: Tensor) -> None:
        """Remember the objective on a client's first batch, of the features and labels of all its rows."""
        assert self._plan.dense is not None
        rows = len(self.members[row].order.part(phase))
        places = chunks(torch.arange(rows))[0]
        leaves, first = self.stack.leaves(row, row + 1, phase.trainable)[-2:], slice(0, len(places))
        with torch.no_grad():
            losses = self._plan.dense.losses(leaves, x[None, first], y[None, first], self._absent_of(row, row + 1))
        self._first_losses[row : row + 1] = losses
        self._remember(row, row + 1, places[None], phase, Inputs({}), [])

    def _wants_losses(self, first: int, last: int) -> bool:
        """Return whether the losses of a step of clients [first, last) are to be kept: one of them has none yet."""
        return self._probe and any(group is None for group in self._firsts[first:last])

    def _draws(self, first: int, last: int) -> StepDraws:
        """The draws of modules in a step of clients [first, last)."""
        streams = [member.phase_client.rng for member in self.members[first:last]] if self.net.draws else []
        refusal = "which a captured step would repeat; set execution.executor=block" if self._captured else ""
        return StepDraws(streams, stacked=True, refusal=refusal)

    def _gradients(
        self,
        first: int,
        last: int,
        inputs: Inputs,
        draws: StepDraws,
        phase: Phase,
        plan: StepPlan,
        with_losses: bool,
        leaves: list[Tensor] | None = None,
    ) -> list[Gradient]:
        """The gradient of each parameter, at ``leaves`` or the present ones; ``with_losses``: losses are kept too."""
        leaves = leaves or self.stack.leaves(first, last, phase.trainable, plan.by_layer)
        trained = [leaf.requires_grad for leaf in leaves]
        cached = phase.features == "cached"
        if not any(trained) and not with_losses and not self.net.draws:  # which it does whatever is trained
            return [None] * len(leaves)
        x, y = self._rows.taken(inputs)
        if plan.dense is not None:
            skipped = len(leaves) - 2 * len(plan.dense.relus)  # of a body that has run before
            absent, weights = self._absent_of(first, last), inputs.rows.get("weights")
            with torch.no_grad():
                grads, losses = plan.dense.gradients(
                    leaves[skipped:], trained[skipped:], x, y, with_losses, absent, weights
                )
            grads = [None] * skipped + grads
        else:
            client, buffers = self.members[first].phase_client, self.stack.buffers(first, last)
            drawn = inputs.drawn
            losses = self._losses(first, last, client, plan.objective, leaves, buffers, x, y, drawn, draws, cached)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            next_grad = iter(torch.autograd.grad(losses.sum(), wanted, allow_unused=True) if wanted else ())
            grads = list[Gradient](next(next_grad) if is_trained else None for is_trained in trained)
        if with_losses and losses is not None:
            self._first_losses[first:last] = losses.detach()
        return grads

    def _losses(
        self,
        first: int,
        last: int,
        client: Client,
        objective: Loss,
        leaves: list[Tensor],
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        drawn: Tensors,
        draws: StepDraws,
        cached: bool = False,
    ) -> Tensor:
        """[k] of clients [first, last), each on its rows; ``client``: one of them, in the phase."""
        assert self._own is not None
        own, shared_received = self._own.of(first, last), self._own.shared
        template = self._template(client)

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
            client = replace(template, num_examples=count, class_counts=counts)
            net: Net = StackedNet(self.net, leaves, buffers)
            if cached:
                net = CachedNet(net)
            batch = Batch(x, y, client, drawn)
            return objective(net, batch, shared_received | received, state)

        with StackedRules(), self.forward():
            if self.net.draws:
                return mapped_with_draws(loss, draws, len(x))(leaves, buffers, x, y, drawn, *own)
            return vmap(loss, randomness="error")(leaves, buffers, x, y, drawn, *own)

    def _template(self, client: Client) -> Client:
        """Return what a mapped function sees of a client, but for what is each client's own."""
        return replace(client, context=self._memory.watched(client.context), rng=_no_draws)

    def _remember(
        self, first: int, last: int, places: Tensor, phase: Phase, inputs: Inputs, draws: list[Tensor]
    ) -> None:
        if phase.features == "cached":
            members = self.members[first:last]
            parts = [member.order.part(phase)[own] for member, own in zip(members, places, strict=True)]
            inputs = replace(inputs, rows={"rows": torch.stack(parts)})
        training = self.net.model.training and phase.features == "live"
        losses = self._memory.copied(self._first_losses[first:last])
        client = self.members[first].phase_client
        group = FirstBatches(first, last, client, inputs, losses, training, self._plan, draws)
        self._firsts[first:last] = [earlier or group for earlier in self._firsts[first:last]]

    # --- gradients and steps ------------------------------------------------------------------------------

    def _stepper(self, phase: Phase) -> Step:
        lr = self.members[0].phase_client.context.lr if phase.lr is None else phase.lr
        for member in self.members:
            member.lr = lr
        rate = self._memory.number("lr", lr, like=self.net.weights)
        if self._plan.in_place:
            return self._in_place_step(phase, rate)
        where, _ = self.net.slices[phase.trainable]
        local, whole = self.local.of_phase(phase.lr), self.stack.weights
        optimize = optimizer(local, whole[:, where], rate, self._memory, phase.trainable)
        hook = self._hook(where, self.algorithm.gradient) if self._plan.hooked else None

        @torch.no_grad()
        def step(first: int, last: int, grads: list[Gradient]) -> None:
            own = whole[first:last][:, where]  # a view made within the step: of a tensor there is one view outside
            grad = self.stack.written_out(first, last, phase.trainable, grads)
            optimize(first, last, own, grad if hook is None else hook(first, last, grad, own))

        return step

    def _in_place_step(self, phase: Phase, lr: Rate) -> Step:
        """Plain SGD without any gradient written out: products go straight into the weights."""

        by_layer = self._plan.by_layer

        @torch.no_grad()
        def step(first: int, last: int, grads: list[Gradient]) -> None:
            leaves = self.stack.leaves(first, last, phase.trainable, by_layer)
            for leaf, grad in zip(leaves, grads, strict=True):
                if grad is not None:
                    descend(leaf, grad, lr)

        return step

    def _emitter(self, phase: Phase) -> Step:
        where, _ = self.net.slices[phase.trainable]
        zeros = self.net.weights.new_zeros(len(self.members), len(self.net.weights))
        emitted = self._emitted = self._memory.rows("emitted", zeros)

        def step(first: int, last: int, grads: list[Gradient]) -> None:
            emitted[first:last, where] = self.stack.written_out(first, last, phase.trainable, grads)

        return step

    def _hook(self, where: slice, hook: Callable[..., Tensor]) -> StackedHook:
        """A hook of the algorithm's that sees gradients, for several clients."""
        assert self._starts is not None and self._own is not None
        client = self.members[0].phase_client
        context = replace(client.context, layout=client.context.layout.part(where))
        template = self._template(replace(client, context=context))
        return stacked_hook(hook, self.algorithm, where, self._starts, self._own, template)


Step = Callable[[int, int, list[Gradient]], None]  # of clients [first, last), by the gradient of each parameter


def _absent(algorithm: Algorithm, clients: Sequence[Client], memory: Memory) -> Callable[[int, int], Tensor | None]:
    """The classes that the contract's loss leaves out for clients [first, last): [k, C], or None."""
    if not algorithm.own_classes:
        return lambda first, last: None
    absent = memory.rows("absent classes", torch.stack([client.class_counts == 0 for client in clients]))
    return lambda first, last: absent[first:last]


def _plus(total: list[Gradient], grads: list[Gradient], share: float) -> list[Gradient]:
    """``total + share * grads``; an empty total is zero."""
    terms = [None if grad is None else as_tensor(grad) * share for grad in grads]
    if not total:
        return list(terms)
    return [
        term if before is None else before if term is None else as_tensor(before) + term
        for before, term in zip(total, terms, strict=True)
    ]


def _no_draws(purpose: str) -> torch.Generator:
    raise TypeError(
        f"a loss or gradient draws nothing itself: what it needs of {purpose!r} comes from Algorithm.step_randomness"
    )


def mapped_with_draws(loss: Callable[..., Tensor], draws: StepDraws, clients: int) -> Callable[..., Tensor]:
    """Map ``loss`` over ``clients``, the draws of its modules each from its client's stream."""

    def one(token: Tensor, *args: Any) -> Tensor:
        draws.token = token
        try:
            return loss(*args)
        finally:
            draws.token = None

    def mapped(*args: Any) -> Tensor:
        tokens = torch.zeros(clients, device=args[2].device)
        with drawing_from(draws):
            return vmap(one, randomness="different")(tokens, *args)

    return mapped
