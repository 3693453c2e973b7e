"""A sweep, and the figures that its claims rest on and its trials do not report, measured when they have ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.base.errors import FedskewError
from engine.sweeps.named import NamedSweep
from engine.sweeps.observers import Observers, SweepObserver
from engine.sweeps.options import How
from engine.sweeps.running import SweepResult
from fedskew.lab.sweeping.tuning import run_sweep

log = logging.getLogger("fedskew")

Measure = Callable[[NamedSweep, Path], None]  # computes the figures of the sweep in a folder


def run_and_measure(
    named: NamedSweep,
    out: Path | None,
    how: How,
    address: str | None = None,
    observers: Sequence[SweepObserver] | Observers = (),
    retry_failed: bool = False,
    measured_by: Measure | None = None,
) -> SweepResult:
    """Run a sweep, and measure what its claims rest on unless it was interrupted or every trial failed.

    measured_by: measures; none: :func:`measure`, whose lines go to the log.
    """
    result = run_sweep(named, out, how, address, observers, retry_failed)
    if result.measurable:
        if measured_by is not None:
            measured_by(named, result.folder)
        else:
            for line in measure(named, result.folder, address):
                log.info("%s", line)
    return result


def measure(
    named: NamedSweep, folder: Path, address: str | None = None, progress: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Diagnose a sweep's finished trials, and look at the images that they generate, as far as the sweep asks for it.

    ``progress`` hears of each trial. Returns a line for each kind of figures: where they are, or why there are none.
    Raises :class:`FedskewError` if no trial can be diagnosed.
    """
    lines: list[str] = []
    layers, images = named.sweep.diagnose, named.sweep.images
    if layers:
        from fedskew.lab.diagnosis import sweep as diagnosis
        from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions  # pandas and matplotlib take a second

        options, told = DiagnosisOptions.of_sweep(layers), lambda text: progress(f"diagnosis, {text}")
        frame = diagnosis.diagnose_sweep(folder, None, options, (), address, told)
        lines.append(diagnosis.line(frame, folder))
    if images:
        from fedskew.lab.images import sweep as generated

        try:
            frame = generated.look_at_sweep(folder, told=lambda text: progress(f"images, {text}"))
            lines.append(generated.line(frame, folder))
        except FedskewError as error:  # the report can do without, and the claims say what they lack
            lines.append(f"no images: {error}")
    return lines
