"""A round: cohort, broadcast, blocks, sums, aggregation.

    server, trained = RoundRunner(federation).run(number, round, server, states, measured)

Nothing here depends on where blocks ran, and nothing is written: what a round came to is in its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from engine.algorithm import Algorithm, Context, Tensors, overrides
from engine.base.errors import MemoryShort, RunError
from engine.base.part_calls import on_the_server
from engine.client.messages import ClientFailure, TrainJob, TrainResult
from engine.experiment import Stage
from engine.record.stage_states import StageStates
from engine.server.broadcast import addressed, block_calls, broadcast, count_floats_down, validated
from engine.server.client_map import ServerSide
from engine.server.federation import Federation
from engine.server.rehearsal import rehearse
from engine.worker import cost
from engine.worker.pool import Call
from engine.worker.preflight import Preflight

log = logging.getLogger("fedskew")
OnLocalModel = Callable[[int, Tensors], None]  # is shown a client and its local model: "weights" [P], "buffers" [Q]


@dataclass(frozen=True)
class Measured:
    """The measurements that a round makes beside training."""

    local_models: bool = False  # each local model on the test set
    own_models: bool = False  # clients' own models on their own test rows, before and after
    on_local_model: OnLocalModel | None = None


class RoundRunner:
    """Runs the rounds of a federation's stages."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._tried: set[int] = set()  # stages that have been tried, see _preflight and rehearse

    def run(
        self, number: int, round: int, server: Tensors, states: StageStates, measured: Measured
    ) -> tuple[Tensors, TrainResult]:
        """Run ``round`` (global) of the stage with that number, from the server's entries and clients' states.

        Returns the new entries, and what the cohort's training has come to.
        """
        federation, buffers, watch = self._federation, server["buffers"], self._federation.pool.watch
        stage = federation.stage(number, round)
        algorithm, cohort = stage.algorithm, federation.cohort(round)
        context = federation.context(number, round, len(cohort))
        with watch("aggregation"), on_the_server(f"round {round}: {type(algorithm).__name__}.before_round", server):
            made = algorithm.before_round(server, ServerSide(federation.pool, context), context)
        server = validated(federation, number, round - 1, algorithm, "before_round", made)
        trained = TrainResult(dropped=federation.dropped(round))
        if not cohort:
            if federation.experiment.privacy.noise == 0:  # with noise, that nobody was drawn must not show
                log.warning("round %d: nobody trains, so there is nothing to learn from", round)
                return server, trained
            return self._aggregated(number, algorithm, server, trained, context, buffers), trained
        if number not in self._tried:
            self._tried.add(number)
            self._preflight(number, stage, server, context)
            rehearse(federation, stage, server, context, self._job(stage, context, Measured()))
        with watch("broadcast"), on_the_server(f"round {round}: {type(algorithm).__name__}.broadcast", server):
            received = broadcast(algorithm, server, context)
            rows = addressed(federation, algorithm, server, cohort, context)
        trained.floats_down = count_floats_down(algorithm, received, rows)
        job = replace(self._job(stage, context, measured), work=federation.work(stage, round))
        calls = self._calls(stage, cohort, rows, context, states, job.work)
        job = replace(job, added=[call.args[0][0] for call in calls] if job.together else cohort)
        watch.turn("training")
        for block in self._blocks(stage, context, job, received, calls):
            with watch("addition"):
                if measured.on_local_model is not None:
                    for report, model in zip(block.reports, block.models, strict=True):
                        measured.on_local_model(report.client, model)
                trained.merge(block)
        self._check_failures(context, trained.failures)
        return self._aggregated(number, algorithm, server, trained, context, buffers), trained

    # --- pieces ---------------------------------------------------------------------------------------

    def _job(self, stage: Stage, context: Context, measured: Measured) -> TrainJob:
        experiment = self._federation.experiment
        return TrainJob(
            algorithm=stage.algorithm,
            local=stage.local,
            context=context,
            stateful=stage.algorithm.stateful,
            probe=experiment.evaluation.client_loss,
            test_locally=measured.local_models,
            keep_models=measured.on_local_model is not None,
            test_own=measured.own_models,
            together=self._federation.together(stage.algorithm, context),
            drop=experiment.participation.on_client_error == "drop",
        )

    def _calls(
        self,
        stage: Stage,
        cohort: tuple[int, ...],
        rows: Tensors,
        context: Context,
        states: StageStates,
        own: Mapping[int, float],
    ) -> list[Call]:
        """The cohort in blocks; the longest expected are sent first, which changes no bit. own: see TrainJob.work."""
        federation, algorithm = self._federation, stage.algorithm
        phases = algorithm.phases(context)
        kinds = {client: (int(federation.population.sizes[client]), own.get(client)) for client in cohort}
        costs = {(rows, does): cost.training(phases, stage.local.doing(does), rows) for rows, does in {*kinds.values()}}
        work = {client: costs[kind] for client, kind in kinds.items()}
        stateful, together = algorithm.stateful, federation.together(algorithm, context)
        return block_calls(federation, cohort, rows, work, states, stateful, together, returns_states=stateful)

    def _blocks(
        self, stage: Stage, context: Context, job: TrainJob, received: Tensors, calls: Sequence[Call]
    ) -> Iterator[TrainResult]:
        """Yield each block's result; a worker's want of memory is told with what would fit."""
        federation = self._federation
        try:
            yield from federation.pool.run("train", received, job, calls, what=f"round {context.round}")
        except MemoryShort as error:
            clients = max(len(call.args[0]) for call in calls)
            population, side_by_side = federation.population, federation.pool.side_by_side
            rows = int(population.sizes[population.largest])
            together, lanes = job.together * clients, federation.lanes(stage.algorithm, context)
            preflight = Preflight(federation.experiment, stage, context, side_by_side, rows, together, lanes)
            raise MemoryShort(f"{error}; {preflight.smaller(federation.largest_layout)}") from error

    def _aggregated(
        self,
        number: int,
        algorithm: Algorithm,
        server: Tensors,
        trained: TrainResult,
        context: Context,
        buffers: Tensor,
    ) -> Tensors:
        """The new server entries: means formed in float64, then kept in the run's precision.

        buffers: [Q] that stay where clients share none.
        """
        self._federation.pool.watch.turn("aggregation")
        experiment, total = self._federation.experiment, trained.sum.whole()
        if experiment.privacy.clip is not None:
            pooled = experiment.privacy.pooled(total.total(), server, context, experiment.seed)
        elif total.weight > 0:
            pooled = trained.pooled(total)
        else:
            raise RunError(f"round {context.round}: the uploads' weights add up to {total.weight}: there is no mean")
        mean_buffers = total.mean_buffers() if algorithm.shares_buffers else buffers
        hook = "aggregate_with" if overrides(algorithm, "aggregate_with") else "aggregate"
        with on_the_server(f"round {context.round}: {type(algorithm).__name__}.{hook}", server):
            compute = ServerSide(self._federation.pool, context, "aggregate/")
            made = algorithm.aggregate_with(server, pooled, compute, context) | {"buffers": mean_buffers}
        return validated(self._federation, number, context.round - 1, algorithm, hook, made)

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

    def _preflight(self, number: int, stage: Stage, server: Tensors, context: Context) -> None:
        """Once a stage, before it trains: whether the workers' memory will do, by a trial of the largest client."""
        federation, algorithm = self._federation, stage.algorithm
        client, together = federation.population.largest, federation.together(algorithm, context)
        blocks = federation.blocks(range(context.cohort_size), together)
        lanes = federation.lanes(algorithm, context)
        largest = max(map(len, blocks))
        clients = largest if together else min(lanes, largest)
        held = int(federation.population.sizes[client])
        preflight = Preflight(federation.experiment, stage, context, federation.pool.side_by_side, held, clients)
        if not preflight.due(federation.largest_layout):
            return
        received = broadcast(algorithm, server, context)
        rows = addressed(federation, algorithm, server, (client,), context)
        job = TrainJob(
            algorithm, preflight.local, context, stateful=False, probe=True, test_locally=False, together=together
        )
        call = Call(label=f"client {client}", args=((client,), rows, preflight.rows, clients))
        [peak] = federation.pool.run("peak", received, job, [call], what="preflight")
        preflight.report(peak)
