"""Local training: a client's round from what it received to what it sends.

``Trainer.train`` gives an algorithm's methods what they need, with the loop of ``training_loop.py`` in the middle, and
``Trainer.train_together`` and ``Trainer.train_in_lanes`` several clients' with ``vmap/training_loop.py``; none knows in
which process it runs.

Shapes: n rows of a client, B of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Context,
    LocalRun,
    ModelState,
    Personalised,
    Phase,
    Tensors,
    overrides,
    personalised,
)
from engine.base.errors import ClientError
from engine.client.client_round import ClientRound, Streams
from engine.client.entries import checked, checked_upload, is_finite, kept, not_finite, opened
from engine.client.flat_net import FlatNet
from engine.client.training_loop import CHUNK, FineTuning, NotFinite, SequentialLoop
from engine.client.training_tools import FlatTrainingTools
from engine.client.vmap.cuda_graph import Programs
from engine.client.vmap.lanes import in_turn
from engine.client.vmap.training_loop import VmapLoop
from engine.data.batches import Rows
from engine.data.public import PublicSet, none_set_aside

HELD_CLIENTS = 4096  # whose rows, and what is counted of them, stay at hand from round to round


def first_state(algorithm: Algorithm, client: Client, received: Tensors, parent: Tensors) -> Tensors:
    """Return what a client keeps at its first participation in a stage, as it is stored.

    client: with ``rng`` as of round 0. parent: what it kept of the stage before.
    """
    first = checked(algorithm, "init_state", algorithm.init_state(received, parent, client), client.context.layout)
    return kept(algorithm.kinds, first, client)


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
        lanes: Sequence[Programs] = (),
    ) -> None:
        """``forward``: what surrounds a forward pass and its loss, see precision.py. ``programs``: of steps that are
        captured, where those of :meth:`train_together` are to be; ``lanes``: of :meth:`train_in_lanes`, each in a lane
        of its own."""
        self.net = net
        self.rows = rows
        self.seed = seed
        self.public = public
        self.forward = forward
        self.programs = programs
        self.lanes = lanes
        self._counted: dict[int, tuple[Tensor, Tensor]] = {}  # client -> its rows, their class counts

    def client(self, number: int, indices: Tensor, context: Context) -> Client:
        """The client whose rows are ``indices`` [n] of the data set."""
        counts = self._class_counts(number, indices, context.layout.classes)
        return Client(indices.numel(), counts, context, Streams(self.seed, context.round, number))

    def _class_counts(self, number: int, indices: Tensor, classes: int) -> Tensor:
        """[C]; counted once for as long as the client's rows are held."""
        held, counts = self._counted.get(number, (None, indices))
        if held is not indices:
            counts = torch.bincount(self.rows.labels.index_select(0, indices), minlength=classes)
            if len(self._counted) >= HELD_CLIENTS:
                self._counted.clear()
            self._counted[number] = indices, counts
        return counts

    def train(self, task: ClientRound, probe: bool = False) -> ClientRound:
        """Train one client; its round as it ended. ``probe`` fills the two losses."""
        ours = self._begun(task)
        self.net.load(*ours.start)
        loop = self._loop(ours)
        loop.run_all(ours.algorithm.phases(ours.context))
        end = ModelState(self.net.weights.clone(), self.net.buffers.clone())
        if not (self._ended_plainly(ours, end) and is_finite(*end)):
            self._end(ours, end)  # which looks for itself, and says what is not finite
        if probe:  # after the upload: the objective may draw from client.rng
            ours.loss_before, ours.loss_after = loop.loss_before(), loop.loss_after()
        ours.let_go()
        return ours

    def train_together(self, tasks: Sequence[ClientRound], probe: bool = False) -> list[ClientRound | ClientError]:
        """Train several clients in one pass; their rounds in the order given, of one that has diverged the error.

        tasks: all of one algorithm, one local section and one round.
        """
        order = _by_rows(tasks)
        rounds = [self._begun(tasks[index]) for index in order]
        together = VmapLoop(self.net, self.rows, rounds, self.forward, self.programs, probe)
        in_turn([together.phases()])
        losses = together.losses() if probe else [None] * len(rounds)
        weights, buffers = together.stack.all_weights(), together.stack.all_buffers()
        found = dict(zip(order, self._all_ended(rounds, weights, buffers, losses), strict=True))
        return [found[index] for index in range(len(tasks))]

    def train_in_lanes(self, tasks: Sequence[ClientRound], probe: bool = False) -> list[ClientRound | ClientError]:
        """Train several clients at the same time, as many as there are lanes; what each comes to, in the order given.

        tasks: as of :meth:`train_together`. The steps of each are those that it takes alone there, to the bit. Clients
        of like numbers of rows go side by side, so that no lane is empty for long.
        """
        order, found = _by_rows(tasks), dict[int, ClientRound | ClientError]()
        while chosen := order[len(found) : len(found) + len(self.lanes)]:
            rounds = [self._begun(tasks[index]) for index in chosen]
            loops = [
                VmapLoop(self.net, self.rows, [ours], self.forward, programs, probe)
                for ours, programs in zip(rounds, self.lanes, strict=False)
            ]
            try:
                in_turn([loop.phases() for loop in loops])
            finally:  # of a client that fails, too: others go on in memory that steps still read
                for programs in self.lanes:
                    programs.settle()
            losses = [pair for loop in loops for pair in loop.losses()] if probe else [None] * len(loops)
            weights, buffers = (
                torch.cat(own)
                for own in zip(*((loop.stack.all_weights(), loop.stack.all_buffers()) for loop in loops), strict=True)
            )
            found |= zip(chosen, self._all_ended(rounds, weights, buffers, losses), strict=True)
        return [found[index] for index in range(len(tasks))]

    def _all_ended(
        self,
        rounds: Sequence[ClientRound],
        weights: Tensor,
        buffers: Tensor,
        losses: Sequence[tuple[float, float] | None],
    ) -> Iterator[ClientRound | ClientError]:
        """Yield what each client's round comes to, with the weights [K, P] and buffers [K, Q] of all at their ends."""
        are_finite = is_finite(weights, buffers)  # of all at once, and of each where it matters which
        for ours, *end, pair in zip(rounds, weights.unbind(), buffers.unbind(), losses, strict=True):
            try:
                if not (are_finite and self._ended_plainly(ours, ModelState(*end))):
                    self.net.load(*end)
                    self._end(ours, ModelState(*end))
            except ClientError as error:
                yield error
            else:
                ours.loss_before, ours.loss_after = pair or (None, None)
                ours.let_go()
                yield ours

    def _loop(self, ours: ClientRound) -> SequentialLoop:
        return SequentialLoop(self.net, self.rows, self.forward, ours)

    def _begun(self, task: ClientRound) -> ClientRound:
        """A round of the client's own, with what it begins with; the task stays as it was sent."""
        ours = copy(task)
        algorithm, client = ours.algorithm, self.client(ours.number, ours.indices, ours.context)
        state = self.state_of(ours, client)
        ours.begin(client, {**ours.sent, **self._setup(algorithm, ours.sent, state, client)}, state)
        ours.start = algorithm.start(ours.received, state, client)
        return ours

    def _ended_plainly(self, ours: ClientRound, end: ModelState) -> bool:
        """Fill in what a client's round comes to, if all that is to be done is to send how it ended; is it?

        The caller sees that ``end`` is finite. As :meth:`_end`, without what no hook asks for: of a small network's
        round that takes the half.
        """
        algorithm = ours.algorithm
        has_own = overrides(algorithm, "upload") or overrides(algorithm, "weight")
        if has_own or isinstance(algorithm, Personalised) or ours.state or ours.ends:
            return False
        ours.upload, ours.weight, ours.new_state = {"weights": end.weights}, float(ours.num_examples), {}
        ours.end = ModelState(end.weights, end.buffers if algorithm.shares_buffers else end.buffers[:0])
        ours.personal = end
        return True

    def _end(self, ours: ClientRound, end: ModelState) -> None:
        """Fill in what a client's round comes to, with ``end`` in the net."""
        client, received, state, algorithm = ours.client, ours.received, ours.state, ours.algorithm
        run = LocalRun(
            start=ours.start.weights,
            end=end.weights,
            buffers=end.buffers,
            gradient=ours.gradient,
            steps=ours.steps,
            accumulation=ours.accumulated,
            num_examples=ours.num_examples,
            lr=ours.lr,
            local=ours.local,
            client=client,
            net=self.net,
            rows=partial(self.one_pass, client, ours.indices),
            ends=ours.ends,
        )
        if not is_finite(end.weights, *(ended.end for ended in run.ends.values())):
            raise self._diverged(ours, "its weights are")
        upload, new_state = algorithm.upload(run, received, state)
        if new_state and not algorithm.stateful:
            raise TypeError(
                f"{type(algorithm).__name__}.upload keeps a state, but init_state gives it no first one, or stateful "
                "says that there is none"
            )
        new_state = checked(algorithm, "upload", new_state, ours.context.layout)
        ours.upload, ours.weight = checked_upload(algorithm, upload, ours.context.layout), float(algorithm.weight(run))
        left = {"upload": ours.upload, "state": new_state, "model": {"buffers": end.buffers}}
        wrong = not_finite({(of, name): tensor for of, entries in left.items() for name, tensor in entries.items()})
        if wrong is not None:
            of, name = wrong
            raise self._diverged(ours, f"entry {name!r} of its {of} is")
        if not math.isfinite(ours.weight):
            raise self._diverged(ours, "its upload's weight is")
        ours.new_state = kept(algorithm.kinds, new_state, client)
        ours.end = ModelState(end.weights, end.buffers if algorithm.shares_buffers else end.buffers[:0])
        ours.personal = personalised.personal_after(algorithm, run, received, new_state)

    def _diverged(self, ours: ClientRound, what: str) -> ClientError:
        """The error to raise where ``what`` is not finite; the step is found by training the client once more."""
        step, phases = self._first_bad_step(ours), ours.algorithm.phases(ours.context)
        since = f"after {ours.steps} steps" if step is None else f"from step {step} of {ours.steps} on"
        return ClientError(
            f"client {ours.number} diverged in round {ours.context.round}: {what} not finite {since}"
            f"{_lower_rates(phases, ours.lr)}",
            ours.number,
            ours.context.round,
            step,
        )

    def _first_bad_step(self, task: ClientRound) -> int | None:
        """The step from which on weights are not finite; None where it is not a step that does it."""
        try:
            again = self._begun(task)
            self.net.load(*again.start)
            loop = self._loop(again)
            loop.stops_unless_finite = True
            loop.run_all(again.algorithm.phases(again.context))
        except NotFinite as found:
            return found.step
        except Exception:  # hooks need not bear weights that are not finite, and one failure is told of already
            return None
        finally:
            self.net.train(False)  # as the hooks of clients after this one expect it
        return None

    def state_of(self, task: ClientRound, client: Client) -> Tensors:
        """A client's state from what is stored of it, or its first one."""
        algorithm, stored = task.algorithm, task.stored
        stored = opened(algorithm.kinds, stored, client) if stored else stored
        if not task.newcomer or not overrides(algorithm, "init_state"):
            return {} if task.newcomer else stored
        early = replace(client, rng=Streams(self.seed, 0, task.number))  # the same whenever it first takes part
        return opened(algorithm.kinds, first_state(algorithm, early, task.sent, stored), client)

    def _setup(self, algorithm: Algorithm, sent: Tensors, state: Tensors, client: Client) -> Tensors:
        if not overrides(algorithm, "client_setup"):
            return {}
        self.net.load(sent["weights"], sent["buffers"])
        self.net.train(False)
        made = algorithm.client_setup(self.tools(client.rng), sent, state, client)
        return checked(algorithm, "client_setup", made, client.context.layout)

    def tools(self, rng: Callable[[str], torch.Generator]) -> FlatTrainingTools:
        """The means of training beside the rounds' own, with the net as it is."""
        on_device = self.net.weights.device.type != "cpu"
        recorder = self.programs.recorder if self.programs is not None and on_device else None
        return FlatTrainingTools(self.net, rng, self.public, recorder)

    def personalise(self, task: ClientRound) -> None:
        """Put into the net what the client would use with what it has received and keeps; neither is changed."""
        algorithm, ours = task.algorithm, copy(task)
        client = self._aside(task, "evaluation/")
        state = self.state_of(task, client)
        phases = personalised.personalise_phases(algorithm, task.context)
        made = self._setup(algorithm, task.sent, state, client) if phases else {}
        ours.begin(client, {**task.sent, **made}, state)
        self.net.load(*personalised.personal_model(algorithm, ours.received, state, client))
        self._loop(ours).run_all(phases)

    def fine_tune(self, task: ClientRound, phase: Phase) -> None:
        """Train what is in the net on the client's rows, by the cross entropy of its own predictions alone."""
        ours = replace(task, algorithm=FineTuning(task.algorithm))
        ours.begin(self._aside(task, "fine tuning/"), {}, {})
        self._loop(ours).run_all((phase,))

    def _aside(self, task: ClientRound, purposes: str) -> Client:
        """The client, with draws that are none of its training's."""
        client = self.client(task.number, task.indices, task.context)
        return replace(client, rng=Streams(self.seed, task.context.round, task.number, purposes))

    def one_pass(self, client: Client, indices: Tensor) -> Iterator[Batch]:
        """Yield a client's rows in order, not augmented."""
        for part in indices.split(CHUNK):
            yield Batch(*self.rows.batch(part), client)


def _by_rows(tasks: Sequence[ClientRound]) -> list[int]:
    """The places of the tasks, those with the most rows first."""
    return sorted(range(len(tasks)), key=lambda index: -tasks[index].num_examples)


def _lower_rates(phases: Sequence[Phase], lr: float) -> str:
    """The end of a sentence on what diverged: the rate and the repair, where one rate alone can be to blame."""
    if all(phase.lr is None and phase.emit == "step" for phase in phases):
        return f" with lr={lr:g}; lower local.lr"
    return "; lower the algorithm's own learning rates and local.lr"
