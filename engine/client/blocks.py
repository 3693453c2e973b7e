"""Blocks of clients: how a cohort is cut, and by which executor a block trains. Neither rule knows of workers.

Both change bits, so they are hashed with this room; the policy of ``auto`` is not, since a stage's hash has the
executor that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from engine.experiment.executor_policy import Executor

AUTO_BLOCKS = 16  # blocks in a round: enough to balance a few actors, few enough that dispatch costs little
TOGETHER = 32  # clients of a block that are trained in one pass, at most: from there on a step gains little


def cut_blocks(cohort: Sequence[int], block: int | Literal["auto"], together: bool = False) -> list[tuple[int, ...]]:
    """A cohort in its order, cut into blocks whose sizes differ by one at most.

    block: clients in the largest. ``auto`` is a 16th of the cohort, and where a block's clients are trained
    ``together`` half of it, up to 32.
    """
    count = len(cohort)
    if block == "auto":
        block = min(-(-count // 2), TOGETHER) if together else -(-count // AUTO_BLOCKS)
    if not count:
        return []
    cuts = np.array_split(np.arange(count), -(-count // block))
    return [tuple(cohort[part[0] : part[-1] + 1]) for part in cuts]


def in_place_of(executor: Executor, no_vmap: str, client_models: bool) -> tuple[Executor, str]:
    """Name the executor that trains where ``executor`` was asked for, and if it is another one say why.

    no_vmap: the algorithm's reason not to be stacked, if one holds. client_models: clients' networks differ.
    """
    why = no_vmap or ("clients have networks of their own" if client_models else "")
    return ("loop", why) if why and executor != "loop" else (executor, "")
