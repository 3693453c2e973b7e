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
from engine.sweeps.named import named
from engine.sweeps.options import How
from fedskew.lab.sweeping.live import OnTrial
from fedskew.lab.sweeping.measuring import run_and_measure
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
    begun, place = named(reference, function, profile, overrides), Path(out) if out else None
    with tracked(parsed(track, "track"), SweepFolder.for_sweep(begun, place).path, log.log) as look:
        result = run_and_measure(begun, place, how or How(), address, [OnTrial(look)])
    return load_results(result.folder)
