"""The rules of the section ``stop``: whether a run ends before its last round.

They read headline figures alone, the rows of ``evaluations.parquet``, so that a run that goes on from its folder
ends where one that nobody interrupted does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from engine.base.evaluated import BETTER, way_of
from engine.experiment import Experiment
from engine.record.checkpoints import Position
from engine.record.run_folder import Row


@dataclass(frozen=True)
class Ended:
    """The rule that ended a run before its last round, and the (global) round after which it did."""

    rule: Literal["accuracy", "patience"]
    round: int


def figure_of(row: Row, name: str) -> float | None:
    """Return a figure of a row of ``evaluations.parquet``, ours or an own one; None where it has none."""
    return row[name] if name in BETTER else dict(row["own"] or ()).get(name)


class Stopping:
    """The headlines of a run's last stage so far, and what the rules say of them."""

    def __init__(self, experiment: Experiment) -> None:
        self.ended: Ended | None = None
        self._rule = experiment.stop
        self._stage = len(experiment.chain) - 1
        self._span = experiment.spans[-1]
        self._seen = self._span.start - 1  # the last round that was noted
        self._best: float | None = None  # the figure that later ones are to exceed
        self._since = 0  # evaluated rounds since it was reached

    def at(self, position: Position) -> bool:
        """Return whether the run ends here by a rule."""
        return self.ended is not None and position == Position(self._stage, self.ended.round)

    def note(self, stage: int, rows: Iterable[Row]) -> None:
        """Take in a stage's rows of ``evaluations.parquet``, ascending; rows that are known already are skipped."""
        if stage != self._stage:
            return
        for row in rows:
            # The last round is the end in any case, and it is evaluated out of turn.
            if self.ended is None and self._seen < row["round"] < self._span.stop - 1:
                self._seen = row["round"]
                self._take_in(row["accuracy"], figure_of(row, self._rule.metric))

    def first(self, stage: int, rows: Iterable[Row]) -> int | None:
        """Return the round after which the run would end if these rows came next; None if it would go on."""
        ahead = copy.copy(self)
        ahead.note(stage, rows)
        return None if ahead.ended is None else ahead.ended.round

    def _take_in(self, accuracy: float, figure: float | None) -> None:
        rule = self._rule
        figure = -math.inf if figure is None else figure if way_of(rule.metric) == "max" else -figure
        if self._best is None or figure > self._best + rule.min_delta:
            self._best, self._since = figure, 0
        else:
            self._since += 1
        if rule.accuracy is not None and accuracy >= rule.accuracy:
            self.ended = Ended("accuracy", self._seen)
        elif rule.patience is not None and self._since >= rule.patience:
            self.ended = Ended("patience", self._seen)
