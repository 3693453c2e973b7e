"""Going on with a run or a sweep by its folder, for scripts and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def resume(folder: Path | str, address: str | None = None) -> Any:
    """Go on with a run, whose summary is returned, or with a sweep, whose :class:`Frames` are.

    A sweep of a file of one's own is gone on with by the function that began it: call :func:`fedskew.sweep` again.
    """
    folder = Path(folder)
    if (folder / "sweep.yaml").exists():
        from engine.analysis.frames import load_results
        from engine.sweeps.running import resume_sweep  # with Ray Tune
        from tune_configs import SWEEPS

        return load_results(resume_sweep(folder, SWEEPS, address)[1].folder)
    from engine.record.run_folder import RunFolder
    from engine.run.run import run

    return run(RunFolder(folder).experiment(), folder, address)
