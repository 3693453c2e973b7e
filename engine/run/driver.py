"""The round loop. The same class in this process and as the Ray driver actor.

    driver = Driver(experiment, folder, dataset, assignment, pool)
    while not driver.finished:
        rows = driver.advance(seconds=1.0)
    driver.close()

Each turn is a round (``engine/server/round.py``), the evaluation and the checkpoint that are due after it, or rounds
that another run has done. Where the run stands: ``lineage.py``; what is shared: ``sharing.py``; what is written down:
``recording.py``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.algorithm import ParamLayout
from engine.base.errors import RunError
from engine.client.jobs import set_up_torch
from engine.client.messages import TrainResult
from engine.data import Assignment, Dataset
from engine.experiment import Experiment, Stage
from engine.record.checkpoints import Position
from engine.record.run_folder import Row, RunFolder
from engine.run.lineage import Lineage
from engine.run.log import log
from engine.run.recording import Recorder, with_headline
from engine.run.reuse import NotYet, Reuse, may_share
from engine.run.sharing import Sharing
from engine.server.client_map import Exchanges
from engine.server.evaluation import Evaluation
from engine.server.federation import Federation
from engine.server.round import Measured, OnLocalModel, RoundRunner
from engine.server.stage_ends import StageEnds
from engine.worker.pool import Deadline, Pool
from engine.worker.stopwatch import Stopwatch


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
        self.federation = Federation(experiment, dataset, assignment, pool)
        self.exchanges = Exchanges(folder.exchanges, self.federation)
        self.stage_ends = StageEnds(self.federation, self.exchanges)
        self.evaluation = Evaluation(self.federation, folder.evaluations, folder.personal, len(dataset.test.labels))
        self._recorder = Recorder(self.federation, folder, dataset, assignment)
        self.rounds = RoundRunner(self.federation)
        self._on_local_model: OnLocalModel | None = None
        self.lineage = Lineage(self.federation, folder, self.stage_ends, self.evaluation.stopping)
        shared = reuse if may_share(self.lineage.numerics) else None
        self.sharing = Sharing(self.lineage, self.evaluation, folder, self._recorder.divided, shared)
        for sentence in dataset.told:
            log.info("data: %s", sentence)

    # --- where it stands --------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        """The stage that is under way."""
        return self.lineage.stage

    @property
    def round(self) -> int:
        """Rounds done, over all stages of the lineage."""
        return self.lineage.position.round

    @property
    def rounds_done(self) -> int:
        """Rounds done of this run: the same unless stages branch."""
        return self.lineage.rounds_done

    @property
    def finished(self) -> bool:
        return self.lineage.finished

    @property
    def layout(self) -> ParamLayout:
        """The layout of the server's weights in this stage."""
        return self.federation.layout(self.lineage.position.stage)

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """The global weights [P] and buffers [Q]."""
        return self.lineage.server["weights"], self.lineage.server["buffers"]

    # --- running ----------------------------------------------------------------------------------------

    def advance(self, seconds: float = 0.0, until: int | None = None) -> list[Row]:
        """Run rounds for about ``seconds``, at least one, none beyond ``until``; what each came to, for display.

        None while another run computes what this one can take over.
        """
        if self.lineage.torn:
            raise RunError("the last round was interrupted half-way; open the run again")
        began = time.perf_counter()
        rows = []
        while self.is_before(until):
            try:
                rows += self.next(until)
                while self.lineage.is_followed:
                    rows += self.next(until)  # so that whoever stops at a round has what belongs to it
            except NotYet:
                break
            if time.perf_counter() - began >= seconds:
                break
        return rows

    def is_before(self, until: int | None) -> bool:
        """Return whether something is left to do up to the end of round ``until``, with what belongs to it."""
        return not self.finished and (until is None or self.round < until or self.lineage.is_followed)

    def next(self, until: int | None = None) -> list[Row]:
        """One round, with the evaluation and the checkpoint that are due after it; or those that another run did.

        A stage without rounds is one such step.
        """
        lineage = self.lineage
        self.pool.deadline = Deadline(self.round + 1, self.experiment.execution.round_timeout)
        if lineage.at_end:
            lineage.begin(lineage.position.stage + 1)
        taken_over = self.sharing.taken_over(until)
        if taken_over is not None:
            return taken_over
        self.pool.watch = watch = Stopwatch()
        row = self._round() if lineage.stage.rounds else self._no_round()
        if lineage.stage.rounds and lineage.at_end:  # with nothing of the round in memory any more
            lineage.finish()
        with watch("evaluation"):
            evaluation = self.evaluation.after(lineage.position, lineage.server, lineage.states, lineage.left_out)
        row |= watch.row()
        self.folder.rounds.add(row)
        lineage.torn = lineage.pending = False
        saving = self.experiment.checkpoint
        due = lineage.at_end or lineage.finished or self.round % saving.every == 0
        wanted = self.sharing.is_wanted()
        late = saving.seconds is not None and time.perf_counter() - lineage.saved_at > saving.seconds
        if due or wanted or late:
            lineage.save()
        self.sharing.share(due, wanted)
        return [with_headline(row, evaluation)]

    def _round(self) -> Row:
        """Run the next round; its row."""
        lineage = self.lineage
        at, before = Position(lineage.position.stage, self.round + 1), lineage.server["weights"]
        every = self.experiment.evaluation.local_every
        measured = Measured(
            local_models=bool(every) and at.round % every == 0,
            own_models=self.evaluation.schedule.participants(at),
            on_local_model=self._on_local_model,
        )
        server, trained = self.rounds.run(at.stage, at.round, lineage.server, lineage.states, measured)
        norm = float((server["weights"] - before).norm())
        lineage.commit(at.round, server, trained)
        return self._recorded(trained, norm)

    def _no_round(self) -> Row:
        """Do what a stage without rounds does; its row, of the model that it ends with."""
        self.pool.watch.turn("aggregation")
        lineage = self.lineage
        before = lineage.server["weights"]
        lineage.torn = True
        lineage.finish()
        norm = float((lineage.server["weights"] - before).norm())
        return self._recorded(TrainResult(), norm)

    def _recorded(self, trained: TrainResult, norm: float) -> Row:
        """Add what the last round came to to the tables; the round's row of ``rounds.parquet``."""
        at = self.lineage.position
        stage = self.federation.stage(at.stage, at.round) if self.stage.rounds else self.stage
        context = self.federation.context(at.stage, at.round)
        row = self._recorder.round(stage, context, trained, self.lineage.server, norm)
        self.evaluation.record_own(at, trained.personal, {report.client for report in trained.reports})
        return row

    # --- ending -----------------------------------------------------------------------------------------

    def close(self) -> dict[str, Any]:
        """Write what is not yet written, let go of the pool; the summary.

        After an interrupt half-way through a round's end, what counts is the last checkpoint: nothing is written.
        """
        try:
            return self.folder.summary() if self.lineage.torn else self.summary()
        finally:
            self.let_go()
            self.pool.close()

    def let_go(self) -> None:
        """Let others compute on: nobody knows whether this run will."""
        self.sharing.release()

    def summary(self) -> dict[str, Any]:
        """Write everything without letting go of anything; the summary as far as the run has come."""
        self.lineage.save_what_is_not()
        return self._recorder.summary(self.lineage)

    # --- for others -------------------------------------------------------------------------------------

    def watch(self, on_local_model: OnLocalModel | None) -> None:
        """Call ``on_local_model`` with each client and its local model ("weights" [P], "buffers" [Q]) after training,
        from now on.
        """
        self._on_local_model = on_local_model

    def write_snapshots(self, folder: Path) -> None:
        """See :meth:`~engine.run.sharing.Sharing.write_snapshots`."""
        self.sharing.write_snapshots(folder)

    def adopt_snapshots(self, folder: Path) -> list[Row]:
        """See :meth:`~engine.run.sharing.Sharing.adopt_snapshots`."""
        return self.sharing.adopt_snapshots(folder)
