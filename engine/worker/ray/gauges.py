"""A round's phases in Ray's metrics, beside Ray's own: for its dashboard and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ray.util.metrics import Gauge

from engine.record.columns import PHASES, Row


@cache
def _gauges() -> tuple[Gauge, Gauge]:
    seconds = Gauge("fedskew_phase_seconds", "Seconds of a run's last round, by phase.", ("run", "phase"))
    return seconds, Gauge("fedskew_bytes_in", "Bytes of results that came in to the driver in it.", ("run",))


def show(run: Path, rows: Sequence[Row]) -> None:
    """Set the gauges to the last of these rows of ``rounds.parquet``, if there is one."""
    for row in rows[-1:]:
        seconds, bytes_in = _gauges()
        for phase in PHASES:
            seconds.set(row.get(f"{phase}_seconds"), {"run": run.name, "phase": phase})
        bytes_in.set(row.get("bytes_in"), {"run": run.name})
