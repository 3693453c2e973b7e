"""The jobs that a worker can do: train a block of clients, score rows, measure own models, map a function, compute.

A :class:`JobRunner` holds the data set on its device and one network. It is stateless between calls: everything a job
needs arrives with it, so any worker can do any block, and a block that was lost with its worker is simply run again.
Where it runs is not known here: ``engine/worker`` puts it into threads and into Ray actors.

What all blocks of a round share is received once, by :meth:`JobRunner.receive`, before any of them is worked on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Context,
    Net,
    Tensors,
    not_stacked,
    personalised,
)
from engine.algorithm.labels import own_logits
from engine.base.allocator import keep_freed_memory
from engine.base.errors import ClientError, RunError, require
from engine.base.evaluated import METRICS, OwnMetric
from engine.client import precision, twice
from engine.client.blocks import in_place_of
from engine.client.failures import Attempted, attempt, naming
from engine.client.global_generators import drawing_by_key
from engine.client.messages import (
    ClientFailure,
    ClientReport,
    ComputeJob,
    Handle,
    MapJob,
    Mapped,
    OwnScores,
    PersonalJob,
    Scores,
    TrainJob,
    TrainResult,
    scores_of,
)
from engine.client.nets import ClientNets, open_model
from engine.client.peak_memory import PeakMemory, measure_peak
from engine.client.steps.client_round import SERVER, ClientResult, ClientTask, Streams
from engine.client.steps.entries import at_rest, copied, floats, not_finite, opened
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.training_loop import RESIDENT_BYTES
from engine.client.trainer import HELD_CLIENTS, Trainer
from engine.client.tree import Part, append
from engine.client.vmap.compiled_step import Compiler
from engine.client.vmap.cuda_graph import CudaRecorder, Programs
from engine.client.vmap.cuda_streams import Lane
from engine.data import Assignment, Dataset
from engine.data.samples.batches import Rows
from engine.data.samples.public import PublicRows
from engine.experiment import Experiment
from engine.experiment.executor_policy import CAPTURING


def set_up_torch(experiment: Experiment) -> None:
    """Set what would otherwise depend on where a process was started; refuse what a script has set there alone."""
    default, given = torch.get_default_dtype(), "set by code of your own, which other processes do not run"
    repair = "leave it, and set execution.precision"
    require(default is torch.float32, "torch.set_default_dtype", default, f"is {given}", repair)
    torch.set_num_threads(experiment.execution.threads)
    if experiment.execution.device == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        precision.set_up(experiment.execution)


class JobRunner:
    """Does jobs on one device."""

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        assignment: Assignment,
        received: Callable[[Any, torch.device], Tensors] = copied,
    ) -> None:
        """``received``: makes entries as they came of the pool into tensors on the device that are this runner's alone.

        What came is read by others too, and a write to it would spoil it for all of them.
        """
        set_up_torch(experiment)
        keep_freed_memory()
        self._received = received
        self.actor = 0  # the number under which reports name it
        self.device = torch.device(experiment.execution.device)
        self.experiment = experiment
        self.assignment = assignment
        self.net = open_model(experiment, dataset, self.device)
        self.client_nets = ClientNets(experiment, dataset, self.net)
        dtype = self.net.weights.dtype
        rows = Rows(dataset, dataset.train, self.device, dtype)
        public = PublicRows(rows, torch.tensor(assignment.public, device=self.device))
        self.forward = partial(precision.forward, experiment.execution)
        captures = experiment.execution.executor in CAPTURING
        compiler = Compiler() if experiment.execution.compiled else None
        programs = Programs(partial(CudaRecorder, self.device), compiler=compiler) if captures else None
        beside = (
            [Lane(self.device) for _ in range(experiment.execution.lanes)] if experiment.execution.lanes > 1 else []
        )
        lanes = [Programs(partial(CudaRecorder, self.device, lane), lane) for lane in beside]
        self.trainer = Trainer(self.net, rows, experiment.seed, public, self.forward, programs, lanes)
        self.test = Rows(dataset, dataset.test, self.device, dtype)
        own = [(name, METRICS.find(name)()) for name in experiment.evaluation.metrics]
        self._own_metrics: dict[str, OwnMetric] = {name: one for name, one in own if one.of_rows}
        held = lru_cache(HELD_CLIENTS)
        self._indices = held(lambda number: torch.tensor(assignment.clients[number], device=self.device))
        self._shared: Tensors = {}

    def receive(self, shared: Any) -> None:
        """Take in what the following jobs share."""
        self._shared = self._received(shared, self.device)

    @property
    def nets(self) -> list[FlatNet]:
        """All networks that jobs are done with."""
        return [self.net, *self.client_nets.all]

    # --- jobs -----------------------------------------------------------------------------------------

    @drawing_by_key
    def train(
        self,
        job: TrainJob,
        ids: tuple[int, ...],
        addressed: Any,
        newcomers: tuple[bool, ...],
        *states: Handle | None,
    ) -> TrainResult:
        """Train a block.

        ``addressed``: [K, ...] rows for these clients. ``newcomers``: whether it is the client's first round in this
        stage; its state is then what it kept of the stage before, if anything.
        """
        block = TrainResult()
        places = {client: job.place_of(ids[0] if job.together else client) for client in ids}
        for task, trained, seconds in self._trained(job, self._tasks(job, ids, addressed, newcomers, states)):
            if isinstance(trained, ClientError):
                if not job.drop:
                    raise trained
                block.failures.append(ClientFailure(task.number, trained.step, str(trained)))
                block.sum.leave_out(places[task.number])
                continue
            upload, weight = self.experiment.privacy.sent(trained.upload, trained.weight, self._shared)
            block.sum.add(places[task.number], upload, trained.buffers, weight, trained.num_examples)
            block.reports.append(self._report(job, trained, seconds))
            if job.stateful:
                block.states[task.number] = at_rest(trained.new_state)
            if job.algorithm.stack_uploads:
                block.stacked.append(at_rest(trained.upload))
            if job.keep_models:
                block.models.append(at_rest({"weights": trained.weights, "buffers": trained.buffers}))
            if job.test_own:
                block.personal.extend(self._before_and_after(job, task, trained))
        block.sum = block.sum.at_rest()
        return block

    @drawing_by_key
    def peak(self, job: TrainJob, ids: tuple[int, ...], addressed: Any, rows: int, clients: int) -> PeakMemory:
        """Train some rows of clients that are new, as a trial: nothing is kept of it but the memory that it took.

        clients: how many like each of them are trained in one pass, or in lanes.
        """

        def trial() -> None:
            for task in self._tasks(job, ids, addressed, (True,) * len(ids), (None,) * len(ids)):
                part = replace(task, indices=task.indices[:rows])
                for _ in self._trained(job, iter([part] * clients)):
                    pass  # a client that fails here has been at its peak, and may not be drawn

        peak = measure_peak(trial, self.experiment.execution.device)
        whole = max(self.trainer.rows.normalised_bytes(len(self._indices(number))) for number in ids)
        return replace(peak, needed=peak.needed + min(whole, RESIDENT_BYTES))

    def twice(self, job: TrainJob, ids: tuple[int, ...], addressed: Any, who: str) -> tuple[list[TrainResult], str]:
        """Train two clients that are new, and the first one again, and by the loop; see ``twice.py``."""

        def trained_of(number: int, job: TrainJob) -> TrainResult:
            one = slice(number % len(ids), number % len(ids) + 1)
            return self.train(job, ids[one], {name: rows[one] for name, rows in addressed.items()}, (True,), None)

        def trial(number: int) -> tuple[TrainResult, Scores]:
            trained = trained_of(number, job)
            whole = len(self._shared.get("weights", ())) == self.net.layout.size
            return trained, self.evaluate(job.algorithm, 0, min(twice.ROWS, len(self.test))) if whole else Scores()

        parts = [job.algorithm, self.experiment.model, *self.client_nets.specs, *(net.model for net in self.nets)]
        results, doubt = twice.compared(who, parts, self._shared, trial, self.device.type == "cpu")
        if results and self.experiment.execution.executor != "loop":
            alone = trained_of(0, replace(job, by_loop=True))
            for net in self.nets:
                twice.check_buffers(who, net)
            twice.check_loop(who, self._shared, results[0], alone)
        return results, doubt

    @drawing_by_key
    def evaluate(self, job: Algorithm, start: int, stop: int) -> Scores:
        """Score the test rows [start, stop) with the shared weights and buffers, as the algorithm predicts."""
        self.net.load(self._shared["weights"], self._shared["buffers"])
        with naming(f"test rows {start} to {stop - 1}"):
            return self._scores(self.net, job.predict, torch.arange(start, stop, device=self.device))

    @drawing_by_key
    def measure(
        self,
        job: PersonalJob,
        ids: tuple[int, ...],
        addressed: Any,
        newcomers: tuple[bool, ...],
        *states: Handle | None,
    ) -> list[OwnScores]:
        """Score each client's own model, as it would be if it received what is shared now."""
        scores, context = [], job.context
        for task in self._tasks(job, ids, addressed, newcomers, states):
            number = task.number
            own_test, trainer = self._own_test(number), self._trainer_of(number)
            if own_test is None:
                continue
            with naming(f"client {number}'s own model after round {context.round}"):
                trainer.personalise(task)
                scores.append(self._own_scores("post_server", job.algorithm, number, context, own_test))
                if job.fine_tuning is not None:
                    trainer.fine_tune(task, job.fine_tuning)
                    scores.append(self._own_scores("fine_tuned", job.algorithm, number, context, own_test))
        return scores

    @drawing_by_key
    def map(self, job: MapJob, ids: tuple[int, ...], first: int, *states: Handle | None) -> Mapped:
        """The job's function of each client in turn; the net is at the shared weights each time.

        first: the place of the first one among all that are asked.
        """
        mapped = Mapped([], [])
        with_model = "weights" in self._shared
        for place, (number, stored) in enumerate(zip(ids, states, strict=True), first):
            if with_model:
                self.net.load(self._shared["weights"], self._shared["buffers"])
                self.net.train(False)
            trainer = self._trainer_of(number)
            client = trainer.client(number, self._indices(number), self._context_of(number, job.context))
            state = None
            if job.stateful:
                state = opened(job.kinds, self._received(stored, self.device), client) if stored else {}
            view = MappedClient(trainer, client, self._indices(number), state, self.net if with_model else None)
            with naming(f"client {number}, asked by the server after round {job.context.round}"):
                result = job.fn(view, self._shared)
            spoilt = not_finite(result)
            if spoilt is not None:
                round = job.context.round
                raise ClientError(
                    f"client {number}, asked by the server after round {round}, answers {spoilt!r} that is not finite; "
                    "lower local.lr of the stage that it trained in",
                    number,
                    round,
                )
            mapped.floats_up.append(floats(result))
            answer = Part(place, 1, at_rest(result))
            if job.merge is None:
                mapped.results.append(answer)
            else:  # in the host's memory, as blocks are merged: a card may round otherwise
                append(mapped.results, answer, job.merge)
        return mapped

    @drawing_by_key
    def compute(self, job: ComputeJob) -> Tensors:
        """The job's function once, on the server's behalf."""
        self.net.load(self._shared["weights"], self._shared["buffers"])
        self.net.train(False)
        streams = Streams(self.experiment.seed, job.round, SERVER, job.purposes)
        return at_rest(job.fn(self.trainer.tools(streams), self._shared))

    # --- pieces ---------------------------------------------------------------------------------------

    def _trained(self, job: TrainJob, tasks: Iterator[ClientTask]) -> Iterator[tuple[ClientTask, Attempted, float]]:
        """Each client, its result or error, and the seconds it took: by its rows and epochs, of a common pass."""
        configured = "loop" if job.by_loop else self.experiment.execution.executor
        assert configured != "auto", "the experiment is resolved"
        executor, _ = in_place_of(configured, not_stacked(job.algorithm, job.context), self.client_nets.differ)
        in_lanes = executor == "graph" and bool(self.trainer.lanes)

        def train(group: Sequence[ClientTask]) -> Sequence[Attempted]:
            if executor == "loop":
                return [self._trainer_of(task.number).train(task, job.probe) for task in group]
            if in_lanes:
                return self.trainer.train_in_lanes(group, job.probe)
            return self.trainer.train_together(group, job.probe)

        for group in [list(tasks)] if job.together or in_lanes else ([task] for task in tasks):
            began = time.perf_counter()
            results = attempt(train, group)
            seconds, work = time.perf_counter() - began, [work_of(task) for task in group]
            for task, result, own in zip(group, results, work, strict=True):
                yield task, result, seconds * own / sum(work)

    def _tasks(
        self,
        job: TrainJob | PersonalJob,
        ids: tuple[int, ...],
        addressed: Any,
        newcomers: tuple[bool, ...],
        states: tuple[Handle | None, ...],
    ) -> Iterator[ClientTask]:
        """Each client of a block with what the trainer is told of it. Made one at a time: whoever trains one by one
        holds one client's state."""
        rows = self._received(addressed, self.device)
        for row, (number, newcomer, state) in enumerate(zip(ids, newcomers, states, strict=True)):
            received = {**self._shared, **{name: tensor[row] for name, tensor in rows.items()}}
            if self.client_nets.differ and newcomer:
                received |= self.client_nets.fresh(number)
            stored = {} if state is None else self._received(state, self.device)
            indices, context = self._indices(number), self._context_of(number, job.context)
            local = job.local.doing(job.work.get(number)) if isinstance(job, TrainJob) else job.local
            yield ClientTask(job.algorithm, local, number, indices, context, received, stored, newcomer)

    def _trainer_of(self, number: int) -> Trainer:
        """One with the client's network."""
        if not self.client_nets.differ:
            return self.trainer
        common, net = self.trainer, self.client_nets.of(number)
        return Trainer(net, common.rows, self.experiment.seed, common.public, self.forward)

    def _context_of(self, number: int, context: Context) -> Context:
        """With the layout of the client's network."""
        if not self.client_nets.differ:
            return context
        return replace(context, layout=self.client_nets.of(number).layout)

    def _own_test(self, number: int) -> Tensor | None:
        """The client's own test rows, if it has any."""
        rows = self.assignment.tests[number] if self.assignment.tests else ()
        return torch.tensor(rows, device=self.device) if len(rows) else None

    def _report(self, job: TrainJob, trained: ClientResult, seconds: float) -> ClientReport:
        return ClientReport(
            client=trained.number,
            num_examples=trained.num_examples,
            steps=trained.steps,
            loss_before=trained.loss_before,
            loss_after=trained.loss_after,
            local_accuracy=self._local_accuracy(job, trained) if job.test_locally else None,
            floats_up=floats(trained.upload, job.algorithm.entries, trained.weights.dtype) + trained.buffers.numel(),
            seconds=seconds,
            actor=self.actor,
        )

    def _before_and_after(self, job: TrainJob, task: ClientTask, trained: ClientResult) -> list[OwnScores]:
        """Score the client's own model on its own test rows, if it has any, as received and after its local work."""
        number, own_test = task.number, self._own_test(task.number)
        if own_test is None:
            return []
        with naming(f"client {number}'s own model in round {job.context.round}"):
            self._trainer_of(number).personalise(task)
            before = self._own_scores("received", job.algorithm, number, job.context, own_test)
            self._trainer_of(number).net.load(*trained.personal)
            return [before, self._own_scores("post_local", job.algorithm, number, job.context, own_test)]

    def _local_accuracy(self, job: TrainJob, trained: ClientResult) -> float:
        """Return the accuracy on the whole test set of what the client would use after its local work."""
        number = trained.number
        self.client_nets.of(number).load(*trained.personal)
        rows = torch.arange(len(self.test), device=self.device)
        return self._own_scores("post_local", job.algorithm, number, job.context, rows).scores.accuracy

    def _own_scores(self, point: str, algorithm: Algorithm, number: int, context: Context, rows: Tensor) -> OwnScores:
        """Score the client's own model, which is in its net."""
        trainer = self._trainer_of(number)
        client = trainer.client(number, self._indices(number), self._context_of(number, context))
        predict = partial(personalised.predict_own, algorithm, client=client)
        if self.experiment.evaluation.own_classes:
            predict = partial(_among_own, predict, client.class_counts)
        return OwnScores(number, point, self._scores(trainer.net, predict, rows))

    @torch.no_grad()
    def _scores(self, net: FlatNet, predict: Callable[[Net, Tensor], Tensor], rows: Tensor) -> Scores:
        """Score what is in a net, on test rows [n]."""
        net.train(False)
        classes = net.layout.classes
        loss, brier, *own = torch.zeros(2 + len(self._own_metrics), dtype=torch.float64, device=self.device)
        of_rows = []  # the pair of true and predicted class, and the confidence
        for part in rows.split(self.experiment.evaluation.batch_size):
            x, y = self.test.batch(part)
            with self.forward():
                logits = predict(net, x)
            if logits.shape != (len(y), classes):
                rule = f"scores of shape {[*logits.shape]} for {len(y)} rows and {classes} classes"
                raise RunError(f"predictions are {rule}; return one for each row and class")
            logs, predicted = torch.log_softmax(logits.double(), 1), logits.argmax(1)
            loss += torch.nn.functional.nll_loss(logs, y, reduction="sum")
            shares = logs.exp()
            of_label, confidence = shares.gather(1, torch.stack((y, predicted), 1)).unbind(1)
            brier += (shares.square().sum(1) - 2 * of_label + 1).sum()
            for total, (name, metric) in zip(own, self._own_metrics.items(), strict=True):
                total += own_values(name, metric, logits.double(), y).sum()
            of_rows.append(torch.stack(((y * classes + predicted).double(), confidence)))
        sums = torch.stack((loss, brier, *own))
        ends = torch.cat((sums, torch.cat(of_rows, 1).flatten())).cpu()  # the host waits once
        loss_sum, brier_sum, *own_sums = ends[: len(sums)].tolist()
        by_name = dict(zip(self._own_metrics, own_sums, strict=True))
        return scores_of(classes, loss_sum, brier_sum, by_name, *ends[len(sums) :].view(2, -1).numpy())


def _among_own(predict: Callable[[Net, Tensor], Tensor], class_counts: Tensor, net: Net, x: Tensor) -> Tensor:
    """Return the class scores [B, C], -inf for classes of which ``class_counts`` [C] has no row."""
    return own_logits(predict(net, x), class_counts)


def own_values(name: str, metric: OwnMetric, scores: Tensor, labels: Tensor) -> Tensor:
    """Return an own metric's numbers of rows, float64 [n]; raises :class:`RunError` for what are none."""
    values = metric.value(scores=scores.clone(), labels=labels.clone())  # which it may write into
    if not isinstance(values, Tensor) or values.shape != labels.shape:
        given = f"shape {[*values.shape]}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        rule = f"gives {given} for {len(labels)} test rows"
        raise RunError(f"metric {name} {rule}; return a tensor with a number for each")
    return values.double()


def work_of(task: ClientTask) -> float:
    """Return how much a client has to do, in rows, as a share of what others of its pass have."""
    local = task.local
    return task.num_examples * local.epochs if local.steps is None else local.steps


class MappedClient:
    """The contract's :class:`~engine.algorithm.ClientView`, as a function given to ``clients.map`` sees a client."""

    def __init__(
        self, trainer: Trainer, client: Client, indices: Tensor, state: Tensors | None, net: Net | None
    ) -> None:
        """``net``: at what all clients were sent, which need not be of the client's own architecture."""
        self._state = state
        self._trainer = trainer
        self._indices = indices
        self._net = net
        self.client = client

    @property
    def net(self) -> Net:
        if self._net is None:
            raise TypeError("clients were sent no model; share weights and buffers with clients.map to use view.net")
        return self._net

    @property
    def state(self) -> Tensors:
        if self._state is None:
            raise TypeError("clients' states were not asked for; call clients.map with states=True to use view.state")
        return self._state

    def at(self, weights: Tensor, buffers: Tensor) -> Net:
        return self._trainer.net.at(weights, buffers)

    def rows(self) -> Iterator[Batch]:
        return self._trainer.one_pass(self.client, self._indices)

    def public(self, per_class: int, /) -> tuple[Tensor, Tensor]:
        return self._trainer.public(per_class)
