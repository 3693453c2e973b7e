"""Precompute per-row tensors that depend on random draws only, for several steps and clients at once.

On a GPU a frozen network's pass over one step's rows is bound by its launches, over those of many by its arithmetic. On
a CPU each step's are made alone: a kernel may sum in another order over more rows, and bits would move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from engine.algorithm import Algorithm, Context, Tensors, overrides
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.step_inputs import Inputs

ROWS = 2048  # that are made at once on a GPU, unless one step has more


def with_constants(
    steps: Sequence[Inputs],
    algorithm: Algorithm,
    net: FlatNet,
    received: Tensors,
    context: Context,
    forward: Callable[[], AbstractContextManager[object]],
    stacked: bool = False,
) -> Iterable[Inputs]:
    """Return the inputs of steps with what :meth:`Algorithm.step_constants` makes of their draws.

    received: what all clients of the steps have received alike. stacked: draws are [k, B, ...] of k clients.
    """
    if not overrides(algorithm, "step_constants") or not all(step.drawn for step in steps):
        return steps

    def make(drawn: Tensors) -> Mapping[str, Tensor]:
        with torch.no_grad(), forward():
            return algorithm.step_constants(net, drawn, received, context)

    return _made(steps, make, 1 if net.weights.device.type == "cpu" else ROWS, stacked)


def _made(
    steps: Sequence[Inputs], make: Callable[[Tensors], Mapping[str, Tensor]], rows: int, stacked: bool
) -> Iterator[Inputs]:
    for some in _groups(steps, rows, stacked):
        sizes = [_rows(step, stacked) for step in some]
        parts = [{name: own.flatten(0, 1) if stacked else own for name, own in step.drawn.items()} for step in some]
        joined = {name: _joined([part[name] for part in parts]) for name in parts[0]}
        made = {name: tensor.split(sizes) for name, tensor in make(joined).items()}
        for number, step in enumerate(some):
            clients = step.rows["rows"].shape[:1] if stacked else ()
            own = {name: pieces[number] for name, pieces in made.items()}
            own = {name: tensor.view(*clients, -1, *tensor.shape[1:]) for name, tensor in own.items()}
            yield replace(step, drawn=step.drawn | own)


def _groups(steps: Sequence[Inputs], rows: int, stacked: bool) -> Iterator[list[Inputs]]:
    """Cut the steps into groups of ``rows`` drawn rows at most, or of one step."""
    group, count = list[Inputs](), 0
    for step in steps:
        own = _rows(step, stacked)
        if group and count + own > rows:
            yield group
            group, count = [], 0
        group, count = [*group, step], count + own
    if group:
        yield group


def _rows(step: Inputs, stacked: bool) -> int:
    first = next(iter(step.drawn.values()))
    return first.shape[0] * first.shape[1] if stacked else first.shape[0]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
