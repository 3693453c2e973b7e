"""The round loop. The same class in this process and as the Ray driver actor.

    driver = Driver(experiment, folder, dataset, assignment, pool)
    while not driver.finished:
        rows = driver.advance(seconds=1.0)
    driver.close()

A round: draw the cohort, send one object to all, train blocks of clients on the pool, add their sums in block order
in float64, aggregate, and now and then evaluate and checkpoint. Nothing here depends on where blocks ran.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from engine import __version__
from engine.algorithm import Algorithm, Client, Cohort, Context, Kind, Layout, Pooled, Tensors, seeds
from engine.base.errors import MemoryShort, ResourceError, RunError, RunFolderError
from engine.base.files import link_or_copy, remove_left_behind, writing
from engine.client.blocks import added, cut_blocks
from engine.client.entries import Arrays, cast, check_restored, checked, floats, not_finite, to_numpy
from engine.client.executors import in_place_of
from engine.client.jobs import (
    BlockSums,
    ClientFailure,
    ClientReport,
    OwnScores,
    PersonalJob,
    Scores,
    TrainJob,
    set_up_torch,
)
from engine.client.nets import ClientNets, open_model, without_model
from engine.client.trainer import Streams, first_state
from engine.data import Assignment, Dataset
from engine.experiment import Experiment, Participation, Stage
from engine.experiment.executor_policy import STACKING, Executor
from engine.record import matrices, snapshots
from engine.record.checkpoints import Checkpoint, Checkpoints, Position, last_of_stages
from engine.record.hashing import stage_hash
from engine.record.numerics import mixed
from engine.record.run_folder import PARTS, Row, RunFolder
from engine.record.snapshots import Snapshot
from engine.record.state_projection import check_room
from engine.record.states import DiskStore, Handle, MemoryStore, States
from engine.run.sharing import NotYet, Reuse, Segment, may_share, segments_of
from engine.server.class_balance import label_entropies
from engine.server.client_map import EveryClient, Exchanges, ServerSide
from engine.server.evaluation import Measurements, Place
from engine.server.evaluation_schedule import Cadence, after
from engine.worker import cost
from engine.worker.pool import Call, Deadline, Pool, Result
from engine.worker.preflight import Preflight

log = logging.getLogger("fedskew")


def draw_cohort(
    seed: int, round: int, clients: Sequence[int] | np.ndarray, participation: Participation
) -> tuple[int, ...]:
    """The clients of a round, ascending: a draw without replacement, or one coin per client."""
    rng = seeds.numpy_generator(seed, "cohort", round)
    expected = expected_cohort(len(clients), participation)
    if participation.scheme == "binomial":
        coins = rng.random(len(clients)) < expected / len(clients)
        return tuple(np.asarray(clients)[coins].tolist())
    return tuple(sorted(rng.choice(np.asarray(clients), size=int(expected), replace=False).tolist()))


def expected_cohort(clients: int, participation: Participation) -> float:
    """The expected size of a cohort; for a fixed fraction max(floor(K c), 1) (McMahan et al. 2017, Alg. 1)."""
    if participation.count is not None:
        return float(participation.count)
    if participation.fraction is None:
        return float(clients)
    if participation.scheme == "binomial":
        return participation.fraction * clients
    return float(max(int(participation.fraction * clients + 1e-9), 1))  # 0.29 * 100 is 28.999999999999996


def weights_sha256(weights: Tensor, buffers: Tensor) -> str:
    """Of the float32 vector and the float32 buffers, little-endian."""
    digest = hashlib.sha256()
    for vector in (weights, buffers):
        digest.update(vector.detach().cpu().to(torch.float32).contiguous().numpy().astype("<f4", copy=False).data)
    return digest.hexdigest()


@dataclass
class Outcome:
    """What a cohort's training came to: sums in float64, added in block order as the blocks come in."""

    uploads: dict[str, np.ndarray] = field(default_factory=dict)  # sum of weight * upload
    buffers: np.ndarray | None = None  # sum of num_examples * buffers
    weight: float = 0.0
    num_examples: int = 0
    stacked: list[Arrays] = field(default_factory=list)  # single uploads in client order, if asked for
    states: dict[int, Handle] = field(default_factory=dict)  # client -> new state
    reports: list[tuple[ClientReport, int]] = field(default_factory=list)  # with the actor it ran on
    floats_down: int = 0  # numbers that each client received
    personal: list[OwnScores] = field(default_factory=list)  # of clients' own models, if asked for
    failures: list[ClientFailure] = field(default_factory=list)

    def add(self, block: BlockSums, actor: int) -> None:
        self.failures.extend(block.failures)
        if not block.reports:  # all of them failed: there is nothing to add
            return
        # A block of one client arrives as it was uploaded: see training.Sums.
        weight, num_examples = (1, 1) if block.scaled else (block.weight, block.num_examples)
        for name, array in block.uploads.items():
            self.uploads[name] = added(self.uploads.get(name), array, weight)
        self.buffers = added(self.buffers, block.buffers, num_examples)
        self.weight += block.weight
        self.num_examples += block.num_examples
        self.stacked.extend(block.stacked)
        self.reports.extend((report, actor) for report in block.reports)
        self.personal.extend(block.personal)


class Driver:
    """Runs an experiment's stages, from the newest whole checkpoint of its folder on."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        dataset: Dataset,
        assignment: Assignment,
        pool: Pool,
        reuse: Reuse | None = None,
    ) -> None:
        set_up_torch(experiment)
        self.experiment = experiment
        self.folder = folder
        self.pool = pool
        self._data = dataset.fingerprint
        self._dropped = len(assignment.dropped)
        self._numerics = dict(pool.numerics)
        self._sizes = assignment.sizes()
        self._class_counts = partial(assignment.class_counts, dataset.train.labels, len(dataset.classes))
        self._exchanges = Exchanges(folder.exchanges, self._sizes, pool, experiment.execution.block)
        self._clients = self._exchanges.clients  # those that hold data
        self._drawn_from = np.array(self._clients)  # made once: there may be 100,000
        self._measurements = Measurements(folder, pool, len(dataset.test.labels))
        self._tests = [len(rows) for rows in assignment.tests] or [0] * len(self._sizes)  # rows of each client
        self._testers = [client for client in self._clients if self._tests[client]]
        self._chain = experiment.chain
        self._starts = [span.start - 1 for span in experiment.spans]
        self._ends = [span.stop - 1 for span in experiment.spans]
        self._cadence = Cadence(experiment)
        net = open_model(experiment, dataset, torch.device("cpu"))
        self._model_layout = net.layout
        self._largest = ClientNets(experiment, dataset, net).largest.layout  # of the clients' networks
        self._fresh = {"weights": net.weights, "buffers": net.buffers}
        self._checkpoints = Checkpoints(
            folder.path / "checkpoints",
            experiment.digest,
            experiment.checkpoint.keep,
            tuple(stage.name for stage in self._chain),
        )
        self._parents = self._parent_paths()
        self._states = self._open_states()
        self._joined: set[int] = set()  # clients that have a state of this stage
        self._left_out: set[int] = set()  # clients of the last cohort that failed
        self._tried: set[int] = set()  # stages of which a trial was made, see _preflight
        self._inherited: dict[int, str] = {}  # client -> SHA-256 of what it kept of the stage before
        self._look: Callable[[int, Arrays], None] | None = None
        self._torn = False  # interrupted between a commit and the round's last row: not to be saved
        self._saved: Position | None = None
        self._keys: dict[int, list[Segment]] = {}  # of each stage, in the store
        self._restore()
        self._reuse = reuse if may_share(self._numerics) else None

    # --- running --------------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        return self._chain[self._position.stage]

    @property
    def round(self) -> int:
        """Rounds done, over all stages."""
        return self._position.round

    @property
    def layout(self) -> Layout:
        """Of the server's weights in this stage."""
        has_model = self.experiment.has_server_model(self.stage)
        return self._model_layout if has_model else without_model(self._model_layout)

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """The global weights and buffers."""
        return self._server["weights"], self._server["buffers"]

    @property
    def rounds_done(self) -> int:
        """Of this run: the same as :attr:`round` unless stages branch."""
        before = sum(stage.rounds for stage in self._chain[: self._position.stage])
        return before + self._position.round - self._starts[self._position.stage]

    @property
    def finished(self) -> bool:
        return self._position == Position(len(self._chain) - 1, self._ends[-1])

    def advance(self, seconds: float = 0.0, until: int | None = None) -> list[Row]:
        """Run rounds for about ``seconds``, at least one, none beyond ``until``; what each came to, for display.

        None while another run computes what this one can take over.
        """
        if self._torn:
            raise RunError("the last round was interrupted half-way; open the run again")
        began = time.perf_counter()
        rows = []
        while not self.finished and (until is None or self.round < until or self._followed):
            try:
                rows += self._next(until)
                while self._followed:
                    rows += self._next(until)  # so that whoever stops at a round has what belongs to it
            except NotYet:
                break
            if time.perf_counter() - began >= seconds:
                break
        return rows

    def close(self) -> dict[str, Any]:
        """Write what is not yet written, let go of the pool; the summary.

        After an interrupt half-way through a round's end, what counts is the last checkpoint: nothing is written.
        """
        try:
            if self._torn:
                return self.folder.summary()
            if self._saved != self._position:
                self._save()
            return self._summarise()
        finally:
            self.let_go()
            self.pool.close()

    def let_go(self) -> None:
        """Others may compute on: nobody knows whether this run will."""
        if self._reuse is not None:
            self._reuse.release()

    def summary(self) -> dict[str, Any]:
        """Write everything without letting go of anything; the summary as far as the run has come."""
        if self._saved != self._position:
            self._save()
        return self._summarise()

    def watch(self, look: Callable[[int, Arrays], None] | None) -> None:
        """Show ``look`` the client and its local model ("weights" [P], "buffers" [Q]) after training, from now on."""
        self._look = look

    # --- a round --------------------------------------------------------------------------------------

    def _next(self, until: int | None) -> list[Row]:
        """One round, with the evaluation and the checkpoint that are due after it; or those that another run did.

        A stage without rounds is one such step.
        """
        self.pool.deadline = Deadline(self.round + 1, self.experiment.execution.round_timeout)
        if self._at_end:
            self._begin(self._position.stage + 1)
        end = self._ends[self._position.stage]
        if self._reuse is not None:
            segments = self._segments()
            found = self._reuse.before(segments, self.round, end if until is None else min(until, end), self._has_end)
            if found is not None:
                rows = self._adopt(found)
                self._reuse.done_with(found)
                return rows
        row = self._round() if self.stage.rounds else self._no_round()
        if self.stage.rounds and self._at_end:
            began = time.perf_counter()
            self._finish_stage()
            row["seconds"] += time.perf_counter() - began
        began = time.perf_counter()
        evaluation = self._evaluate()
        row["evaluation_seconds"] = time.perf_counter() - began
        self.folder.rounds.add(row)
        self._torn = False
        due = self._at_end or self._position.round % self.experiment.checkpoint.every == 0
        reuse = self._reuse if self.stage.rounds else None
        wanted = reuse is not None and reuse.wanted(self._segments(), self.round)
        if due or wanted:
            self._save()
        if self._reuse is not None:
            self._share(self._reuse, due, wanted, self._at_end)
        return [{**row, **_shown(evaluation)}]

    @property
    def _followed(self) -> bool:
        """Whether a stage without rounds comes next."""
        return not self.finished and self._at_end and self._chain[self._position.stage + 1].rounds == 0

    @property
    def _at_end(self) -> bool:
        """Whether the stage has done its rounds."""
        return self._position.round == self._ends[self._position.stage]

    def _no_round(self) -> Row:
        """What a stage without rounds does; its row, of the model that it ends with."""
        began, before = time.perf_counter(), self._server["weights"]
        self._finish_stage()
        norm = float((self._server["weights"] - before).norm())
        context = self._context(self.round, 0)
        return self._record(self.stage, context, Outcome(), norm, time.perf_counter() - began)

    def _round(self) -> Row:
        began = time.perf_counter()
        number = self._position.round + 1
        stage = self.stage.at(number)
        algorithm = stage.algorithm
        cohort = self._cohort(number)
        context = self._context(number, len(cohort))
        server = algorithm.before_round(self._server, ServerSide(self.pool, context), context)
        server = self._entries(algorithm, "before_round", server)
        if cohort:
            self._preflight(stage, server, context)
        outcome = self._train(stage, cohort, server, context) if cohort else Outcome()
        if cohort:
            server = self._aggregate(algorithm, server, outcome, context)
        else:
            log.warning("round %d: nobody was drawn, so there is nothing to learn from", number)
        norm = float((server["weights"] - self._server["weights"]).norm())
        self._torn = True  # until the round's row is there too: see _next
        with writing(self.folder.path):
            self._states.commit(outcome.states)
        self._joined.update(outcome.states)
        self._left_out = {failure.client for failure in outcome.failures}
        self._server = server
        self._position = replace(self._position, round=number)
        return self._record(stage, context, outcome, norm, time.perf_counter() - began)

    def _cohort(self, round: int) -> tuple[int, ...]:
        return draw_cohort(self.experiment.seed, round, self._drawn_from, self.experiment.participation)

    def _preflight(self, stage: Stage, server: Tensors, context: Context) -> None:
        """Once a stage, before it trains: whether the workers' memory will do, by a trial of the largest client."""
        if self._position.stage in self._tried:
            return
        self._tried.add(self._position.stage)
        number, algorithm = int(self._sizes.argmax()), stage.algorithm
        together = self._together(algorithm)
        blocks = cut_blocks(range(context.cohort_size), self.experiment.execution.block, together)
        clients = max(map(len, blocks)) if together else 1
        held = int(self._sizes[number])
        flight = Preflight(self.experiment, stage, context, self.pool.side_by_side, held, clients)
        if not flight.due(self._largest):
            return
        received = to_numpy(self._broadcast(algorithm, server, context))
        addressed = self._addressed(algorithm, server, (number,), context)
        job = TrainJob(
            algorithm, flight.local, context, stateful=False, probe=True, test_locally=False, together=together
        )
        call = Call(label=f"client {number}", args=((number,), addressed, flight.rows, clients))
        [result] = self.pool.run("peak", received, job, [call], what="preflight")
        flight.report(result.value)

    def _train(self, stage: Stage, cohort: tuple[int, ...], server: Tensors, context: Context) -> Outcome:
        algorithm, evaluation = stage.algorithm, self.experiment.evaluation
        received = self._broadcast(algorithm, server, context)
        addressed = self._addressed(algorithm, server, cohort, context)
        stateful = algorithm.stateful
        job = TrainJob(
            algorithm=algorithm,
            local=stage.local,
            context=context,
            stateful=stateful,
            probe=evaluation.client_loss,
            test_locally=bool(evaluation.local_every) and context.round % evaluation.local_every == 0,
            keep_models=self._look is not None,
            test_own=self._cadence.participants(Position(self._position.stage, context.round)),
            together=self._together(algorithm),
            drop=self.experiment.participation.on_client_error == "drop",
        )
        phases = algorithm.phases(context)
        sizes = {client: int(self._sizes[client]) for client in cohort}
        by_size = {size: cost.training(phases, stage.local, size) for size in set(sizes.values())}
        work = {client: by_size[size] for client, size in sizes.items()}
        calls = self._calls(cohort, addressed, stateful, work, self._together(algorithm))
        if stateful:
            calls = [replace(call, handles=len(call.args[0])) for call in calls]
        known = algorithm.uncounted | algorithm.sent_once
        outcome = Outcome(
            floats_down=floats({name: t for name, t in received.items() if name not in known})
            + sum(int(np.prod(array.shape[1:])) for array in addressed.values())
        )
        for call, result in self._results(stage, context, job, to_numpy(received), calls):
            trained = [report.client for report in result.value.reports]
            if self._look is not None:
                for client, model in zip(trained, result.value.models, strict=True):
                    self._look(client, model)
            outcome.add(result.value, result.actor)
            if stateful:
                new = dict(zip(call.args[0], result.handles, strict=True))
                outcome.states.update({client: new[client] for client in trained})
        self._check_failures(context, len(cohort), outcome.failures)
        return outcome

    def _results(
        self, stage: Stage, context: Context, job: TrainJob, received: Arrays, calls: Sequence[Call]
    ) -> Iterator[tuple[Call, Result]]:
        """Of each block; a worker's want of memory is told with what would fit."""
        try:
            results = self.pool.run("train", received, job, calls, what=f"round {context.round}")
            yield from zip(calls, results, strict=True)
        except MemoryShort as error:
            clients = max(len(call.args[0]) for call in calls)
            flight = Preflight(
                self.experiment, stage, context, self.pool.side_by_side, int(self._sizes.max()), job.together * clients
            )
            raise MemoryShort(f"{error}; {flight.smaller(self._largest)}") from error

    def _check_failures(self, context: Context, cohort: int, failures: Sequence[ClientFailure]) -> None:
        """Say who is left out of the round; a :class:`RunError` where too few are left."""
        if not failures:
            return
        participation, first = self.experiment.participation, failures[0].reason
        left, least = cohort - len(failures), participation.least(cohort)
        counted = f"round {context.round}: {len(failures)} of {cohort} clients failed"
        if left < least:
            raise RunError(
                f"{counted}, and participation.min_success={participation.min_success:g} asks for {least} that do "
                f"not; the first: {first}"
            )
        log.warning("%s and are left out; the first: %s", counted, first)

    def _aggregate(self, algorithm: Algorithm, server: Tensors, outcome: Outcome, context: Context) -> Tensors:
        """The new server entries: means formed in float64, then kept in the run's precision."""
        if not outcome.weight > 0 or outcome.buffers is None:
            raise RunError(f"round {context.round}: the uploads' weights add up to {outcome.weight}: there is no mean")
        stacked = outcome.stacked
        pooled = Pooled(
            mean={
                name: torch.from_numpy(np.asarray(total / outcome.weight)) for name, total in outcome.uploads.items()
            },
            weight=outcome.weight,
            count=len(outcome.reports),
            stacked={name: torch.from_numpy(np.stack([upload[name] for upload in stacked])) for name in stacked[0]}
            if stacked
            else None,
            ids=tuple(report.client for report, _ in outcome.reports),
        )
        mean = torch.from_numpy(outcome.buffers / outcome.num_examples)
        buffers = mean if algorithm.shares_buffers else self._server["buffers"]
        return self._entries(
            algorithm, "aggregate", algorithm.aggregate(server, pooled, context) | {"buffers": buffers}
        )

    def _entries(self, algorithm: Algorithm, method: str, entries: Tensors) -> Tensors:
        """The server's entries as a method made them: as declared, finite, in the run's precision."""
        entries = cast(algorithm, checked(algorithm, method, entries, self.layout), self._fresh["weights"].dtype)
        name = not_finite(entries)
        if name is not None:
            raise RunError(
                f"stage {self.stage.name}, after round {self.round}: {type(algorithm).__name__}.{method} made entry "
                f"{name!r}, which is not finite; lower the server's rate, or the learning rates"
            )
        return entries

    def _broadcast(self, algorithm: Algorithm, server: Tensors, context: Context) -> Tensors:
        """What every client of a cohort receives alike: the algorithm's entries and the buffers."""
        entries = checked(algorithm, "broadcast", algorithm.broadcast(server, context), self.layout)
        return {**entries, "buffers": server["buffers"]}

    def _addressed(self, algorithm: Algorithm, server: Tensors, ids: tuple[int, ...], context: Context) -> Arrays:
        """What is meant for each of these clients alone, [K, ...]."""
        members = Cohort(ids, tuple(int(self._sizes[client]) for client in ids))
        return to_numpy(self._checked_rows(algorithm, algorithm.address(server, members, context), len(ids)))

    def _together(self, algorithm: Algorithm) -> bool:
        """Whether clients of a block are trained in one pass."""
        return self._executor(algorithm)[0] in STACKING

    def _executor(self, algorithm: Algorithm) -> tuple[Executor, str]:
        """Who trains clients; if it is not the one that was asked for, why."""
        asked = self.experiment.execution.executor
        assert asked != "auto", "the experiment is resolved"
        return in_place_of(asked, algorithm.one_by_one, bool(self.experiment.client_models))

    def _calls(
        self,
        ids: tuple[int, ...],
        addressed: Arrays,
        stateful: bool,
        work: Mapping[int, cost.Work],
        together: bool = False,
    ) -> list[Call]:
        """Blocks of these clients, with what is meant for each, whether it is new to the stage, and what it keeps.

        ``work``: what each is expected to do.
        """
        device = self.experiment.execution.device
        row_of = {client: row for row, client in enumerate(ids)}
        calls = []
        for block in cut_blocks(ids, self.experiment.execution.block, together):
            rows = [row_of[client] for client in block]
            newcomers = tuple(client not in self._joined for client in block)
            calls.append(
                Call(
                    label="clients " + ", ".join(map(str, block)),
                    args=(block, {name: array[rows] for name, array in addressed.items()}, newcomers),
                    cost=cost.total(work[client] for client in block).cost(device),
                    states=tuple(self._read_states(block)) if stateful else (None,) * len(block),
                )
            )
        return calls

    def _checked_rows(self, algorithm: Algorithm, rows: Tensors, count: int) -> Tensors:
        for name, tensor in rows.items():
            if len(tensor) != count:
                raise TypeError(
                    f"{type(algorithm).__name__}.address: entry {name!r} has {len(tensor)} rows for {count}"
                )
        if rows:
            checked(algorithm, "address", {name: tensor[0] for name, tensor in rows.items()}, self.layout)
        return rows

    def _context(self, round: int, cohort_size: int) -> Context:
        clients = len(self._clients)
        expected = expected_cohort(clients, self.experiment.participation)
        return Context(
            round=round,
            lr=self.stage.at(round).local.lr_at(max(round, 1)),
            num_clients=clients,
            num_examples=int(self._sizes.sum()),
            cohort_size=cohort_size,
            expected_cohort=expected,
            participation=expected / clients,
            layout=self.layout,
            stage_round=round - self._starts[self._position.stage],
        )

    # --- results --------------------------------------------------------------------------------------

    def _record(self, stage: Stage, context: Context, outcome: Outcome, update_norm: float, seconds: float) -> Row:
        """Add the round's rows of ``clients.parquet``; its row of ``rounds.parquet``."""
        rows: list[Row] = []
        for report, actor in outcome.reports:
            row = dict(vars(report))
            row["samples"] = row.pop("num_examples")
            row |= {"stage": stage.name, "round": context.round, "actor": actor, "floats_down": outcome.floats_down}
            rows.append(row)
            self.folder.clients.add(row)
        for failure in outcome.failures:
            self.folder.failures.add({"stage": stage.name, "round": context.round, **vars(failure)})
        self._measurements.record(self._place, outcome.personal, {row["client"] for row in rows})
        samples = [row["samples"] for row in rows]
        return {
            "stage": stage.name,
            "round": context.round,
            "lr": context.lr,
            "clients": len(rows),
            "failed": len(outcome.failures),
            "samples": sum(samples),
            "steps": sum(row["steps"] for row in rows),
            "loss_before": _mean([row["loss_before"] for row in rows], samples),
            "loss_after": _mean([row["loss_after"] for row in rows], samples),
            "local_accuracy": _mean([row["local_accuracy"] for row in rows], [1] * len(rows)),
            "update_norm": update_norm,
            "weights_sha256": weights_sha256(*self.weights),
            "floats_up": sum(row["floats_up"] for row in rows),
            "floats_down": sum(row["floats_down"] for row in rows),
            "scalars": [
                (name, float(tensor))
                for name, tensor in self._server.items()
                if stage.algorithm.entries.get(name) is Kind.SCALAR
            ],
            "seconds": seconds,
        }

    def _evaluate(self) -> Row:
        """Measure what is due after the last round; the row of ``evaluations.parquet``, or nothing."""
        algorithm, place, row = self.stage.at(self.round).algorithm, self._place, Row()
        if algorithm.global_model and self._cadence.headline(self._position):
            row = self._measurements.global_model(place, algorithm, self._server)
        if self._cadence.personal(self._position):
            scores = self._measure_own_models()
            if not algorithm.global_model:
                row = self._measurements.headline(place, "personal", scores)
        return row

    def _measure_own_models(self) -> list[Scores]:
        """With what clients would receive now."""
        stage, context, ids = self.stage.at(self.round), self._context(self.round, 0), tuple(self._testers)
        algorithm = stage.algorithm
        shared = to_numpy(self._broadcast(algorithm, self._server, context))
        fine_tuning = self.experiment.evaluation.fine_tuning if self._cadence.fine_tuned(self._position) else None
        phases = algorithm.adapt(context) + ((fine_tuning,) if fine_tuning else ())
        work = {
            client: cost.training(phases, stage.local, int(self._sizes[client])) + cost.forward(self._tests[client])
            for client in ids
        }
        addressed = self._addressed(algorithm, self._server, ids, context)
        calls = self._calls(ids, addressed, algorithm.stateful, work)
        job = PersonalJob(algorithm, stage.local, context, fine_tuning)
        cohort = set(self._cohort(self.round) if stage.rounds else ()) - self._left_out
        return self._measurements.own_models(self._place, job, shared, calls, cohort)

    @property
    def _place(self) -> Place:
        return Place(self.stage.name, self.round)

    def _summarise(self) -> dict[str, Any]:
        with writing(self.folder.path):
            return self._summed_up()

    def _summed_up(self) -> dict[str, Any]:
        self.folder.fold()
        empty = int((self._sizes == 0).sum())
        files = self._state_files()
        states = json.dumps(sorted(files.items()))
        matrices.save(self.folder.path, self.stage.name, self.stage.algorithm.entries, self._server)
        return self.folder.summarise(
            self.experiment,
            {
                "status": "finished" if self.finished else "stopped",
                "weights_sha256": weights_sha256(*self.weights),
                "states_sha256": hashlib.sha256(states.encode()).hexdigest() if files else None,
                "parameters": self._model_layout.size,
                "clients": len(self._sizes),
                "empty_clients": empty,
                "dropped_samples": self._dropped,
                **label_entropies(self.experiment, self._class_counts()),
                "data_sha256": self._data,
                "stages": {
                    stage.name: stage_hash(self.experiment, stage, self._numerics, self._data) for stage in self._chain
                },
                "versions": {"fedskew": __version__, **self._numerics},
            },
        )

    # --- stages and checkpoints -------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        """Start a stage from the last checkpoint of the one it needs, or from fresh weights."""
        stage, parent = self._chain[number], self._parent(number)
        self._torn = True
        self._position = Position(number, self._starts[number])
        self._states, self._joined = self._open_states(), set()
        self._inherited = dict(parent.states) if parent else {}
        context = self._context(self.round, 0)
        server = self._with_model(parent.server if parent else self._fresh)
        algorithm = stage.algorithm
        server = {**algorithm.init_server(server, context), "buffers": server["buffers"]}
        server = algorithm.prepare(server, self._every_client(context, "prepare"), context)
        self._server = self._entries(algorithm, "prepare", server)
        self._send_once(algorithm, context)
        check_room(self._states, stage, context, self.experiment.checkpoint, self._largest_first_state)
        # A stage without rounds is at its end from the start: not to be saved before it is finished, see _next.
        self._torn = stage.rounds == 0
        last = self._ends[number]
        rounds = f"rounds {self.round + 1} to {last}" if stage.rounds else f"after round {last}"
        log.info("stage %s: %s, %s", stage.name, algorithm, rounds)
        executor, why = self._executor(algorithm)
        if why and stage.rounds:
            asked = self.experiment.execution.executor
            log.info("stage %s: trained by %s and not by %s, since %s", stage.name, executor, asked, why)

    def _with_model(self, server: Tensors) -> Tensors:
        """These entries with weights as the stage has them: none, those there are, or fresh ones where none were."""
        if not self.experiment.has_server_model(self.stage):
            return server | {name: tensor[:0] for name, tensor in self._fresh.items()}
        return server if len(server["weights"]) else server | self._fresh

    def _every_client(self, context: Context, when: Literal["prepare", "finish"]) -> EveryClient:
        kinds = self.stage.algorithm.entries
        return EveryClient(self._exchanges, self.stage.name, context, when, self._read_states, kinds)

    def _send_once(self, algorithm: Algorithm, context: Context) -> None:
        """Count what every client gets at the stage's start and keeps, though here it comes with each broadcast."""
        if algorithm.sent_once:
            sent = self._broadcast(algorithm, self._server, context)
            count = floats({name: tensor for name, tensor in sent.items() if name in algorithm.sent_once})
            if count:
                numbers = dict.fromkeys(self._clients, (0, count))
                self._exchanges.record(self.stage.name, context.round, "start", 1, numbers)

    def _largest_first_state(self) -> Tensors:
        """Of the client with most rows: what it keeps at its first participation, as it is stored."""
        algorithm, context, number = self.stage.algorithm, self._context(self.round, 0), int(self._sizes.argmax())
        received = self._broadcast(algorithm, self._server, context)
        if self.experiment.client_models:
            context, zeros = replace(context, layout=self._largest), self._fresh["weights"].new_zeros
            received |= {"weights": zeros(self._largest.size), "buffers": zeros(self._largest.buffers)}
        addressed = self._addressed(algorithm, self._server, (number,), context)
        received |= {name: torch.as_tensor(array[0]) for name, array in addressed.items()}
        counts = torch.from_numpy(self._class_counts()[number])
        client = Client(int(self._sizes[number]), counts, context, Streams(self.experiment.seed, 0, number))
        return first_state(algorithm, client, received, {})

    def _parent(self, number: int) -> Checkpoint | None:
        """The last checkpoint of the stage that this one needs."""
        return self._checkpoints.load(self._parents[number]) if number in self._parents else None

    def _parent_paths(self) -> dict[int, Path]:
        """For each stage that needs another one, that one's last checkpoint."""
        last = last_of_stages(self._checkpoints, self.experiment)
        return {number: last[stage.needs[0]] for number, stage in enumerate(self._chain) if stage.needs}

    def _read_states(self, ids: Sequence[int]) -> list[Handle | None]:
        """States as of the round's start; of a client new to the stage, what it kept of the stage before."""
        return [
            handle if client in self._joined else self._load_inherited(client)
            for client, handle in zip(ids, self._states.read(ids), strict=True)
        ]

    def _state_files(self) -> dict[int, str]:
        """Client -> SHA-256 of its state, as of the last that were written.

        A stage without rounds changes nobody's, and hands them on: the stage after it may ask for them.
        """
        return self._states.files if self.stage.rounds else self._inherited | self._states.files

    def _load_inherited(self, client: int) -> Handle | None:
        return self._states.load(self._inherited[client]) if client in self._inherited else None

    def _finish_stage(self) -> None:
        algorithm = self.stage.at(self.round).algorithm
        context = self._context(self.round, 0)
        clients, compute = self._every_client(context, "finish"), ServerSide(self.pool, context)
        server = algorithm.finish(self._server, clients, compute, context)
        self._server = self._entries(algorithm, "finish", server)

    def _open_states(self) -> States:
        folder, execution = self._checkpoints.states_folder, self.experiment.execution
        if execution.state_store == "disk":
            return DiskStore(folder, self.pool.fetch, execution.state_cache_mb)
        return MemoryStore(folder, self.pool.fetch)

    def _restore(self) -> None:
        self._checkpoints.check_folder()
        checkpoints = self._checkpoints
        for folder in (self.folder.path, self.folder.path / PARTS, checkpoints.folder, checkpoints.states_folder):
            remove_left_behind(folder)
        found = self._checkpoints.latest(self._parents)
        if found is not None:
            self._check_fits(found)
        with writing(self.folder.path):
            self.folder.truncate(self.experiment, found.position if found else None)
        if found is None:
            self._server = self._fresh
            self._position = Position(0, 0)
            self._begin(0)
            return
        self._position, self._server = found.position, found.server
        self._states.restore(found.states)
        self._joined = set(found.states)
        parent = self._parent(found.position.stage)
        self._inherited = dict(parent.states) if parent else {}
        self._saved = found.position
        for name, before in sorted(found.numerics.items()):
            now = self._numerics[name]
            if now != before:
                if not self.experiment.execution.mixed_hardware:
                    raise ResourceError(
                        f"execution.mixed_hardware=False: the run began with {name} {before} and would go on with "
                        f"{now}, so bits would differ from here on; go on where it began, or set "
                        "execution.mixed_hardware=true, which marks the result"
                    )
                self._numerics[name] = mixed(before, now)
                log.warning("the run began with %s %s and goes on with %s: bits differ from here on", name, before, now)
        log.info("continuing after round %d of stage %s", self.round, self.stage.name)

    def _check_fits(self, found: Checkpoint) -> None:
        """Refuse a checkpoint that is whole, and yet of another model, another version or no round of this run."""
        name, (number, round) = self._checkpoints.paths()[0].name, (found.position.stage, found.position.round)
        if not 0 <= number < len(self._chain) or not self._starts[number] <= round <= self._ends[number]:
            raise RunFolderError(f"checkpoint {name} is after round {round} of stage {number}, which this run has not")
        self._position = found.position
        algorithm, required = self.stage.algorithm, ()
        if round < self._ends[number]:
            parent = self._parent(number)
            fresh = self._with_model(parent.server if parent else self._fresh)
            required = algorithm.init_server(fresh, self._context(round, 0))
        try:
            check_restored(algorithm, found.server, self.layout, required)
            if not set(found.states) <= set(self._clients) or not found.numerics.keys() <= self._numerics.keys():
                raise ValueError("its clients or its machine are others")
        except ValueError as error:
            raise RunFolderError(f"checkpoint {name} does not fit this experiment ({error})") from None

    def _save(self) -> None:
        """Rows first, then the checkpoint that vouches for them."""
        with writing(self.folder.path):
            for name, value in self.pool.numerics.items():  # an actor's place may have gone to other hardware
                self._numerics[name] = mixed(self._numerics[name], value)
            self.folder.flush()
            self._states.save()
            self._checkpoints.save(Checkpoint(self._position, self._server, self._state_files(), self._numerics))
            self._saved = self._position
            self._states.prune(self._checkpoints.prune({path.name for path in self._parents.values()}))

    # --- shared rounds ----------------------------------------------------------------------------------

    @property
    def _has_end(self) -> bool:
        """Whether there is more to the stage's end than its last round."""
        return self.stage.rounds == 0 or type(self.stage.algorithm).finish is not Algorithm.finish

    def _segments(self) -> list[Segment]:
        number = self._position.stage
        if number not in self._keys:
            span = self.experiment.spans[number]
            self._keys[number] = segments_of(self.experiment, self._chain[number], span, self._numerics, self._data)
        return self._keys[number]

    def _share(self, reuse: Reuse, due: bool, wanted: bool, at_end: bool) -> None:
        def write(folder: Path) -> None:
            self._write_snapshot(folder, self._position.stage)

        if at_end and self._has_end:
            reuse.ended(self._segments(), write)
        elif due or wanted:
            reuse.publish(self._segments(), self.round, wanted, write)
        reuse.reached(self.round)

    def write_snapshots(self, folder: Path) -> None:
        """What the run has come to, a snapshot for each stage of its lineage so far: ``00``, ``01``, ..."""
        if self._saved != self._position:
            self._save()
        by_name = {stage.name: number for number, stage in enumerate(self._chain)}
        number: int | None = self._position.stage
        while number is not None:
            self._write_snapshot(folder / f"{number:02d}", number)
            needs = self._chain[number].needs
            number = by_name[needs[0]] if needs else None

    def adopt_snapshots(self, folder: Path) -> list[Row]:
        """Go on from what :meth:`write_snapshots` of a run with equal stages wrote; a run that has done nothing yet."""
        rows = []
        for path in sorted(folder.glob("[0-9]*")):
            while self._position.stage != int(path.name):
                self._begin(self._position.stage + 1)
            rows += self._adopt(snapshots.read(path))
        return rows

    def _write_snapshot(self, folder: Path, number: int) -> None:
        """Of the current stage as it is, of an earlier one as it ended; both are saved in the run's folder."""
        stage, end = self._chain[number], self._ends[number]
        round = min(self.round, end)
        checkpoint = self._checkpoints.load(self._checkpoints.path(Position(number, round)))
        rows = {table.name: table.read(stage.name, round) for table in self.folder.tables}
        snapshots.write(folder, stage.name, round == end, checkpoint, self._checkpoints.states_folder, rows)

    def _adopt(self, found: Snapshot) -> list[Row]:
        """Go on from a snapshot of this stage, and count its rounds as done; its rows, for display."""
        stage, checkpoint = self.stage, found.checkpoint
        began = self.round if stage.rounds else -1  # a stage without rounds has rows of the round it began with
        self._torn = True
        states = self._checkpoints.states_folder
        with writing(self.folder.path):
            for digest in set(checkpoint.states.values()):
                link_or_copy(found.states / f"{digest}.safetensors", states / f"{digest}.safetensors")
        self._states.restore(checkpoint.states)
        self._joined = set(checkpoint.states)
        self._server = checkpoint.server
        self._position = replace(self._position, round=found.round)
        self._left_out = {row["client"] for row in found.rows["failures"] if row["round"] == found.round}
        if self._at_end and not found.ended:
            self._finish_stage()
        measured: dict[int, Row] = {}
        lacking = self._cadence.lacks(found.rows, self._position)
        for table in self.folder.tables:
            for row in found.rows[table.name]:
                if row["round"] <= began:
                    continue
                if table is self.folder.exchanges and row["when"] != "finish":  # this run's own beginning counted it
                    continue
                if table in (self.folder.evaluations, self.folder.personal):
                    if not self._cadence.wants(row, self._position.stage) or (lacking and after(row, self._position)):
                        continue
                    if table is self.folder.evaluations:
                        measured[row["round"]] = row
                table.add({**row, "stage": stage.name, "reused": True})
        if lacking:
            measured[self.round] = self._evaluate()
        self._torn = False
        self._save()
        rounds = f"rounds {began + 1} to {self.round} were" if stage.rounds else "it was"
        log.info("stage %s: %s there already", stage.name, rounds)
        rows = [row for row in found.rows["rounds"] if row["round"] > began]
        return [{**row, "reused": True, **_shown(measured.get(row["round"], {}))} for row in rows]


def _shown(evaluation: Row) -> Row:
    """What a round's row for display has of its headline, if it has one."""
    return {name: evaluation.get(name) for name in ("scope", "accuracy", "loss", "class_accuracy")}


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Of the values that are there."""
    present = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in present)
    return sum(value * weight for value, weight in present) / total if total else None
