"""What is done while a sweep's last trials run, when there is no other trial for a core that has become idle."""

from __future__ import annotations

from typing import Any

from ray import tune


class LastTrials(tune.Callback):
    """Imports what a report is drawn with, which takes more than a second, before the report is asked for."""

    def __init__(self, total: int) -> None:
        """``total``: trials that are to end, those that ended in an earlier process included: they report again."""
        self._total = total
        self._begun = set[str]()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._begun.add(str(trial))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if len(self._begun) == self._total:
            import scipy.stats  # noqa: F401

            import engine.analysis.report  # noqa: F401
