"""A sweep that is gone on with, as ``fedskew resume`` does."""

from __future__ import annotations

from pathlib import Path

from engine.sweeps import running
from engine.sweeps.named import NamedSweep


def resume_sweep(path: Path, retry_failed: bool = False) -> tuple[NamedSweep, running.SweepResult]:
    """Go on with the sweep in ``path``, of a user's own file."""
    named, how = running.reopened(path, {})
    return named, running.run_sweep(named, path, how, retry_failed=retry_failed)
