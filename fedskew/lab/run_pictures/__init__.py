"""Pictures that a run's folder gets when the run ends: curves and partition.

It offers :class:`RunPictures`, an observer of a run, and ``folder.draw_pictures``, which decides what there is to draw.
Read ``folder.py`` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.run.run import Run, RunObserver


class RunPictures(RunObserver):
    """Draws the pictures of a run at its end."""

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Write the pictures beside the run's tables."""
        from fedskew.lab.run_pictures.folder import draw_pictures  # matplotlib takes a second, and only ends need it

        counts = run.assignment.class_counts(run.labels, len(run.classes))
        draw_pictures(run.experiment, run.folder, counts, run.classes)
