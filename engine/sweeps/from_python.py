"""Sweeps for scripts and notebooks: begun by a function, and gone on with by it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from engine.analysis.frames import Frames, load_results
from engine.base.errors import require
from engine.sweeps.definition import Sweep
from engine.sweeps.named import named
from engine.sweeps.options import How
from engine.sweeps.running import run_sweep


def sweep(
    function: Callable[[str], Sweep],
    profile: str = "laptop",
    out: Path | str | None = None,
    overrides: Iterable[str] = (),
    address: str | None = None,
    how: How | None = None,
) -> Frames:
    """Run every trial of the sweep that ``function(profile)`` returns, and read what they came to as tables.

    Trials that have ended in its folder (``out``; by default ``runs/<name>-<profile>-<hash>``) are kept: after a crash
    call it again. Raises :class:`FedskewError` for what can be refused before anything starts.
    """
    require(callable(function), "function", function, "is no function", "give one that returns a Sweep")
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    reference = f"{Path(file).resolve() if file else 'notebook.py'}:{function.__name__}"
    result = run_sweep(
        named(reference, function, profile, overrides), Path(out) if out else None, how or How(), address
    )
    return load_results(result.folder)
