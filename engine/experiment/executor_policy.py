"""The executors by their names in a config, and the one that ``execution.executor=auto`` stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine.base.errors import ConfigError
from engine.models import ModelSpec
from engine.models.cost import model_cost

Executor = Literal["loop", "block", "graph", "block_graph"]
CAPTURING: frozenset[Executor] = frozenset({"graph", "block_graph"})  # replay steps that were captured; on a GPU alone
CLIENT_BY_CLIENT: frozenset[Executor] = frozenset({"loop", "graph"})  # who else is in a block changes no bit
STACKING: frozenset[Executor] = frozenset({"block", "block_graph"})  # train the clients of a block in one pass


LANES = 8  # that auto takes on a GPU: four took 1.08 of the time of eight there, one 1.5
SMALL = 200_000_000  # multiply-adds of an image of 32 x 32 pixels, up to which a step leaves room for others


def default_executor(
    models: Sequence[ModelSpec], batch_sizes: Sequence[int | Literal["full"]], device: str
) -> Literal["loop", "block", "graph"]:
    """Return the executor that ``auto`` stands for; the rule is fixed, since it changes bits.

    models: of the clients. batch_sizes: of the run's stages. device: cpu or cuda.

    On a CPU ``block`` for networks of linear layers alone: small batches of those are bound by memory and by the time
    between operations, which is what stacking saves. A convolution keeps the processor busy as it is, and slows down
    where it is stacked. On a GPU ``graph``, which took a third of the time of ``loop`` on an H100, with
    :func:`default_lanes` a fifth. Nobody's steps are stacked or captured where networks differ, or batches are full.
    """
    if len(set(models)) > 1 or "full" in batch_sizes:
        return "loop"
    if device == "cuda":
        return "graph"
    return "block" if models[0].linear_layers_only else "loop"


def default_lanes(models: Sequence[ModelSpec]) -> int:
    """Return the lanes that ``auto`` takes for ``graph`` on one GPU: one where a step of its own fills the card."""
    try:
        return LANES if all(model_cost(model, (3, 32, 32), 10).macs <= SMALL for model in set(models)) else 1
    except ConfigError:  # a network of other images
        return 1
