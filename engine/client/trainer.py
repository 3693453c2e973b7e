"""Local training: a client's round from what it received to what it sends.

``Trainer.train`` gives an algorithm's methods what they need, by the loop of ``steps/training_loop.py`` inside;
``Trainer.train_together`` and ``Trainer.train_in_lanes`` several clients' with ``vmap/training_loop.py``; none knows in
which process it runs.

Shapes: n rows of a client, B of a batch, P parameters, Q floating buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from engine.client.steps.client_round import ClientProgress, ClientResult, ClientTask, Streams
from engine.client.steps.entries import checked, checked_upload, is_finite, kept, not_finite, opened
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.training_loop import CHUNK, FineTuning, NotFinite, SequentialLoop
from engine.client.training_tools import FlatTrainingTools, no_rows
from engine.client.vmap.cuda_graph import Programs
from engine.client.vmap.cuda_streams import in_turn
from engine.client.vmap.training_loop import VmapLoop
from engine.data.samples.batches import Rows
from engine.data.samples.public import PublicSet, none_set_aside

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

    def train(self, task: ClientTask, probe: bool = False) -> ClientResult:
        """Train one client. ``probe`` fills the two losses."""
        progress = self._begun(task)
        self.net.load(*progress.start)
        loop = self._loop(progress)
        loop.run_all(task.algorithm.phases(task.context))
        end = ModelState(self.net.weights.clone(), self.net.buffers.clone())
        result = self._plain_result(progress, end)
        if result is None or not is_finite(*end):
            result = self._result(progress, end)  # which looks for itself, and says what is not finite
        if not probe:
            return result
        # After the upload: the objective may draw from client.rng.
        return replace(result, loss_before=loop.loss_before(), loss_after=loop.loss_after())

    def train_together(self, tasks: Sequence[ClientTask], probe: bool = False) -> list[ClientResult | ClientError]:
        """Train several clients in one pass; their results in the order given, of one that has diverged the error.

        tasks: all of one algorithm, one round, and one local section but for epochs and steps.
        """
        order = _by_work(tasks)
        rounds = [self._begun(tasks[index]) for index in order]
        together = VmapLoop(self.net, self.rows, rounds, self.forward, self.programs, probe)
        in_turn([together.phases()])
        results = dict(zip(order, self._results([together], probe), strict=True))
        return [results[index] for index in range(len(tasks))]

    def train_in_lanes(self, tasks: Sequence[ClientTask], probe: bool = False) -> list[ClientResult | ClientError]:
        """Train several clients at the same time, as many as there are lanes; their results in the order given.

        tasks: as of :meth:`train_together`. The steps of each are those that it takes alone there, to the bit. Clients
        of like numbers of rows go side by side, so that no lane is empty for long.
        """
        order, results = _by_work(tasks), dict[int, ClientResult | ClientError]()
        while chosen := order[len(results) : len(results) + len(self.lanes)]:
            rounds = [self._begun(tasks[index]) for index in chosen]
            loops = [
                VmapLoop(self.net, self.rows, [progress], self.forward, programs, probe)
                for progress, programs in zip(rounds, self.lanes, strict=False)
            ]
            try:
                in_turn([loop.phases() for loop in loops])
            finally:  # of a client that fails, too: others go on in memory that steps still read
                for programs in self.lanes:
                    programs.settle()
            results |= zip(chosen, self._results(loops, probe), strict=True)
        return [results[index] for index in range(len(tasks))]

    def _results(self, loops: Sequence[VmapLoop], probe: bool) -> Iterator[ClientResult | ClientError]:
        """Yield the results of all loops' clients, in the loops' order, at the ends of their phases."""
        losses = [pair for loop in loops for pair in (loop.losses() if probe else [None] * len(loop.members))]
        weights = _joined([loop.stack.all_weights() for loop in loops])  # [K, P]
        buffers = _joined([loop.stack.all_buffers() for loop in loops])  # [K, Q]
        are_finite = is_finite(weights, buffers)  # of all at once, and of each where it matters which
        rounds = [progress for loop in loops for progress in loop.members]
        for progress, *pieces, pair in zip(rounds, weights.unbind(), buffers.unbind(), losses, strict=True):
            end = ModelState(*pieces)
            try:
                result = self._plain_result(progress, end) if are_finite else None
                if result is None:
                    self.net.load(*end)
                    result = self._result(progress, end)
            except ClientError as error:
                yield error
            else:
                before, after = pair or (None, None)
                yield replace(result, loss_before=before, loss_after=after)

    def _loop(self, progress: ClientProgress) -> SequentialLoop:
        return SequentialLoop(self.net, self.rows, self.forward, progress)

    def _begun(self, task: ClientTask) -> ClientProgress:
        """The client's round before its first step."""
        algorithm, client = task.algorithm, self.client(task.number, task.indices, task.context)
        state = self.state_of(task, client)
        received = {**task.sent, **self._setup(task, state, client)}
        return ClientProgress(task, client, received, state, algorithm.start(received, state, client))

    def _plain_result(self, progress: ClientProgress, end: ModelState) -> ClientResult | None:
        """Fast path where ``upload`` and ``weight`` are the defaults and nothing is kept: the result, else None.

        The caller sees that ``end`` is finite. The result is that of :meth:`_result`, without what no hook asks for: of
        a small network's round that takes the half.
        """
        algorithm, task = progress.task.algorithm, progress.task
        has_hooks = overrides(algorithm, "upload") or overrides(algorithm, "weight")
        if has_hooks or isinstance(algorithm, Personalised) or progress.state or progress.ends:
            return None
        return progress.result(end, {"weights": end.weights}, float(task.num_examples), {}, personal=end)

    def _result(self, progress: ClientProgress, end: ModelState) -> ClientResult:
        """What a client's round comes to, with ``end`` in the net; raises :class:`ClientError` if it diverged."""
        task, client, received, state = progress.task, progress.client, progress.received, progress.state
        algorithm, layout = task.algorithm, task.context.layout
        run = LocalRun(
            start=progress.start.weights,
            end=end.weights,
            buffers=end.buffers,
            gradient=progress.gradient,
            steps=progress.steps,
            accumulation=progress.accumulated,
            num_examples=task.num_examples,
            lr=progress.lr,
            local=task.local,
            client=client,
            net=self.net,
            rows=partial(self.one_pass, client, task.indices),
            ends=progress.ends,
        )
        if not is_finite(end.weights, *(ended.end for ended in run.ends.values())):
            raise self._diverged(progress, "its weights are")
        upload, new_state = algorithm.upload(run, received, state)
        if new_state and not algorithm.stateful:
            raise TypeError(
                f"{type(algorithm).__name__}.upload keeps a state, but init_state gives it no first one, or stateful "
                "says that there is none"
            )
        new_state = checked(algorithm, "upload", new_state, layout)
        upload, weight = checked_upload(algorithm, upload, layout), algorithm.weight(run)
        if isinstance(weight, str | bool):
            raise TypeError(f"{type(algorithm).__name__}.weight gives {weight!r}, and must give a number")
        weight = float(weight)
        groups = {"upload": upload, "state": new_state, "model": {"buffers": end.buffers}}
        wrong = not_finite(
            {(group, name): tensor for group, entries in groups.items() for name, tensor in entries.items()}
        )
        if wrong is not None:
            group, name = wrong
            raise self._diverged(progress, f"entry {name!r} of its {group} is")
        if not math.isfinite(weight):
            raise self._diverged(progress, "its upload's weight is")
        personal = personalised.personal_after(algorithm, run, received, new_state)
        return progress.result(end, upload, weight, kept(algorithm.kinds, new_state, client), personal)

    def _diverged(self, progress: ClientProgress, what: str) -> ClientError:
        """The error to raise where ``what`` is not finite; the step is found by training the client once more."""
        task, steps = progress.task, progress.steps
        step, phases = self._first_bad_step(task), task.algorithm.phases(task.context)
        since = f"after {steps} steps" if step is None else f"from step {step} of {steps} on"
        return ClientError(
            f"client {task.number} diverged in round {task.context.round}: {what} not finite {since}"
            f"{_lower_rates(phases, progress.lr)}",
            task.number,
            task.context.round,
            step,
        )

    def _first_bad_step(self, task: ClientTask) -> int | None:
        """The step from which on weights are not finite; None where it is not a step that does it."""
        try:
            again = self._begun(task)
            self.net.load(*again.start)
            loop = self._loop(again)
            loop.stops_unless_finite = True
            loop.run_all(task.algorithm.phases(task.context))
        except NotFinite as error:
            return error.step
        except Exception:  # hooks need not bear weights that are not finite, and one failure is told of already
            return None
        finally:
            self.net.train(False)  # as the hooks of clients after this one expect it
        return None

    def state_of(self, task: ClientTask, client: Client) -> Tensors:
        """A client's state from what is stored of it, or its first one."""
        algorithm, stored = task.algorithm, task.stored
        stored = opened(algorithm.kinds, stored, client) if stored else stored
        if not task.newcomer or not overrides(algorithm, "init_state"):
            return {} if task.newcomer else stored
        early = replace(client, rng=Streams(self.seed, 0, task.number))  # the same whenever it first takes part
        return opened(algorithm.kinds, first_state(algorithm, early, task.sent, stored), client)

    def _setup(self, task: ClientTask, state: Tensors, client: Client) -> Tensors:
        algorithm, sent = task.algorithm, task.sent
        if not overrides(algorithm, "client_setup"):
            return {}
        if "weights" in sent:
            self.net.load(sent["weights"], sent["buffers"])
        self.net.train(False)
        tools = self.tools(client.rng, partial(self.one_pass, client, task.indices))
        made = algorithm.client_setup(tools, sent, state, client)
        return checked(algorithm, "client_setup", made, client.context.layout)

    def tools(
        self, rng: Callable[[str], torch.Generator], rows: Callable[[], Iterator[Batch]] = no_rows
    ) -> FlatTrainingTools:
        """The means of training beside the rounds' own, with the net as it is."""
        on_device = self.net.weights.device.type != "cpu"
        recorder = self.programs.recorder if self.programs is not None and on_device else None
        return FlatTrainingTools(self.net, rng, self.public, recorder, rows)

    def personalise(self, task: ClientTask) -> None:
        """Put into the net what the client would use with what it has received and keeps; neither is changed."""
        algorithm = task.algorithm
        client = self._aside(task, "evaluation/")
        state = self.state_of(task, client)
        phases = personalised.personalise_phases(algorithm, task.context)
        sets_up = isinstance(algorithm, Personalised) or overrides(algorithm, "start")  # which may read what it makes
        received = {**task.sent, **(self._setup(task, state, client) if sets_up else {})}
        start = personalised.personal_model(algorithm, received, state, client)
        self.net.load(*start)
        self._loop(ClientProgress(task, client, received, state, start)).run_all(phases)

    def fine_tune(self, task: ClientTask, phase: Phase) -> None:
        """Train what is in the net on the client's rows, by the cross entropy of its own predictions alone."""
        tuning = replace(task, algorithm=FineTuning(task.algorithm))
        start = ModelState(self.net.weights.clone(), self.net.buffers.clone())
        self._loop(ClientProgress(tuning, self._aside(task, "fine tuning/"), {}, {}, start)).run_all((phase,))

    def _aside(self, task: ClientTask, purposes: str) -> Client:
        """The client, with draws that are none of its training's."""
        client = self.client(task.number, task.indices, task.context)
        return replace(client, rng=Streams(self.seed, task.context.round, task.number, purposes))

    def one_pass(self, client: Client, indices: Tensor) -> Iterator[Batch]:
        """Yield a client's rows in order, not augmented."""
        for part in indices.split(CHUNK):
            yield Batch(*self.rows.batch(part), client)


def _by_work(tasks: Sequence[ClientTask]) -> list[int]:
    """The places of the tasks, those with the most epochs or steps first, and of these those with the most rows."""
    amounts = [task.local.epochs if task.local.steps is None else task.local.steps for task in tasks]
    return sorted(range(len(tasks)), key=lambda index: (-amounts[index], -tasks[index].num_examples))


def _lower_rates(phases: Sequence[Phase], lr: float) -> str:
    """The end of a sentence on what diverged: the rate and the repair, where one rate alone can be to blame."""
    if all(phase.lr is None and phase.emit == "step" for phase in phases):
        return f" with lr={lr:g}; lower local.lr"
    return "; lower the algorithm's own learning rates and local.lr"


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
