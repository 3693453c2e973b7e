"""The figures that a trial reports while it runs, made of what its tables hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.experiment import Experiment
from engine.record.columns import SCHEMAS
from engine.record.last_rounds import comparable, of_last_rounds
from engine.record.metrics import EVALUATED
from engine.record.personal_metrics import by_round, figures_of_rounds, of_stages
from engine.record.run_folder import Row, RunFolder
from engine.results.class_figures import class_figure

NO_PERSONAL = by_round(SCHEMAS["personal"].empty_table().to_pandas())


class Scores:
    """The evaluations of a run's lineage, as far as a trial has come."""

    def __init__(self, with_personal: bool, by_class: Sequence[str]) -> None:
        """``with_personal``: figures of personal models are reported, too; ``by_class``: those of single classes."""
        self.rows: list[Row] = []  # each evaluation of the lineage
        self._with_personal = with_personal
        self._by_class = by_class
        self._personal = NO_PERSONAL  # of the lineage, by round, as far as on disk
        self._lineage: set[str] = set()
        self._without_rounds: set[str] = set()  # of the lineage's stages
        self._own: tuple[str, ...] = ()  # metrics of the user's own

    def read(self, folder: RunFolder, experiment: Experiment, last: int) -> None:
        """Take what the tables of ``folder`` hold up to round ``last``, in place of what was kept."""
        self._lineage = experiment.lineage
        self._without_rounds = experiment.without_rounds
        self._own = experiment.evaluation.metrics
        self.rows = []
        self.keep(row for row in folder.frame("evaluations").to_dict("records") if row["round"] <= last)
        self.read_personal(folder)

    def read_personal(self, folder: RunFolder) -> None:
        """Read what clients' own models come to, if that is reported."""
        if self._with_personal:
            self._personal = by_round(of_stages(folder.frame("personal"), self._lineage))

    def keep(self, rows: Iterable[Row]) -> None:
        """Add those of ``rows`` that are evaluations of the lineage."""
        self.rows += [row for row in rows if row["accuracy"] is not None and row["stage"] in self._lineage]

    def figures(self, round: int) -> dict[str, float]:
        """Return each reported figure after ``round``; NaN where there is none."""
        known = comparable([row for row in self.rows if row["round"] <= round])
        last10 = of_last_rounds(known, round, self._without_rounds)
        latest: Mapping[str, Any] = known[-1] if known else {}
        own = dict(latest.get("own") or ())
        evaluated = {name: latest.get(name) for name in EVALUATED} | {name: own.get(name) for name in self._own}
        figures = {
            **{name: math.nan if value is None else value for name, value in evaluated.items()},
            "best_accuracy": max((row["accuracy"] for row in known), default=math.nan),
            "last10_accuracy": statistics.fmean(last10) if last10 else math.nan,  # as summary.json has it, to the bit
        }
        figures |= {name: class_figure(name, latest.get("class_accuracy")) for name in self._by_class}
        if self._with_personal:
            reached = self._personal.loc[self._personal["round"] <= round]
            personal = figures_of_rounds(reached, round, self._without_rounds)
            figures |= {name: math.nan if value is None else value for name, value in personal.items()}
        return figures
