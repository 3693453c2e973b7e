"""A check, before a stage trains, that the workers' memory will do. It changes no bit, and no client's state.

On a card, or where a client's training might take more than a small part of a worker's share of the machine, one worker
trains some rows of the largest client as a trial, of which nothing is kept but the most memory that its process came
to. A step or two of each phase have the peak: it lies in the activations of a batch, whatever the number of steps.

On a card, too many workers end in an error in mid-round, so what cannot fit is refused. A machine's memory is shared
with all else that runs there, so of that there is a warning.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from engine.algorithm import Context, ParamLayout
from engine.base import devices
from engine.base.errors import ResourceError
from engine.base.sizes import size_text
from engine.client.peak_memory import USABLE, PeakMemory
from engine.client.steps.training_loop import CHUNK
from engine.experiment import Execution, Experiment, Local, Stage
from engine.models import ModelSpec, build_model

log = logging.getLogger("fedskew")
SMALL = 0.05  # of a worker's part of the memory: an estimate below that needs no trial
VECTORS = 12  # weight vectors that a worker holds, sums in float64 counted twice
ACTIVATIONS = 4  # numbers kept for each that a module puts out: with those between modules, and gradients
MOST = 99  # actors that a share is named for: Ray counts in ten-thousandths


@dataclass(frozen=True)
class Preflight:
    """The trial of one stage: what it trains, whether it is worth its time, and what its peak says."""

    experiment: Experiment
    stage: Stage  # as its first round has it
    context: Context
    side_by_side: int  # workers that share a card, or a machine's memory
    held: int  # rows of the largest client
    together: int = 1  # clients that a worker trains in one pass; below 2: one by one
    lanes: int = 1  # clients that it trains side by side, each in its own steps

    @property
    def local(self) -> Local:
        """The stage's settings of local training, cut down to a step or two of each phase."""
        steps = None if self.stage.local.steps is None else min(self.stage.local.steps, 2)
        return self.stage.local.model_copy(update={"epochs": 1, "steps": steps})

    @cached_property
    def batch(self) -> int:
        """The most rows of a forward pass in training; a full batch that has statistics is in one piece."""
        sizes = [self.stage.local.batch_size]
        sizes += [phase.batch for phase in self.stage.algorithm.phases(self.context) if phase.batch != "local"]
        full = self.held if self.context.layout.has_batchnorm else CHUNK
        return min(self.held, max(full if isinstance(size, str) else size for size in sizes))

    @property
    def rows(self) -> int:
        """Rows that the trial trains on: two batches."""
        return min(self.held, 2 * self.batch)

    def due(self, layout: ParamLayout) -> bool:
        """Return whether a trial is worth its time; ``layout`` is that of the largest network.

        On a card it always is: a step takes little there, and the driver may see no card to compare an estimate with.
        """
        execution = self.experiment.execution
        if execution.device == "cuda":
            return True
        if execution.actors == 0 and self.side_by_side == 1:
            return False  # one worker has the machine to itself
        estimate, part = self.estimate(layout), devices.memory("cpu") / self.side_by_side
        log.info("preflight: a worker's training is estimated to take %s of %s", size_text(estimate), size_text(part))
        return estimate > SMALL * part

    def estimate(self, layout: ParamLayout) -> int:
        """Return the bytes of a worker that trains: a rough figure, too high rather than too low."""
        specs = (self.experiment.model, *self.experiment.client_models)
        outputs = max(activations(spec, layout.image, layout.classes) for spec in specs)
        size = 8 if self.experiment.execution.precision == "float64" else 4
        return size * self.together * (VECTORS * layout.size + ACTIVATIONS * self.batch * outputs)

    def smaller(self, layout: ParamLayout) -> str:
        """Say what to set where a worker's memory did not do: a smaller batch, or fewer clients at a time."""
        if self.lanes > 1:
            return (
                f"{self.lanes} clients are trained side by side: set execution.lanes={self.lanes // 2}, for equal bits"
            )
        if self.together < 2:
            return "lower local.batch_size, or take a machine with more memory"
        one, device, fitting = self.estimate(layout) / self.together, self.experiment.execution.device, self.together
        if device == "cpu" or torch.cuda.is_available():  # a driver actor sees no card
            fitting = int(USABLE * devices.memory(device) / self.side_by_side / one)
        return (
            f"{self.together} clients are trained in one pass, of about {size_text(int(one))} each: set "
            f"execution.block={max(1, min(self.together // 2, fitting))}, which computes other bits"
        )

    def report(self, peak: PeakMemory) -> None:
        """Log what fits; raise :class:`ResourceError` if what was asked for does not fit on the card."""
        text = verdict(peak, self.side_by_side, self.experiment.execution)
        log.log(logging.INFO if peak.fitting >= self.side_by_side else logging.WARNING, "preflight: %s", text)


def verdict(peak: PeakMemory, side_by_side: int, execution: Execution) -> str:
    """Return a sentence on what fits; raise :class:`ResourceError` if ``side_by_side`` workers do not on a card."""
    needed, total, fitting = size_text(peak.needed), size_text(peak.total), peak.fitting
    if execution.device != "cuda":
        text = f"a worker takes {needed} with its largest client, and this machine has {total}, enough for {fitting}"
        if fitting >= side_by_side:
            return text
        field = "actors" if execution.actors else "workers"
        return f"{text} and not for {side_by_side}; lower execution.{field} or local.batch_size"
    if fitting >= side_by_side:
        text = f"a worker takes {needed} of the card's {total} with its largest client"
        return f"{text}, so {fitting} would fit on it: {_share(fitting)}"
    field, value = ("gpus_per_actor", f"{execution.gpus_per_actor:g}") if execution.actors else ("device", "cuda")
    rule = f"{side_by_side} workers of {needed} each do not fit on a card of {total}"
    repair = f"{fitting} do: set {_share(fitting)}" if fitting else "lower local.batch_size or take a smaller model"
    if execution.lanes > 1:
        repair = f"{repair}, or lower execution.lanes={execution.lanes}, for equal bits"
    raise ResourceError(f"execution.{field}={value}: {rule}; {repair}")


def _share(actors: int) -> str:
    """Return the setting by which ``actors`` share a card, rounded down: just above 1/n is taken as 1/(n - 1)."""
    return f"execution.gpus_per_actor={int(1e4 // min(actors, MOST)) / 1e4:g}"


def activations(spec: ModelSpec, shape: tuple[int, int, int], classes: int) -> int:
    """Count the numbers that a model's innermost modules put out for one image."""
    count = 0

    def add(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        nonlocal count
        parts = output if isinstance(output, tuple) else (output,)  # an attention gives its weights as well
        count += sum(part.numel() for part in parts if isinstance(part, Tensor))

    model = build_model(spec, shape, classes, torch.Generator()).eval()
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(add)
    with torch.no_grad():
        model(torch.zeros(1, *shape))
    return count
