"""Sweeps for scripts and notebooks: begun by a function, and gone on with by it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine.base.errors import require
from engine.results.frames import Frames, load_results
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep, named
from engine.sweeps.observers import SweepObserver
from engine.sweeps.options import How
from engine.sweeps.running import SweepResult
from fedskew.lab.sweeping.live import OnTrial
from fedskew.lab.sweeping.measuring import measure_and_log
from fedskew.lab.sweeping.tuning import run_sweep
from fedskew.trackers.tracking import parsed, tracked

log = logging.getLogger("fedskew")


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
    require(callable(function), "function", function, "is no function", "give one that returns a Sweep")
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    reference = f"{Path(file).resolve() if file else 'notebook.py'}:{function.__name__}"
    asked, place = named(reference, function, profile, overrides), Path(out) if out else None
    with tracked(parsed(track, "track"), SweepFolder.for_sweep(asked, place).path, log.log) as look:
        result = run_and_measure(asked, place, how or How(), address, [OnTrial(look)])
    return load_results(result.folder)


def run_and_measure(
    asked: NamedSweep, folder: Path | None, how: How, address: str | None, observers: Sequence[SweepObserver] = ()
) -> SweepResult:
    """Run a sweep, and measure what its claims rest on if its trials ran to their end, as ``fedskew sweep`` does."""
    result = run_sweep(asked, folder, how, address, observers)
    if result.measurable:
        measure_and_log(asked, result.folder, address)
    return result
