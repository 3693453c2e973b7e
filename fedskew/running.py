"""Runs and sweeps for scripts and notebooks, and going on with either by its folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import require
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run import run as engine_run
from engine.run.run import RunObserver
from fedskew.lab.run_pictures import RunPictures
from fedskew.trackers.tracking import OnRound, parsed, tracked

if TYPE_CHECKING:
    from engine.results.frames import Frames
    from engine.sweeps.definition import Sweep
    from engine.sweeps.options import How

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


def sweep(
    function: Callable[[str], Sweep],
    profile: str = "laptop",
    out: Path | str | None = None,
    overrides: Iterable[str] = (),
    address: str | None = None,
    how: How | None = None,
    track: str | Sequence[str] = (),
) -> Frames:
    """Run every trial of the sweep that ``function(profile)`` returns, and read what they came to as tables.

    Trials that have ended in its folder (``out``; by default ``runs/<name>-<profile>-<hash>``) are kept: after a crash
    call it again. ``track``: a tracker that follows it, such as ``"mlflow:http://127.0.0.1:5000"``, or
    several; see docs/trackers.md. Raises :class:`FedskewError` for what can be refused before anything starts.
    """
    from engine.results.frames import load_results
    from engine.sweeps.folder import SweepFolder
    from engine.sweeps.named import named
    from engine.sweeps.options import How
    from fedskew.lab.sweeping.live import OnTrial
    from fedskew.lab.sweeping.measuring import run_and_measure  # with Ray Tune

    require(callable(function), "function", function, "is no function", "give one that returns a Sweep")
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    reference = f"{Path(file).resolve() if file else 'notebook.py'}:{function.__name__}"
    begun, place = named(reference, function, profile, overrides), Path(out) if out else None
    with tracked(parsed(track, "track"), SweepFolder.for_sweep(begun, place).path, log.log) as look:
        result = run_and_measure(begun, place, how or How(), address, [OnTrial(look)])
    return load_results(result.folder)


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
