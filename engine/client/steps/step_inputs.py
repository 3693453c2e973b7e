"""What a step takes beside weights and entries: which rows, and the random numbers that are its own.

They are made for all steps of a pass over the rows before the first of these steps, and brought to the device in one
copy (``batched_upload.py``). Each stream is consumed in step order, as if every step drew for itself: the same numbers.

Shapes: B rows of a step; k clients of a step, where several are trained together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from engine.algorithm import Tensors
from engine.client.steps.batched_upload import in_one_copy

AHEAD = 64  # steps, where there are no passes


@dataclass(frozen=True)
class Inputs:
    """The rows and draws that one step is given; of k clients each tensor is [k, ...]."""

    rows: Tensors  # "rows" [B], places, and the draws of augmentation; or what was made of them, "x" [B, ...], "y" [B]
    drawn: dict[str, Any] = field(default_factory=dict)  # what Algorithm.step_randomness drew

    def named(self) -> Tensors:
        """Everything by a name of its own, where all that was drawn are tensors."""
        return self.rows | {f"drawn {name}": tensor for name, tensor in self.drawn.items()}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same with every tensor changed; what is no tensor stays as it is."""
        rows = {name: change(tensor) for name, tensor in self.rows.items()}
        drawn = {name: change(own) if isinstance(own, Tensor) else own for name, own in self.drawn.items()}
        return Inputs(rows, drawn)

    def copied(self) -> Inputs:
        return self.mapped(Tensor.clone)


def on_device(steps: Sequence[Inputs], device: torch.device) -> Sequence[Inputs]:
    """Return the inputs of these steps on the device."""
    if device.type == "cpu":
        return steps
    tensors: list[Tensor] = []
    for step in steps:
        step.mapped(lambda tensor: tensors.append(tensor) or tensor)
    moved = iter(in_one_copy(tensors, device))
    return [step.mapped(lambda tensor: next(moved)) for step in steps]


def sent_ahead(steps: Iterable[Inputs], device: torch.device) -> Iterator[Inputs]:
    """Yield the inputs of steps on the device; on a GPU they are asked for, and go there, some steps ahead."""
    coming = iter(steps)
    while some := list(islice(coming, 1 if device.type == "cpu" else AHEAD)):
        yield from on_device(some, device)
