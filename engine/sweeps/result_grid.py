"""Ray Tune's own results of a sweep; nothing of fedskew's is made of them."""

from __future__ import annotations

from pathlib import Path

from ray import tune

from engine.base.errors import RunFolderError
from engine.sweeps.folder import SweepFolder


def tune_results(folder: Path | str) -> tune.ResultGrid:
    """Return Ray Tune's results of the sweep in ``folder``: of the trials that its last process ran, in all portions.

    ``get_best_result()`` goes by the sweep's metric. Ray need not run. Tune unpickles files of the folder, which can
    run code: open none that you do not trust. Raises :class:`RunFolderError` for a folder without such results, as a
    merged sweep's, or one with a storage.
    """
    sweep = SweepFolder(Path(folder).resolve())
    values, states = sweep.sweep(), sorted(sweep.tune.glob("experiment_state-*.json"))
    if not states:
        rule = "has no results of Ray Tune (of a sweep with --storage they are there)"
        raise RunFolderError(f"{sweep.tune} {rule}; read the sweep by fedskew.load_results")
    trials = [trial for state in states for trial in tune.ExperimentAnalysis(str(state)).trials]
    by = {"default_metric": values["metric"], "default_mode": values["mode"]}
    return tune.ResultGrid(tune.ExperimentAnalysis(str(states[-1]), trials=trials, **by))
