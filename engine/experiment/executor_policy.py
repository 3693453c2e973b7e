"""The executors by their names in a config, and the one that ``execution.executor=auto`` stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine.models import ModelSpec

Executor = Literal["loop", "block", "graph", "block_graph"]
CAPTURING: frozenset[Executor] = frozenset({"graph", "block_graph"})  # replay steps that were captured; on a GPU alone
STACKING: frozenset[Executor] = frozenset({"block", "block_graph"})  # train the clients of a block in one pass


def default_executor(
    models: Sequence[ModelSpec], batch_sizes: Sequence[int | Literal["full"]], device: str
) -> Literal["loop", "block"]:
    """Return the executor that ``auto`` stands for; the rule is fixed, since it changes bits.

    models: of the clients. batch_sizes: of the run's stages. device: cpu or cuda.

    On a CPU ``block`` for networks of linear layers alone: small batches of those are bound by memory and by the time
    between operations, which is what stacking saves. A convolution keeps the processor busy as it is, and slows down
    where it is stacked. On a GPU ``loop``, until ``benchmarks/gpu.py`` has been run on one.
    """
    dense = len(set(models)) == 1 and models[0].linear_layers_only and "full" not in batch_sizes
    return "block" if dense and device == "cpu" else "loop"
