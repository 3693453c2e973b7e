"""A run's place in its chain of stages: a stage begun from the one it needs, restored from a checkpoint, saved.

A :class:`Lineage` holds all that a checkpoint does: the server's entries, clients' states, the position, and what the
run was computed with so far.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from engine.algorithm import Tensors
from engine.base.errors import OtherMachine, RunFolderError
from engine.base.files import writing
from engine.base.owned import remove_left_behind
from engine.client.messages import TrainResult
from engine.client.steps.entries import check_restored
from engine.experiment import Stage
from engine.record.checkpoints import Checkpoint, Checkpoints, Position, last_of_stages
from engine.record.numerics import differing, mixed
from engine.record.parts import add_changed, changed
from engine.record.run_folder import RunFolder
from engine.record.shapes import RUN
from engine.record.stage_hashes import CODE
from engine.record.stage_states import StageStates, open_states
from engine.record.state_projection import check_room
from engine.server.federation import Federation
from engine.server.stage_ends import StageEnds
from engine.server.stopping import Stopping

log = logging.getLogger("fedskew")


class Lineage:
    """The stages of a run, from the newest whole checkpoint of its folder on."""

    def __init__(self, federation: Federation, folder: RunFolder, ends: StageEnds, stopping: Stopping) -> None:
        self.federation = federation
        self.folder = folder
        self.checkpoints = Checkpoints(
            folder.path / "checkpoints",
            federation.experiment.digest,
            federation.experiment.checkpoint.keep,
            tuple(stage.name for stage in federation.chain),
            federation.experiment.checkpoint.every,
        )
        self.numerics = dict(federation.pool.numerics)
        self.position = Position(0, 0)
        self.server: Tensors = federation.fresh
        self.left_out: set[int] = set()  # clients of the last cohort that failed
        self.torn = False  # interrupted between a commit and the round's last row: not to be saved
        self.pending = False  # a stage without rounds has begun and is not done, though its position is its end
        self.stopping = stopping
        self._ends = ends
        self._saved: Position | None = None
        self.saved_at = time.perf_counter()  # or begun
        last = last_of_stages(self.checkpoints, federation.experiment)
        # For each stage that needs another one, that one's last checkpoint.
        self._parents = {number: last[stage.needs[0]] for number, stage in enumerate(self.chain) if stage.needs}
        self.states: StageStates  # of the stage that is under way
        self._restore()

    # --- where it stands --------------------------------------------------------------------------------

    @property
    def chain(self) -> tuple[Stage, ...]:
        return self.federation.chain

    @property
    def stage(self) -> Stage:
        """The stage that is under way, as its first round has it."""
        return self.chain[self.position.stage]

    @property
    def at_end(self) -> bool:
        """True if the stage has done its rounds."""
        return not self.pending and self.position.round == self.federation.ends[self.position.stage]

    @property
    def finished(self) -> bool:
        """True if the last stage has done its rounds, or a rule has ended it before."""
        last = Position(len(self.chain) - 1, self.federation.ends[-1])
        return not self.pending and (self.position == last or self.stopping.at(self.position))

    @property
    def is_followed(self) -> bool:
        """True if a stage without rounds comes next, or has begun."""
        if self.pending or self.finished or not self.at_end:
            return self.pending
        return self.chain[self.position.stage + 1].rounds == 0

    @property
    def rounds_done(self) -> int:
        """Rounds of this run: the same as the position's unless stages branch."""
        before = sum(stage.rounds for stage in self.chain[: self.position.stage])
        return before + self.position.round - self.federation.starts[self.position.stage]

    def state_files(self) -> dict[int, str]:
        """Client -> SHA-256 of its state, as of the last that were written."""
        return self.states.files(has_rounds=self.stage.rounds > 0)

    # --- a stage's life ---------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """Start a stage from the last checkpoint of the one it needs, or from fresh weights."""
        stage, parent = self.chain[number], self._parent(number)
        self.torn = True
        self.position = Position(number, self.federation.starts[number])
        self.states = self._new_states(parent)
        server = self.server = self._ends.begin(number, parent.server if parent else None, self.states)
        context, keeping = self.federation.context(number, self.position.round), self.federation.experiment.checkpoint
        check_room(self.states.store, stage, context, keeping, lambda: self._ends.largest_first_state(number, server))
        self.torn, self.pending = False, stage.rounds == 0
        self._log_beginning(stage)

    def commit(self, round: int, server: Tensors, trained: TrainResult) -> None:
        """Take over the server's entries and the clients' states after a round; until its row is written too, the run
        is torn.
        """
        self.torn = True
        with writing(self.folder.path):
            self.states.commit(trained.states)
        self.left_out = {failure.client for failure in trained.failures}
        self.server = server
        self.position = replace(self.position, round=round)

    def adopt(self, checkpoint: Checkpoint, round: int, left_out: Iterable[int]) -> None:
        """Go on from another run's checkpoint of this stage, whose clients' states are in this run's folder."""
        self.states.restore(checkpoint.states)
        self.server = checkpoint.server
        self.position = replace(self.position, round=round)
        self.left_out = set(left_out)
        self.pending = False

    def finish(self) -> None:
        """Do what the algorithm does at the stage's end."""
        self.server = self._ends.finish(self.position.stage, self.server, self.states)

    def save(self) -> None:
        """Write rows first, then the checkpoint that vouches for them."""
        with writing(self.folder.path):
            for (
                name,
                value,
            ) in self.federation.pool.numerics.items():  # an actor's place may have gone to other hardware
                self.numerics[name] = mixed(self.numerics[name], value)
            self.folder.flush()
            self.states.store.save()
            self.checkpoints.save(Checkpoint(self.position, self.server, self.state_files(), self.numerics))
            self._saved, self.saved_at = self.position, time.perf_counter()
            self.states.store.prune(self.checkpoints.prune({path.name for path in self._parents.values()}))

    def save_what_is_not(self) -> None:
        """Save, unless the newest checkpoint is of this position, or nothing was done since."""
        if self._saved != self.position and not self.pending:
            self.save()

    # --- restoring --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        self.checkpoints.check_folder()
        remove_left_behind(self.folder.path, RUN)
        found = self.checkpoints.latest(self._parents)
        if found is not None:
            self._check_fits(found)
        with writing(self.folder.path):
            self.folder.truncate(self.federation.experiment, found.position if found else None)
        if found is None:
            self.begin(0)
            return
        self.position, self.server = found.position, found.server
        self.states = self._new_states(self._parent(found.position.stage))
        self.states.restore(found.states)
        self._saved = found.position
        number, round = found.position.stage, found.position.round
        self.stopping.note(number, self.folder.evaluations.read(self.stage.name, round))
        self._go_on_with(found.numerics)
        log.info("continuing after round %d of stage %s", self.position.round, self.stage.name)

    def _check_fits(self, found: Checkpoint) -> None:
        """Refuse a checkpoint that is whole, and yet of another model, another version or no round of this run."""
        name, (number, round) = self.checkpoints.paths()[0].name, (found.position.stage, found.position.round)
        federation = self.federation
        if not 0 <= number < len(self.chain) or not federation.starts[number] <= round <= federation.ends[number]:
            raise RunFolderError(f"checkpoint {name} is after round {round} of stage {number}, which this run has not")
        algorithm, required = self.chain[number].algorithm, ()
        if round < federation.ends[number]:
            parent = self._parent(number)
            fresh = federation.with_model(number, parent.server if parent else federation.fresh)
            required = algorithm.init_server(fresh, federation.context(number, round))
        try:
            check_restored(algorithm, found.server, federation.layout(number), required)
            clients = set(federation.population.clients)
            if not set(found.states) <= clients or not found.numerics.keys() <= self.numerics.keys():
                raise ValueError("its clients or its machine are others")
        except ValueError as error:
            raise RunFolderError(f"checkpoint {name} does not fit this experiment ({error})") from None

    def _go_on_with(self, numerics: dict[str, str]) -> None:
        """Refuse to go on where other bits would be computed than before, or mark the result."""
        differ = differing(numerics, self.numerics)
        if not differ:
            return
        if not self.federation.experiment.execution.mixed_hardware:
            told = ", and with ".join(
                f"{name} {before} and would go on with {now}" for name, (before, now) in differ.items()
            )
            parts = changed(self.folder.path, self.federation.experiment) if CODE in differ else []
            told += f" (of {' and '.join(parts)})" if parts else ""
            anew = f"start again with: {self.folder.command_anew()}, or in another folder"
            repair = anew if CODE in differ else "go on where it began"
            raise OtherMachine(
                f"execution.mixed_hardware=False: the run began with {told}, so bits may differ from here on; "
                f"{repair}, or set execution.mixed_hardware=true, which marks the result"
            )
        for name, (before, now) in differ.items():
            self.numerics[name] = mixed(before, now)
            log.warning("the run began with %s %s and goes on with %s: bits differ from here on", name, before, now)
        if CODE in differ:
            add_changed(self.folder.path, self.federation.experiment)

    # --- pieces -----------------------------------------------------------------------------------------

    def _parent(self, number: int) -> Checkpoint | None:
        """The last checkpoint of the stage that this one needs."""
        path: Path | None = self._parents.get(number)
        return None if path is None else self.checkpoints.load(path)

    def _new_states(self, parent: Checkpoint | None) -> StageStates:
        federation = self.federation
        store = open_states(self.checkpoints.states_folder, federation.pool.fetch, federation.experiment.execution)
        return StageStates(store, parent.states if parent else {})

    def _log_beginning(self, stage: Stage) -> None:
        algorithm, last = stage.algorithm, self.federation.ends[self.position.stage]
        rounds = f"rounds {self.position.round + 1} to {last}" if stage.rounds else f"after round {last}"
        log.info("stage %s: %s, %s", stage.name, algorithm, rounds)
        if not stage.rounds:
            return
        context = self.federation.context(self.position.stage, self.position.round + 1)
        executor, why = self.federation.executor(algorithm, context)
        if why:
            asked = self.federation.experiment.execution.executor
            log.info("stage %s: trained by %s and not by %s, since %s", stage.name, executor, asked, why)
