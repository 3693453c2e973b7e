"""The work that a client is expected to be, by which ``scheduling.py`` sends the longest first. Changes no bit.

A step costs something however few rows it has, and something for each of its rows, so what predicts a client's seconds
is neither its rows nor its steps: with ``local.steps`` all clients take as many steps, with a full batch all take one.
Over clients of 1 to 200 rows (batches of 10 and 32, one CPU thread) the steps' share came to that of 3 to 10 rows for
lenet, cnn and residual networks, 27 for mlp and 86 for logistic. At 8 the mean error of what is predicted is 4 to 10 %
for the first, whose rounds are long; by rows alone it is 10 to 22 %, by steps alone 27 to 40 %.

How long a unit of cost takes is measured as blocks come back, per method and device class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.algorithm import Phase, batches_in
from engine.data.samples.batches import batch_sizes
from engine.experiment import Local

ROWS_PER_STEP = {"cpu": 8, "cuda": 256}  # rows that cost what a step costs beside its rows; a GPU waits for launches
FORWARD = 1 / 3  # of a forward and a backward pass


@dataclass(frozen=True)
class Work:
    """Optimizer steps, and the rows that they pass forward and backward."""

    steps: float = 0.0
    rows: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.steps + other.steps, self.rows + other.rows)

    def cost(self, device: str) -> float:
        """Return the cost on a device type ("cpu" or "cuda"), in steps without rows."""
        return self.steps + self.rows / ROWS_PER_STEP[device]


def total(works: Iterable[Work]) -> Work:
    """Add up the work of clients that are worked on one after the other."""
    return sum(works, Work())


def training(phases: Sequence[Phase], local: Local, rows: int) -> Work:
    """Estimate the training of a client with ``rows`` rows; its loading and its upload are counted as a step."""
    return total((Work(steps=1.0), *(_of_phase(phase, local, rows) for phase in phases)))


def forward(rows: int) -> Work:
    """Estimate a pass over ``rows`` rows without gradients."""
    return Work(rows=FORWARD * rows)


def _of_phase(phase: Phase, local: Local, rows: int) -> Work:
    """A phase as ``engine/client/steps/training_loop.py`` runs it, but for batches of one row that BatchNorm drops."""
    if phase.rows != "all":
        support = min(round(phase.support * rows), rows - 1)
        rows = support if phase.rows == "support" else rows - support
    batches = batch_sizes(rows, local.batch_size if phase.batch == "local" else phase.batch, local.last_batch)
    if not batches:
        return Work()
    epochs, steps = phase.epochs, phase.steps
    if epochs is None and steps is None:
        epochs, steps = local.epochs, local.steps
    if phase.emit == "gradient":
        steps = 1
    taken = batches_in(epochs or 0, len(batches)) * phase.repeat if steps is None else steps
    if phase.features == "cached":  # the body once, then steps of the head alone
        return Work(FORWARD * taken, FORWARD * rows)
    share = FORWARD if phase.trainable == "head" else 1.0
    passes, begun = divmod(taken, len(batches) * phase.repeat)
    last = sum(batches[step // phase.repeat] for step in range(begun))
    return Work(share * taken, share * (passes * phase.repeat * sum(batches) + last))
