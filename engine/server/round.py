"""A round: cohort, broadcast, blocks, sums, aggregation.

    result = RoundRunner(federation).run(number, round, server, states, asked)

Nothing here depends on where blocks ran, and nothing is written: what a round came to is in its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.algorithm import Algorithm, Context, Pooled, Tensors
from engine.base.errors import MemoryShort, RunError
from engine.client.blocks import cut_blocks
from engine.client.entries import Arrays, to_numpy
from engine.client.global_generators import drawing_nothing
from engine.client.messages import ClientFailure, ClientReport, OwnScores, TrainJob
from engine.client.sums import CohortSums
from engine.experiment import Stage
from engine.record.stage_states import StageStates
from engine.record.states import Handle
from engine.server.broadcast import addressed, block_calls, broadcast, count_floats_down, settled
from engine.server.client_map import ServerSide
from engine.server.federation import Federation
from engine.worker import cost
from engine.worker.pool import Call, Result
from engine.worker.preflight import Preflight

log = logging.getLogger("fedskew")
Look = Callable[[int, Arrays], None]  # is shown a client and its local model: "weights" [P], "buffers" [Q]


@dataclass(frozen=True)
class Asked:
    """The measurements that a round makes beside training."""

    local_models: bool = False  # each local model on the test set
    own_models: bool = False  # clients' own models on their own test rows, before and after
    look: Look | None = None


@dataclass
class RoundResult:
    """The new server entries, and all that clients sent and reported."""

    server: Tensors  # as before_round made them, and once uploads are aggregated the new entries
    context: Context
    sums: CohortSums = field(default_factory=CohortSums)
    floats_down: int = 0  # numbers that each client received
    reports: list[tuple[ClientReport, int]] = field(default_factory=list)  # with the actor it ran on
    failures: list[ClientFailure] = field(default_factory=list)
    stacked: list[Arrays] = field(default_factory=list)  # single uploads in client order, if asked for
    personal: list[OwnScores] = field(default_factory=list)  # of clients' own models, if asked for
    states: dict[int, Handle] = field(default_factory=dict)  # client -> new state

    def add(self, call: Call, result: Result) -> None:
        """Take in a block, in block order; of clients that failed nothing but the failure."""
        block = result.value
        self.failures.extend(block.failures)
        if not block.reports:  # all of them failed: there is nothing to add
            return
        self.sums.add(block.sums)
        self.reports.extend((report, result.actor) for report in block.reports)
        self.stacked.extend(block.stacked)
        self.personal.extend(block.personal)
        if call.handles:
            new = dict(zip(call.args[0], result.handles, strict=True))
            self.states.update({report.client: new[report.client] for report in block.reports})

    def pooled(self) -> Pooled:
        """The uploads as the algorithm sees them."""
        stacked = self.stacked
        return Pooled(
            mean=self.sums.mean(),
            weight=self.sums.weight,
            count=len(self.reports),
            stacked={name: torch.from_numpy(np.stack([upload[name] for upload in stacked])) for name in stacked[0]}
            if stacked
            else None,
            ids=tuple(report.client for report, _ in self.reports),
        )


class RoundRunner:
    """Runs the rounds of a federation's stages."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._tried: set[int] = set()  # stages of which a trial was made, see _preflight

    def run(self, number: int, round: int, server: Tensors, states: StageStates, asked: Asked) -> RoundResult:
        """Run ``round`` (global) of the stage with that number, from the server's entries and clients' states."""
        federation = self._federation
        stage = federation.stage(number, round)
        algorithm, cohort = stage.algorithm, federation.cohort(round)
        context = federation.context(number, round, len(cohort))
        with drawing_nothing(f"round {round}: {type(algorithm).__name__}.before_round"):
            made = algorithm.before_round(server, ServerSide(federation.pool, context), context)
        result = RoundResult(settled(federation, number, round - 1, algorithm, "before_round", made), context)
        if not cohort:
            log.warning("round %d: nobody was drawn, so there is nothing to learn from", round)
            return result
        self._preflight(number, stage, result)
        with drawing_nothing(f"round {round}: {type(algorithm).__name__}.broadcast"):
            received = broadcast(algorithm, result.server, context)
            rows = addressed(federation, algorithm, result.server, cohort, context)
        result.floats_down = count_floats_down(algorithm, received, rows)
        job, calls = self._job(stage, context, asked), self._calls(stage, cohort, rows, context, states)
        for call, trained in self._results(stage, context, job, to_numpy(received), calls):
            if asked.look is not None:
                for report, model in zip(trained.value.reports, trained.value.models, strict=True):
                    asked.look(report.client, model)
            result.add(call, trained)
        self._check_failures(context, result.failures)
        result.server = self._aggregated(number, algorithm, result, buffers=server["buffers"])
        return result

    # --- pieces ---------------------------------------------------------------------------------------

    def _job(self, stage: Stage, context: Context, asked: Asked) -> TrainJob:
        experiment = self._federation.experiment
        return TrainJob(
            algorithm=stage.algorithm,
            local=stage.local,
            context=context,
            stateful=stage.algorithm.stateful,
            probe=experiment.evaluation.client_loss,
            test_locally=asked.local_models,
            keep_models=asked.look is not None,
            test_own=asked.own_models,
            together=self._federation.together(stage.algorithm, context),
            drop=experiment.participation.on_client_error == "drop",
        )

    def _calls(
        self, stage: Stage, cohort: tuple[int, ...], rows: Arrays, context: Context, states: StageStates
    ) -> list[Call]:
        """The cohort in blocks; the longest expected are sent first, which changes no bit."""
        federation, algorithm = self._federation, stage.algorithm
        phases = algorithm.phases(context)
        sizes = {client: int(federation.population.sizes[client]) for client in cohort}
        by_size = {size: cost.training(phases, stage.local, size) for size in set(sizes.values())}
        work = {client: by_size[size] for client, size in sizes.items()}
        stateful, together = algorithm.stateful, federation.together(algorithm, context)
        return block_calls(federation, cohort, rows, work, states, stateful, together, returns_states=stateful)

    def _results(
        self, stage: Stage, context: Context, job: TrainJob, received: Arrays, calls: Sequence[Call]
    ) -> Iterator[tuple[Call, Result]]:
        """Yield each block's result; a worker's want of memory is told with what would fit."""
        federation = self._federation
        try:
            results = federation.pool.run("train", received, job, calls, what=f"round {context.round}")
            yield from zip(calls, results, strict=True)
        except MemoryShort as error:
            clients = max(len(call.args[0]) for call in calls)
            rows, side_by_side = (
                int(federation.population.sizes[federation.population.largest]),
                federation.pool.side_by_side,
            )
            together, lanes = job.together * clients, federation.lanes(stage.algorithm, context)
            preflight = Preflight(federation.experiment, stage, context, side_by_side, rows, together, lanes)
            raise MemoryShort(f"{error}; {preflight.smaller(federation.largest_layout)}") from error

    def _aggregated(self, number: int, algorithm: Algorithm, result: RoundResult, buffers: torch.Tensor) -> Tensors:
        """The new server entries: means formed in float64, then kept in the run's precision."""
        context, sums = result.context, result.sums
        if not sums.weight > 0 or sums.buffers is None:
            raise RunError(f"round {context.round}: the uploads' weights add up to {sums.weight}: there is no mean")
        mean_buffers = sums.mean_buffers() if algorithm.shares_buffers else buffers
        with drawing_nothing(f"round {context.round}: {type(algorithm).__name__}.aggregate"):
            made = algorithm.aggregate(result.server, result.pooled(), context) | {"buffers": mean_buffers}
        return settled(self._federation, number, context.round - 1, algorithm, "aggregate", made)

    def _check_failures(self, context: Context, failures: Sequence[ClientFailure]) -> None:
        """Say who is left out of the round; a :class:`RunError` where too few are left."""
        if not failures:
            return
        participation, first = self._federation.experiment.participation, failures[0].reason
        left, least = context.cohort_size - len(failures), participation.least(context.cohort_size)
        counted = f"round {context.round}: {len(failures)} of {context.cohort_size} clients failed"
        if left < least:
            raise RunError(
                f"{counted}, and participation.min_success={participation.min_success:g} asks for {least} that do "
                f"not; the first: {first}"
            )
        log.warning("%s and are left out; the first: %s", counted, first)

    def _preflight(self, number: int, stage: Stage, result: RoundResult) -> None:
        """Once a stage, before it trains: whether the workers' memory will do, by a trial of the largest client."""
        if number in self._tried:
            return
        self._tried.add(number)
        federation, algorithm, context = self._federation, stage.algorithm, result.context
        client, together = federation.population.largest, federation.together(algorithm, context)
        blocks = cut_blocks(range(context.cohort_size), federation.experiment.execution.block, together)
        lanes = federation.lanes(algorithm, context)
        largest = max(map(len, blocks))
        clients = largest if together else min(lanes, largest)
        held = int(federation.population.sizes[client])
        preflight = Preflight(federation.experiment, stage, context, federation.pool.side_by_side, held, clients)
        if not preflight.due(federation.largest_layout):
            return
        received = to_numpy(broadcast(algorithm, result.server, context))
        rows = addressed(federation, algorithm, result.server, (client,), context)
        job = TrainJob(
            algorithm, preflight.local, context, stateful=False, probe=True, test_locally=False, together=together
        )
        call = Call(label=f"client {client}", args=((client,), rows, preflight.rows, clients))
        [peak] = federation.pool.run("peak", received, job, [call], what="preflight")
        preflight.report(peak.value)
