"""Going on with a run or a sweep by its folder, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any


def resume(folder: Path | str, address: str | None = None, track: str | Sequence[str] = ()) -> Any:
    """Go on with a run and return its summary, or with a sweep and return its :class:`Frames`.

    ``track``: a tracker that follows it, such as ``"mlflow:http://127.0.0.1:5000"``, or several; see docs/trackers.md.

    A sweep that was begun with ``--until-decided`` is given further seeds, as by ``fedskew resume``, until each claim
    is decided or the largest number of seeds has run. To go on with a sweep of your own file, call
    :func:`fedskew.sweep` with its function again.
    """
    folder = Path(folder)
    if (folder / "sweep.yaml").exists():
        from engine.analysis.frames import load_results
        from engine.sweeps.deciding import run_until_decided  # with Ray Tune
        from engine.sweeps.from_python import run_and_measure, told
        from engine.sweeps.measuring import measure_and_log
        from engine.sweeps.running import reopened
        from tune_configs import SWEEPS

        named, how = reopened(folder, SWEEPS)
        with told(track, folder):
            if named.most is None:
                return load_results(run_and_measure(named, folder, how, address).folder)
            measure = partial(measure_and_log, address=address)
            return load_results(run_until_decided(named, folder, how, address, measure=measure)[1].folder)
    from engine.record.run_folder import RunFolder
    from engine.run.run import run

    return run(RunFolder(folder).experiment(), folder, address, track=track)
