"""Search for the executor that is the fastest for an experiment on this machine: ``fedskew tune-executor``.

The choice changes bits, so it is made once, by whoever asks, and written down; nothing is decided by a clock in a run.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from engine.experiment import Experiment
from engine.run.run import Run
from fedskew.lab.floor.measured import cut_short, last_with_rounds

EXECUTORS = {"cpu": ("loop", "block"), "cuda": ("loop", "block", "graph", "block_graph")}
CLEAR = 0.05  # of the time: what is closer than that to the executor of ``auto`` is not worth other bits


def study(
    experiment: Experiment, rounds: int, told: Callable[[str], None] = lambda text: None
) -> dict[str, list[float]]:
    """Seconds of the rounds of each executor of the device, one executor after the other, each one's first two dropped.

    Of the last stage with rounds, from fresh weights or after one round of those before, see
    :func:`fedskew.lab.floor.measured.cut_short`; nothing is measured of the models.
    """
    resolved = experiment.resolve()
    short = cut_short(experiment, rounds + 2)
    seconds: dict[str, list[float]] = {name: [] for name in EXECUTORS[resolved.execution.device]}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedskew-executor-")))
        first = last_with_rounds(short)[1].start + 2
        for name in seconds:  # not side by side: actors that wait would hold CPUs and cards
            told(f"{name}: data and actors")
            run = Run.open(short.override([f"execution.executor={name}"]), folder / name)
            with closing(run.driver):
                while run.round < first + rounds - 1:
                    told(f"{name}: round {run.round + 1}")
                    rows = run.advance(until=run.round + 1).rows
                    seconds[name] += [row["seconds"] for row in rows if row["round"] >= first]
    return seconds


def chosen(found: Mapping[str, Sequence[float]], default: str) -> str:
    """The fastest by its median; the one of ``auto`` unless another is clearly faster."""
    medians = {name: statistics.median(rounds) for name, rounds in found.items()}
    fastest = min(medians, key=lambda name: medians[name])
    return fastest if medians[fastest] < (1 - CLEAR) * medians[default] else default
