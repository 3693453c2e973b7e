"""Search for the executor that is the fastest for an experiment on this machine: ``fedskew tune-executor``.

The choice changes bits, so it is made once, by whoever asks, and written down; nothing is decided by a clock in a run.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from engine.base.errors import RunError
from engine.experiment import Execution, Experiment
from engine.experiment.executor_policy import LANES
from engine.run.run import Run
from fedskew.lab.floor.measured import cut_short, last_with_rounds

log = logging.getLogger("fedskew")
ALONE = ("execution.lanes=1", "execution.compiled=false")
CPU = ("loop", "block")
# The ways to train a block's clients, as what is overridden of an experiment.
WAYS: dict[str, tuple[str, ...]] = {
    **{name: (f"execution.executor={name}", *ALONE) for name in (*CPU, "graph", "block_graph")},
    "graph in lanes": ("execution.executor=graph", f"execution.block={LANES}", f"execution.lanes={LANES}", ALONE[1]),
    "block_graph compiled": ("execution.executor=block_graph", ALONE[0], "execution.compiled=true"),
}
CLEAR = 0.05  # of the time: what is closer than that to the executor of ``auto`` is not worth other bits


def default_way(execution: Execution) -> str:
    """Name the way of a section whose ``auto`` is resolved."""
    return "graph in lanes" if execution.lanes > 1 else execution.executor


def study(
    experiment: Experiment, rounds: int, told: Callable[[str], None] = lambda text: None
) -> dict[str, list[float]]:
    """Seconds of the rounds of each executor of the device, one executor after the other, each one's first two dropped.

    Of the last stage with rounds, from fresh weights or after one round of those before, see
    :func:`fedskew.lab.floor.measured.cut_short`; nothing is measured of the models.
    """
    short = cut_short(experiment, rounds + 2)
    seconds: dict[str, list[float]] = {
        name: [] for name in (CPU if experiment.resolve().execution.device == "cpu" else WAYS)
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedskew-executor-")))
        first = last_with_rounds(short)[1].start + 2
        for name in [*seconds]:  # not side by side: actors that wait would hold CPUs and cards
            told(f"{name}: data and actors")
            try:
                run = Run.open(short.override(WAYS[name]), folder / name)
                with closing(run.driver):
                    while run.round < first + rounds - 1:
                        told(f"{name}: round {run.round + 1}")
                        rows = run.advance(until=run.round + 1).rows
                        seconds[name] += [row["seconds"] for row in rows if row["round"] >= first]
            except RunError as error:  # as where nothing can be compiled
                log.warning("%s is left out: %s", name, error)
                del seconds[name]
    return seconds


def chosen(found: Mapping[str, Sequence[float]], default: str) -> str:
    """The fastest by its median; the one of ``auto`` unless another is clearly faster."""
    medians = {name: statistics.median(rounds) for name, rounds in found.items()}
    fastest = min(medians, key=lambda name: medians[name])
    return fastest if medians[fastest] < (1 - CLEAR) * medians[default] else default
