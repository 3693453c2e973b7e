"""Rounds shared with other runs: taken over from the store of stages where another run has computed them, left there
where this one has.
"""

from __future__ import annotations

import logging
from pathlib import Path

from engine.algorithm import overrides
from engine.base.files import link_or_copy, writing
from engine.record import snapshots
from engine.record.checkpoints import Position
from engine.record.run_folder import Row, RunFolder
from engine.record.snapshots import Snapshot
from engine.run.lineage import Lineage
from engine.run.recording import with_headline
from engine.run.reuse import Reuse, Segment, may_share, segments_of
from engine.server.evaluation import Evaluation
from engine.server.evaluation_schedule import after

log = logging.getLogger("fedskew")


class Sharing:
    """A run's rounds as other runs see them, and theirs as this one does. Without a store it shares nothing."""

    def __init__(
        self, lineage: Lineage, evaluation: Evaluation, folder: RunFolder, data: str, reuse: Reuse | None
    ) -> None:
        """``data``: the data set's fingerprint, and the digest of who has which samples of it."""
        self._lineage = lineage
        self._evaluation = evaluation
        self._folder = folder
        self._data = data
        self._reuse = reuse
        self._keys: dict[int, list[Segment]] = {}  # of each stage, in the store

    def taken_over(self, until: int | None) -> list[Row] | None:
        """Go on from the longest stored continuation, up to ``until``; its rounds for display, None if there is none.

        Raises :class:`~engine.run.reuse.NotYet` while another run computes what this one can take over.
        """
        if self._reuse is None:
            return None
        lineage = self._lineage
        end = lineage.federation.ends[lineage.position.stage]
        until = end if until is None else min(until, end)
        while True:
            found = self._reuse.before(self._segments(), lineage.position.round, until, self._has_end)
            if found is None:
                return None
            end = lineage.stopping.first(lineage.position.stage, self._evaluations(found))
            if end is None or end == found.round:
                break
            until = end  # the other run has gone on where a rule ends this one
            self._reuse.done_with(found)
        rows = self._adopt(found)
        self._reuse.done_with(found)
        return rows

    def is_wanted(self) -> bool:
        """Return whether another run has asked for what the last round came to."""
        if self._reuse is None or not self._lineage.stage.rounds:
            return False
        return self._reuse.wanted(self._segments(), self._lineage.position.round)

    def share(self, due: bool, wanted: bool) -> None:
        """Store what the last round came to, if a checkpoint was ``due`` or another run ``wanted`` it.

        Nothing more once an actor's place has gone to other hardware: its bits are those of no key.
        """
        if not may_share(self._lineage.federation.pool.numerics):
            self.release()
            self._reuse = None
        if self._reuse is None:
            return
        position = self._lineage.position

        def write(folder: Path) -> None:
            self._write_snapshot(folder, position.stage)

        if self._lineage.at_end and self._has_end:
            self._reuse.ended(self._segments(), write)
        elif due or wanted:
            self._reuse.publish(self._segments(), position.round, wanted, write)
        self._reuse.reached(position.round)

    def release(self) -> None:
        """Let others compute on: nobody knows whether this run will."""
        if self._reuse is not None:
            self._reuse.release()

    # --- snapshots --------------------------------------------------------------------------------------

    def write_snapshots(self, folder: Path) -> None:
        """Write what the run has come to, a snapshot for each stage of its lineage so far: ``00``, ``01``, ..."""
        lineage = self._lineage
        lineage.save_what_is_not()
        by_name = {stage.name: number for number, stage in enumerate(lineage.chain)}
        number: int | None = lineage.position.stage
        while number is not None:
            self._write_snapshot(folder / f"{number:02d}", number)
            needs = lineage.chain[number].needs
            number = by_name[needs[0]] if needs else None

    def adopt_snapshots(self, folder: Path) -> list[Row]:
        """Go on from what :meth:`write_snapshots` of a run with equal stages wrote; a run that has done nothing yet."""
        rows = []
        for path in sorted(folder.glob("[0-9][0-9]")):
            while self._lineage.position.stage != int(path.name):
                self._lineage.begin(self._lineage.position.stage + 1)
            rows += self._adopt(snapshots.read(path))
        return rows

    def _write_snapshot(self, folder: Path, number: int) -> None:
        """Write the current stage as it is, or an earlier one as it ended; both are saved in the run's folder."""
        lineage = self._lineage
        stage, end, checkpoints = lineage.chain[number], lineage.federation.ends[number], lineage.checkpoints
        round = min(lineage.position.round, end)
        checkpoint = checkpoints.load(checkpoints.path(Position(number, round)))
        rows = {table.name: table.read(stage.name, round) for table in self._folder.tables}
        snapshots.write(folder, stage.name, round == end, checkpoint, checkpoints.states_folder, rows)

    def _adopt(self, found: Snapshot) -> list[Row]:
        """Go on from a snapshot of this stage, and count its rounds as done; its rows, for display."""
        lineage = self._lineage
        stage, checkpoint = lineage.stage, found.checkpoint
        began = lineage.position.round if stage.rounds else -1  # one without rounds has rows of the round it began with
        lineage.torn = True
        states = lineage.checkpoints.states_folder
        with writing(self._folder.path):
            for digest in set(checkpoint.states.values()):
                link_or_copy(found.states / f"{digest}.safetensors", states / f"{digest}.safetensors")
        failed = {row["client"] for row in found.rows["failures"] if row["round"] == found.round}
        lineage.adopt(checkpoint, found.round, failed)
        if lineage.at_end and not found.ended:
            lineage.finish()
        lineage.stopping.note(lineage.position.stage, self._evaluations(found))
        measured = self._copy_rows(found, began)
        lineage.torn = False
        lineage.save()
        rounds = f"rounds {began + 1} to {found.round} were" if stage.rounds else "it was"
        log.info("stage %s: %s there already", stage.name, rounds)
        rows = [row for row in found.rows["rounds"] if row["round"] > began]
        return [with_headline({**row, "reused": True}, measured.get(row["round"], {})) for row in rows]

    def _copy_rows(self, found: Snapshot, began: int) -> dict[int, Row]:
        """Add the rows after round ``began`` that this run would have made; round -> its row of evaluations.

        What was not measured and is due here is measured.
        """
        lineage, schedule, folder = self._lineage, self._evaluation.schedule, self._folder
        measured: dict[int, Row] = {}
        lacking = schedule.lacks(found.rows, lineage.position)
        for table in folder.tables:
            for row in found.rows[table.name]:
                if row["round"] <= began:
                    continue
                if table is folder.exchanges and row["when"] != "finish":  # this run's own beginning counted it
                    continue
                if table in (folder.evaluations, folder.personal):
                    if not schedule.wants(row, lineage.position.stage) or (lacking and after(row, lineage.position)):
                        continue
                    if table is folder.evaluations:
                        measured[row["round"]] = row
                table.add({**row, "stage": lineage.stage.name, "reused": True})
        if lacking:
            row = self._evaluation.after(lineage.position, lineage.server, lineage.states, lineage.left_out)
            measured[lineage.position.round] = row
        return measured

    # --- pieces -----------------------------------------------------------------------------------------

    def _evaluations(self, found: Snapshot) -> list[Row]:
        """The headlines of a snapshot of this stage that this run would have measured."""
        schedule, stage = self._evaluation.schedule, self._lineage.position.stage
        return [row for row in found.rows["evaluations"] if schedule.wants(row, stage)]

    @property
    def _has_end(self) -> bool:
        """True if there is more to the stage's end than its last round."""
        stage = self._lineage.stage
        return stage.rounds == 0 or overrides(stage.algorithm, "finish")

    def _segments(self) -> list[Segment]:
        lineage = self._lineage
        number, experiment = lineage.position.stage, lineage.federation.experiment
        if number not in self._keys:
            span = experiment.spans[number]
            self._keys[number] = segments_of(experiment, lineage.chain[number], span, lineage.numerics, self._data)
        return self._keys[number]
