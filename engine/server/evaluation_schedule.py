"""After which rounds what is measured, and which of another run's measurements this run would have made.

The global model, or clients' own models where there is no global one, give the headline: the row of
``evaluations.parquet``. Clients' own models have rows of their own in ``personal.parquet``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.algorithm import Algorithm, Personalised
from engine.algorithm.personalised import has_global_model
from engine.experiment import Experiment
from engine.record.checkpoints import Position
from engine.record.run_folder import Row
from engine.server.stopping import Stopping

DURING = ("received", "post_local")  # points that are measured while a round's participants train
OF_HELD_OUT = {"held_out": "post_server", "held_out_tuned": "fine_tuned"}  # of others the same is measured


def measures_own_models(experiment: Experiment, algorithm: Algorithm) -> bool:
    """Return whether clients' own models of a stage are measured at all: at the end of the run, if not before."""
    evaluation = experiment.evaluation
    if experiment.client_models and has_global_model(algorithm):  # the server's weights fit none of theirs
        return False
    if not has_global_model(algorithm) or evaluation.fine_tuning is not None or experiment.participation.held_out:
        return True
    if evaluation.personal_every is not None:
        return evaluation.personal_every > 0
    return isinstance(algorithm, Personalised)


class EvaluationSchedule:
    """The section ``evaluation``, for the stages of an experiment."""

    def __init__(self, experiment: Experiment, stopping: Stopping | None = None) -> None:
        """``stopping``: of the run that is under way, which may end before its last round."""
        self._experiment = experiment
        self._stopping = stopping or Stopping(experiment)
        self._chain = experiment.chain
        self._evaluation = experiment.evaluation
        self._ends = self._end_positions(experiment)

    def headline(self, at: Position) -> bool:
        """Return whether the round ends with a headline."""
        if not has_global_model(self._algorithm(at)):
            return self.personal(at)
        every = self._evaluation.every
        return self._is_end(at) or bool(every and at.round % every == 0)

    def personal(self, at: Position) -> bool:
        """Return whether clients' own models are measured after the round; at the end too, if they are at all."""
        if self._is_end(at):
            return measures_own_models(self._experiment, self._algorithm(at))
        return self.participants(at) or self._held_out_alone(at)

    def participants(self, at: Position) -> bool:
        """Return whether the round's participants are measured before and after their local work.

        Never merely because a run ends there: another one that takes this round over need not end.
        """
        every = self._personal_rounds(at)
        return every > 0 and at.round % every == 0

    def fine_tuned(self, at: Position) -> bool:
        """Return whether clients' own models are measured once more after fine-tuning."""
        return self._is_end(at) and self._evaluation.fine_tuning is not None

    # --- another run's rows, of an equal stage ----------------------------------------------------------

    def wants(self, row: Row, stage: int) -> bool:
        """Return whether a row of ``evaluations`` or ``personal`` is one that this run would have made.

        The end of another run is measured whatever the cadence, and need not be the end of this one.
        """
        at = Position(stage, row["round"])
        point = row.get("point")
        if point in DURING:
            return self.participants(at)
        due = {None: self.headline, "post_server": self.personal, "fine_tuned": self.fine_tuned}
        return due[OF_HELD_OUT.get(str(point), point)](at)

    def lacks(self, rows: Mapping[str, Sequence[Row]], at: Position) -> bool:
        """Return whether rows leave out something that is due after the round: this run's end may not be another's."""
        made = {row.get("point") for name in ("evaluations", "personal") for row in rows[name] if after(row, at)}
        due = {None: self.headline(at), "post_server": self.personal(at), "fine_tuned": self.fine_tuned(at)}
        return any(is_due and point not in made for point, is_due in due.items())

    # --- pieces -----------------------------------------------------------------------------------------

    def _algorithm(self, at: Position) -> Algorithm:
        return self._chain[at.stage].at(at.round).algorithm

    def _held_out_alone(self, at: Position) -> bool:
        """Return whether own models are measured for the sake of held-out clients: as often as the global one."""
        evaluation = self._evaluation
        if not self._experiment.participation.held_out or evaluation.personal_every is not None:
            return False
        is_due = bool(evaluation.every and at.round % evaluation.every == 0)
        return is_due and measures_own_models(self._experiment, self._algorithm(at))

    def _is_end(self, at: Position) -> bool:
        return at in self._ends or self._stopping.at(at)

    def _personal_rounds(self, at: Position) -> int:
        """Return how often clients' own models are measured, in rounds; 0 is never."""
        if not measures_own_models(self._experiment, self._algorithm(at)):
            return 0
        if self._evaluation.personal_every is not None:
            return self._evaluation.personal_every
        return self._evaluation.every if isinstance(self._algorithm(at), Personalised) else 0

    def _end_positions(self, experiment: Experiment) -> set[Position]:
        """The end of the run, and what a stage without rounds starts from and ends with."""
        number_of = {stage.name: number for number, stage in enumerate(self._chain)}
        stages = {len(self._chain) - 1}
        for number, stage in enumerate(self._chain):
            if stage.rounds == 0:
                stages |= {number, number_of[stage.needs[0]]}
        return {Position(number, experiment.spans[number].stop - 1) for number in stages}


def after(row: Row, at: Position) -> bool:
    """Return whether a row of this stage measures what the round has come to."""
    return row["round"] == at.round and row.get("point") not in DURING
