"""Local training: a client's round from what it received to what it sends.

``Trainer.train`` gives an algorithm's hooks what they need, with the loop of ``phases.py`` in the middle, and
``Trainer.train_together`` several clients' with ``executors/block.py``; neither
knows in which process it runs.

Shapes: n rows of a client, B of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Context,
    LocalRun,
    Phase,
    Tensors,
    seeds,
)
from engine.base.errors import ClientError
from engine.client.entries import checked, is_finite, kept, not_finite, opened, sent
from engine.client.flat_net import FlatNet
from engine.client.sequential import CHUNK, Course, FineTuning, NotFinite, Tally
from engine.client.training_tools import FlatWorkbench
from engine.client.vmap.block import Member, Together
from engine.client.vmap.cuda_graph import Programs
from engine.data.batches import Rows
from engine.data.public import PublicSet, none_set_aside
from engine.experiment import Local


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
    personal: Tensors  # "weights" and "buffers" that the client would use now
    loss_before: float | None = None  # the objective on the first batch, where the training of ``weights`` began
    loss_after: float | None = None  # the same batch, at the weights it ended with


@dataclass(frozen=True)
class Arrival:
    """What a client begins its round with."""

    visit: Visit
    client: Client
    received: Tensors
    state: Tensors
    start: Tensor  # [P]
    buffers: Tensor  # [Q]


@dataclass(frozen=True)
class Visit:
    """What the trainer is told of a client whose turn it is. A ``newcomer`` to the stage brings what it kept of the
    stage before, if anything."""

    algorithm: Algorithm
    local: Local
    number: int
    indices: Tensor  # [n] rows of the data set
    context: Context
    received: Tensors
    stored: Tensors  # its state, as it is stored
    newcomer: bool = False


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


def first_state(algorithm: Algorithm, client: Client, received: Tensors, parent: Tensors) -> Tensors:
    """What a client keeps at its first participation in a stage, as it is stored.

    client: with ``rng`` as of round 0. parent: what it kept of the stage before.
    """
    first = checked(algorithm, "init_state", algorithm.init_state(received, parent, client), client.context.layout)
    return kept(algorithm.entries, first, client)


class Trainer:
    """Trains clients on one device in one network, one after the other or several in one pass."""

    def __init__(
        self,
        net: FlatNet,
        rows: Rows,
        seed: int,
        public: PublicSet = none_set_aside,
        forward: Callable[[], AbstractContextManager[object]] = nullcontext,
        programs: Programs | None = None,
    ) -> None:
        """``forward``: what surrounds a forward pass and its loss, see precision.py. ``programs``: of steps that are
        captured, where those of :meth:`train_together` are to be."""
        self.net = net
        self.rows = rows
        self.seed = seed
        self.public = public
        self.forward = forward
        self.programs = programs

    def client(self, number: int, indices: Tensor, context: Context) -> Client:
        """The client whose rows are ``indices`` [n] of the data set."""
        counts = torch.bincount(self.rows.labels.index_select(0, indices), minlength=context.layout.classes)
        return Client(indices.numel(), counts, context, Streams(self.seed, context.round, number))

    def train(self, visit: Visit, probe: bool = False) -> Trained:
        """One client's round. ``probe`` fills the two losses."""
        arrival = self._arrive(visit)
        self.net.load(arrival.start, arrival.buffers)
        course = self._course(visit, arrival.client, arrival.received, arrival.state)
        course.run_all(visit.algorithm.phases(visit.context))
        trained = self._leave(arrival, course, self.net.weights.clone(), self.net.buffers.clone())
        if not probe:
            return trained
        # After the upload: the objective may draw from client.rng.
        return replace(trained, loss_before=course.loss_before(), loss_after=course.loss_after())

    def train_together(self, visits: Sequence[Visit], probe: bool = False) -> list[Trained | ClientError]:
        """The rounds of several clients, in one pass; what is theirs, in the order given: of one that has diverged,
        the error.

        visits: all of one algorithm, one local section and one round.
        """
        algorithm, local = visits[0].algorithm, visits[0].local
        order = sorted(range(len(visits)), key=lambda index: -visits[index].indices.numel())
        arrivals = [self._arrive(visits[index]) for index in order]
        members = [Member(local, a.client, a.visit.indices, a.received, a.state) for a in arrivals]
        starts = [(arrival.start, arrival.buffers) for arrival in arrivals]
        together = Together(self.net, self.rows, algorithm, local, members, starts, self.forward, self.programs, probe)
        together.run_all()
        losses = together.losses() if probe else [None] * len(members)
        ends = zip(together.stack.all_weights(), together.stack.all_buffers(), strict=True)
        found: list[Trained | ClientError | None] = [None] * len(visits)
        for index, arrival, member, end, pair in zip(order, arrivals, members, ends, losses, strict=True):
            self.net.load(*end)
            try:
                trained = self._leave(arrival, member, *end)
            except ClientError as error:
                found[index] = error
            else:
                found[index] = replace(trained, loss_before=pair[0], loss_after=pair[1]) if pair else trained
        return [one for one in found if one is not None]

    def _course(self, visit: Visit, client: Client, received: Tensors, state: Tensors) -> Course:
        return Course(self, visit.algorithm, visit.local, client, visit.indices, received, state)

    def _arrive(self, visit: Visit) -> Arrival:
        """What a client begins its round with."""
        algorithm, client = visit.algorithm, self.client(visit.number, visit.indices, visit.context)
        state = self.state_of(visit, client)
        received = {**visit.received, **self._equipment(algorithm, visit.received, state, client)}
        start = algorithm.start(received, state, client)
        return Arrival(visit, client, received, state, start, algorithm.start_buffers(received, state, client))

    def _leave(self, arrival: Arrival, course: Tally, end: Tensor, buffers: Tensor) -> Trained:
        """What a client's round comes to, with ``end`` [P] and ``buffers`` [Q] in the net."""
        visit, client, received, state = arrival.visit, arrival.client, arrival.received, arrival.state
        algorithm, context, num_examples = visit.algorithm, visit.context, visit.indices.numel()
        run = LocalRun(
            start=arrival.start,
            end=end,
            buffers=buffers,
            gradient=course.gradient,
            steps=course.steps,
            accumulation=course.accumulated,
            num_examples=num_examples,
            lr=course.lr,
            local=visit.local,
            client=client,
            net=self.net,
            rows=partial(self.one_pass, client, visit.indices),
            ends=course.ends,
        )
        if not all(map(is_finite, (end, *(ended.end for ended in run.ends.values())))):
            raise self._diverged(visit, course, "its weights are")
        upload, new_state = algorithm.upload(run, received, state)
        if new_state and not algorithm.stateful:
            raise TypeError(
                f"{type(algorithm).__name__}.upload keeps a state, but init_state gives it no first one, or stateful "
                "says that there is none"
            )
        new_state = checked(algorithm, "upload", new_state, context.layout)
        upload, weight = sent(algorithm, upload, context.layout), float(algorithm.weight(run))
        for what, entries in (("upload", upload), ("state", new_state), ("model", {"buffers": buffers})):
            name = not_finite(entries)
            if name is not None:
                raise self._diverged(visit, course, f"entry {name!r} of its {what} is")
        if not math.isfinite(weight):
            raise self._diverged(visit, course, "its upload's weight is")
        return Trained(
            upload=upload,
            state=kept(algorithm.entries, new_state, client),
            weights=run.end,
            buffers=run.buffers if algorithm.shares_buffers else run.buffers[:0],
            personal=algorithm.personal_after(run, received, new_state),
            weight=weight,
            num_examples=num_examples,
            steps=course.steps,
        )

    def _diverged(self, visit: Visit, course: Tally, what: str) -> ClientError:
        """What to raise where ``what`` is not finite; the step is found by training the client once more."""
        step, phases = self._first_bad_step(visit), visit.algorithm.phases(visit.context)
        since = f"after {course.steps} steps" if step is None else f"from step {step} of {course.steps} on"
        return ClientError(
            f"client {visit.number} diverged in round {visit.context.round}: {what} not finite {since}"
            f"{_lower_rates(phases, course.lr)}",
            visit.number,
            visit.context.round,
            step,
        )

    def _first_bad_step(self, visit: Visit) -> int | None:
        """None where it is not a step that does it."""
        try:
            arrival = self._arrive(visit)
            self.net.load(arrival.start, arrival.buffers)
            course = self._course(visit, arrival.client, arrival.received, arrival.state)
            course.stops_unless_finite = True
            course.run_all(visit.algorithm.phases(visit.context))
        except NotFinite as found:
            return found.step
        except Exception:  # hooks need not bear weights that are not finite, and one failure is told of already
            return None
        finally:
            self.net.train(False)  # as the hooks of clients after this one expect it
        return None

    def state_of(self, visit: Visit, client: Client) -> Tensors:
        """A client's state from what is stored of it, or its first one."""
        algorithm, stored = visit.algorithm, visit.stored
        stored = opened(algorithm.entries, stored, client) if stored else stored
        if not visit.newcomer or type(algorithm).init_state is Algorithm.init_state:
            return {} if visit.newcomer else stored
        early = replace(client, rng=Streams(self.seed, 0, visit.number))  # the same whenever it first takes part
        return opened(algorithm.entries, first_state(algorithm, early, visit.received, stored), client)

    def _equipment(self, algorithm: Algorithm, received: Tensors, state: Tensors, client: Client) -> Tensors:
        if type(algorithm).equip is Algorithm.equip:
            return {}
        self.net.load(received["weights"], received["buffers"])
        self.net.train(False)
        made = algorithm.equip(FlatWorkbench(self.net, client.rng, self.public), received, state, client)
        return checked(algorithm, "equip", made, client.context.layout)

    def personalise(self, visit: Visit) -> None:
        """Put into the net what the client would use with what it has received and keeps; neither is changed."""
        algorithm, received = visit.algorithm, visit.received
        client = self._aside(visit, "evaluation/")
        state = self.state_of(visit, client)
        phases = algorithm.adapt(visit.context)
        if phases:
            received = {**received, **self._equipment(algorithm, received, state, client)}
        model = algorithm.personal(received, state, client)
        self.net.load(model["weights"], model["buffers"])
        self._course(visit, client, received, state).run_all(phases)

    def fine_tune(self, visit: Visit, phase: Phase) -> None:
        """Train what is in the net on the client's rows, by the cross entropy of its own predictions alone."""
        visit = replace(visit, algorithm=FineTuning(visit.algorithm))
        self._course(visit, self._aside(visit, "fine tuning/"), {}, {}).run_all((phase,))

    def _aside(self, visit: Visit, purposes: str) -> Client:
        """The client, with draws that are none of its training's."""
        client = self.client(visit.number, visit.indices, visit.context)
        return replace(client, rng=Streams(self.seed, visit.context.round, visit.number, purposes))

    def one_pass(self, client: Client, indices: Tensor) -> Iterator[Batch]:
        """A client's rows in order, not augmented."""
        for part in indices.split(CHUNK):
            yield Batch(*self.rows.batch(part), client)


def _lower_rates(phases: Sequence[Phase], lr: float) -> str:
    """The end of a sentence on what diverged: the rate and the repair, where one rate alone can be to blame."""
    if all(phase.lr is None and phase.emit == "step" for phase in phases):
        return f" with lr={lr:g}; lower local.lr"
    return "; lower the algorithm's own learning rates and local.lr"
