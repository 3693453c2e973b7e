"""Runs, and going on with a run or a sweep by its folder, for scripts and notebooks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run import run as engine_run
from engine.run.run import RunObserver
from fedskew.lab.run_pictures import RunPictures
from fedskew.trackers.tracking import OnRound, parsed, tracked

log = logging.getLogger("fedskew")


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    address: str | None = None,
    store: StageStore | None = None,
    overwrite: bool = False,
    track: str | Sequence[str] = (),
    observers: Sequence[RunObserver] = (),
) -> dict[str, Any]:
    """Run to the end, draw the run's pictures and return the summary. After an error the folder holds what was done.

    An unfinished run of the same experiment in the folder is continued. ``track``: a tracker that follows it, such as
    ``"mlflow:http://127.0.0.1:5000"``, or several; see docs/trackers.md. ``observers``: told of its start, its rounds
    and its end.
    """
    targets = parsed(track, "track")
    folder = RunFolder.for_experiment(experiment.resolve(), Path(out) if out else None)
    with tracked(targets, folder.path, log.log) as look:
        return engine_run.run(experiment, out, address, store, overwrite, (*observers, RunPictures(), OnRound(look)))


def resume(folder: Path | str, address: str | None = None, track: str | Sequence[str] = ()) -> Any:
    """Go on with a run and return its summary, or with a sweep and return its :class:`Frames`.

    ``track``: a tracker that follows it, such as ``"mlflow:http://127.0.0.1:5000"``, or several; see docs/trackers.md.

    A sweep that was begun with ``--until-decided`` is given further seeds, as by ``fedskew resume``, until each claim
    is decided or the largest number of seeds has run. To go on with a sweep of your own file, call
    :func:`fedskew.sweep` with its function again.
    """
    folder = Path(folder)
    if (folder / "sweep.yaml").exists():
        from engine.results.frames import load_results
        from engine.sweeps.running import reopened
        from fedskew.lab.sweeping.deciding import run_until_decided  # with Ray Tune
        from fedskew.lab.sweeping.live import OnTrial
        from fedskew.lab.sweeping.measuring import run_and_measure
        from tune_configs import SWEEPS

        named, how = reopened(folder, SWEEPS)
        with tracked(parsed(track, "track"), folder, log.log) as look:
            observers = [OnTrial(look)]
            if named.most is None:
                return load_results(run_and_measure(named, folder, how, address, observers).folder)
            return load_results(run_until_decided(named, folder, how, address, observers)[1].folder)
    return run(RunFolder(folder).experiment(), folder, address, track=track)
