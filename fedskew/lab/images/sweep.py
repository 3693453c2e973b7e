"""Images that the generators of a sweep's trials make: their figures become columns of the trials table.

    look_at_sweep(Path("runs/cbfl.figure11-laptop-0123456789ab"))
    generated.parquet, generated.csv      one row per trial
    trials/*/images/                      each trial's own tables and picture

``fedskew report`` then shows the pictures, and claims can be made of ``generated_agreement``, ``nearest_distance``,
``nearest_distance_test`` and ``nearest_ratio`` (see :class:`~fedskew.lab.images.generated.Generated`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from engine.results.trials import GENERATED
from fedskew.lab.frames import write_frame
from fedskew.lab.images import generated
from fedskew.lab.images.generated import PROBE
from fedskew.lab.trial_by_trial import trial_by_trial


def look_at_sweep(
    folder: Path, number: int | None = None, probe: int = PROBE, told: Callable[[str], None] = lambda text: None
) -> pd.DataFrame:
    """Generate images with each finished trial's state after round ``number``, or its last; one row per trial.

    A trial that generates none is left out, and the log says why; if none does, that is an error.
    """

    def look(trial: Path) -> Path:
        found = generated.look(trial, number, probe)
        generated.write(found)
        return found.folder

    names = ("images", "test_images", *GENERATED)
    found = trial_by_trial(folder, "generate images with", look, told)
    frame = pd.DataFrame([start | {name: about[name] for name in names} for start, _, about in found])
    write_frame(frame, folder / "generated")
    return frame


def line(frame: pd.DataFrame, folder: Path) -> str:
    """Say of how many trials :func:`look_at_sweep` has measured the images, and where its table is."""
    return f"images     {len(frame)} trials, {folder / 'generated.parquet'}"
