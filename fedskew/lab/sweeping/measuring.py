"""The figures that a sweep's claims rest on and its trials do not report, measured when the trials have ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from engine.base.errors import FedskewError
from engine.sweeps.named import NamedSweep

log = logging.getLogger("fedskew")


def measure(
    named: NamedSweep, folder: Path, address: str | None = None, told: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Diagnose a sweep's finished trials, and look at the images that they generate, as far as the sweep asks for it.

    ``told`` hears of each trial. Returns a line for each kind of figures: where they are, or why there are none.
    Raises :class:`FedskewError` if no trial can be diagnosed.
    """
    lines: list[str] = []
    layers, images = named.sweep.diagnose, named.sweep.images
    if layers:
        from fedskew.lab.diagnosis import sweep as diagnosis
        from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions  # pandas and matplotlib take a second

        options = DiagnosisOptions(layers="taps" if layers is True else layers)
        frame = diagnosis.diagnose_sweep(folder, None, options, (), address, lambda text: told(f"diagnosis, {text}"))
        lines.append(diagnosis.line(frame, folder))
    if images:
        from fedskew.lab.images import sweep as generated

        try:
            frame = generated.look_at_sweep(folder, told=lambda text: told(f"images, {text}"))
            lines.append(generated.line(frame, folder))
        except FedskewError as error:  # the report can do without, and the claims say what they lack
            lines.append(f"no images: {error}")
    return lines


def measure_and_log(named: NamedSweep, folder: Path, address: str | None = None) -> None:
    """:func:`measure` for scripts: its lines go to the log."""
    for line in measure(named, folder, address):
        log.info("%s", line)
