"""Importance of each hyper-parameter: permutation importance of a random forest on the trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from engine.results.results import Results
from fedskew.lab.comparing.ranking import Setting, ranked, varied
from fedskew.lab.comparing.scales import scale_of

FEWEST_SETTINGS = 10
TREES, REPETITIONS, FOLDS = 120, 10, 5


@dataclass(frozen=True, eq=False)
class Importance:
    frame: pd.DataFrame  # axis, share of the importance of all axes, std of the share over shuffles; the largest first
    trials: int
    settings: int
    out_of_bag: float  # R² on trials that a tree has not seen; other seeds of the same setting it may have seen
    unseen: float  # R² on settings that the forest has not seen at all

    @property
    def note(self) -> str:
        """Say how far the order of the hyper-parameters can be trusted."""
        forest = (
            f"A random forest ({TREES} trees) on {self.trials} trials of {self.settings} settings explains "
            f"R² = {self.out_of_bag:.2f} out of bag, where it may know other seeds of the same setting, and "
            f"R² = {self.unseen:.2f} on settings that it has never seen."
        )
        if self.out_of_bag < 0.3:
            return f"{forest} That is little: do not read anything into the order."
        if self.unseen < 0.3:
            return f"{forest} It tells the settings of this sweep apart but does not carry over to others."
        return f"{forest} What is shuffled is what the forest was trained on, so a useless axis may show a little."


def importance(results: Results, settings: Sequence[Setting]) -> Importance | None:
    """Return the importance of each axis of the sweep.

    None where there is too little to learn from: fewer than two axes or ten settings, or a constant metric.
    """
    finished = ranked(settings, results.mode)
    names = list(varied(results, finished))
    if len(names) < 2 or len(finished) < FEWEST_SETTINGS:
        return None
    # A tree cuts an order anywhere, so a place along the axis serves for numbers and for names alike.
    scales = [scale_of(results, name, finished) for name in names]
    rows, values, groups = [], [], []
    for number, setting in enumerate(finished):
        places = [scale.place(setting) for scale in scales]
        for value in setting.figures(results.metric):
            rows.append(places)
            values.append(value)
            groups.append(number)
    x, y = np.array(rows), np.array(values)
    if not np.isfinite(y).all() or np.ptp(y) == 0:
        return None
    # Here, since it takes a second to import, and half of the sweeps have too few settings.
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.metrics import r2_score
    from sklearn.model_selection import GroupKFold, cross_val_predict

    forest = RandomForestRegressor(n_estimators=TREES, oob_score=True, random_state=0)
    forest.fit(x, y)
    shuffled: Any = permutation_importance(forest, x, y, n_repeats=REPETITIONS, random_state=0)
    apart = RandomForestRegressor(n_estimators=TREES, random_state=0)
    predicted = cross_val_predict(apart, x, y, groups=groups, cv=GroupKFold(FOLDS))
    falls = np.maximum(shuffled["importances_mean"], 0.0)  # of R²; a fall can exceed 1, so shares are shown
    total = falls.sum()
    if not total > 0:
        return None
    columns = {
        "axis": names,
        "share": falls / total,
        "std": shuffled["importances_std"] / total,
    }
    frame = pd.DataFrame(columns).sort_values("share", ascending=False, kind="stable", ignore_index=True)
    return Importance(frame, len(y), len(finished), float(forest.oob_score_), float(r2_score(y, predicted)))
