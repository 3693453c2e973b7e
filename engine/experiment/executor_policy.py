"""Which executor trains: what ``execution.executor=auto`` stands for, and what takes the place of one that cannot."""

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
    """Of clients with these models and the batch sizes of a run's stages; a fixed rule, since it changes bits.

    On a CPU ``block`` for networks of linear layers alone: small batches of those are bound by memory and by the time
    between operations, which is what stacking saves. A convolution keeps the processor busy as it is, and slows down
    where it is stacked. On a GPU ``loop``, until ``benchmarks/gpu.py`` has been run on one.
    """
    dense = len(set(models)) == 1 and models[0].linear_layers_only and "full" not in batch_sizes
    return "block" if dense and device == "cpu" else "loop"


def in_place_of(executor: Executor, no_vmap: str, client_models: bool) -> tuple[Executor, str]:
    """Who trains clients that ``executor`` was asked for, and if it is another one why.

    no_vmap: the algorithm's reason not to be stacked, if it has one. client_models: clients' networks differ.
    """
    why = no_vmap or ("clients have networks of their own" if client_models else "")
    return ("loop", why) if why and executor != "loop" else (executor, "")
