"""Models measured on the pool, and the rows that come of it: ``evaluations.parquet`` and ``personal.parquet``.

Which measurements are due: ``evaluation_schedule.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from engine.algorithm import Algorithm, Tensors
from engine.algorithm.personalised import has_global_model, personalise_phases
from engine.client.messages import OwnScores, PersonalJob, Scores
from engine.record.checkpoints import Position
from engine.record.run_folder import Row
from engine.record.stage_states import StageStates
from engine.record.tables import Table
from engine.server import measures
from engine.server.broadcast import addressed, block_calls, broadcast
from engine.server.evaluation_schedule import OF_HELD_OUT, EvaluationSchedule
from engine.server.federation import Federation
from engine.server.stopping import Stopping, figure_of
from engine.worker import cost
from engine.worker.pool import Call

log = logging.getLogger("fedskew")
BLOCK_ROWS = 2000  # test rows of one block


class Evaluation:
    """Measures a run's models when they are due, and adds the rows to the run's tables."""

    def __init__(self, federation: Federation, evaluations: Table, personal: Table, test_rows: int) -> None:
        self.stopping = Stopping(federation.experiment)
        self.schedule = EvaluationSchedule(federation.experiment, self.stopping)
        self._federation = federation
        self._evaluations = evaluations
        self._personal = personal
        self._test_rows = test_rows

    def after(self, at: Position, server: Tensors, states: StageStates, left_out: Collection[int]) -> Row:
        """Measure what is due after a round; the row of ``evaluations.parquet``, or nothing.

        left_out: clients of the round's cohort that failed.
        """
        algorithm, row = self._federation.stage(at.stage, at.round).algorithm, Row()
        if has_global_model(algorithm) and self.schedule.headline(at):
            row = self.global_model(at, algorithm, server)
            self._end_by(at, row)  # before what is due at the end is measured
        if self.schedule.personal(at):
            was_end = self.schedule.fine_tuned(at)
            scores = self._own_models(at, server, states, left_out)
            if not has_global_model(algorithm):
                row = self.headline(at, "personal", scores)
                self._end_by(at, row)
                if self.schedule.fine_tuned(at) and not was_end:
                    self._own_models(at, server, states, left_out, fine_tuned_alone=True)
        return row

    def _end_by(self, at: Position, row: Row) -> None:
        """Let a headline end the run, if there is a rule by which it does."""
        stop = self._federation.experiment.stop
        figure = figure_of(row, stop.metric)
        if stop.patience is not None and (figure is None or math.isnan(figure)):
            log.warning("round %d: %s is no number: no progress, as stop.patience counts it", at.round, stop.metric)
        self.stopping.note(at.stage, [row])
        if self.stopping.at(at):
            assert self.stopping.ended is not None
            rule, accuracy = self.stopping.ended.rule, row["accuracy"]
            log.info("round %d: accuracy %.4f, and the run ends here by stop.%s", at.round, accuracy, rule)

    def global_model(self, at: Position, algorithm: Algorithm, server: Tensors) -> Row:
        """The headline: the server's model on the test set, in blocks of rows."""
        calls = []
        for start in range(0, self._test_rows, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, self._test_rows)
            calls.append(Call(label=f"test rows from {start}", args=(start, end), cost=end - start))
        shared = {name: server[name] for name in ("weights", "buffers")}
        what = f"evaluation after round {at.round}"
        results = self._federation.pool.run("evaluate", shared, algorithm, calls, what=what)
        return self.headline(at, "global", list(results))

    def headline(self, at: Position, scope: Literal["global", "personal"], scores: Sequence[Scores]) -> Row:
        """Add the round's row of ``evaluations.parquet``, of all these test rows together."""
        total = Scores()
        for score in scores:
            total.add(score)
        row = {
            "stage": self._name(at),
            "round": at.round,
            "scope": scope,
            **measures.of_rows(total),
            **measures.of_classes(total),
            **measures.of_bins(total),
            "own": list(measures.of_own(total, self._federation.experiment.evaluation.metrics).items()) or None,
        }
        self._evaluations.add(row)
        return row

    def record_own(self, at: Position, own_scores: Sequence[OwnScores], participants: Collection[int]) -> None:
        """Add rows of clients' own models; ``participants``: the round's cohort, without those that failed."""
        for one in own_scores:
            self._personal.add(
                {
                    "stage": self._name(at),
                    "round": at.round,
                    "client": one.client,
                    "point": one.point,
                    "participant": one.client in participants,
                    **measures.of_rows(one.scores),
                }
            )

    def _own_models(
        self,
        at: Position,
        server: Tensors,
        states: StageStates,
        left_out: Collection[int],
        fine_tuned_alone: bool = False,
    ) -> list[Scores]:
        """Measure clients' own models with what they would receive now; the scores of those not fine-tuned.

        Those of held-out clients have points of their own, and are not among the scores.

        fine_tuned_alone: whether rows of the others are there already.
        """
        federation, ids = self._federation, self._federation.population.testers
        stage, context = federation.stage(at.stage, at.round), federation.context(at.stage, at.round)
        algorithm = stage.algorithm
        shared = broadcast(algorithm, server, context)
        tuning = federation.experiment.evaluation.fine_tuning if self.schedule.fine_tuned(at) else None
        phases = personalise_phases(algorithm, context) + ((tuning,) if tuning else ())
        population = federation.population
        work = {
            client: cost.training(phases, stage.local, int(population.sizes[client]))
            + cost.forward(population.tests[client])
            for client in ids
        }
        rows = addressed(federation, algorithm, server, ids, context)
        calls = block_calls(federation, ids, rows, work, states, algorithm.stateful)
        job = PersonalJob(algorithm, stage.local, context, tuning)
        what = f"clients' own models after round {at.round}"
        results = federation.pool.run("measure", shared, job, calls, what=what)
        own_scores: list[OwnScores] = [one for block in results for one in block]
        names = {point: name for name, point in OF_HELD_OUT.items()}
        own_scores = [
            replace(one, point=names[one.point]) if one.client in population.held_out else one for one in own_scores
        ]
        if fine_tuned_alone:
            own_scores = [one for one in own_scores if OF_HELD_OUT.get(one.point, one.point) == "fine_tuned"]
        self.record_own(at, own_scores, set(federation.cohort(at.round) if stage.rounds else ()) - set(left_out))
        return [one.scores for one in own_scores if one.point == "post_server"]

    def _name(self, at: Position) -> str:
        return self._federation.chain[at.stage].name
