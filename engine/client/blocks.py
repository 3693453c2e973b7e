"""Blocks of clients: how a cohort is cut, and by which executor a block trains.

Where the clients of a block are trained in one pass, who is in it changes bits, so the rule is hashed with this room,
and knows nothing of workers. Elsewhere blocks change nothing but time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from engine.experiment.executor_policy import Executor

BLOCKS = 4  # for each worker, at least: enough to balance them, few enough that dispatch costs little
AT_LEAST = 16  # in a round: what single clients send or keep is held for one block
TOGETHER = 32  # clients of a block that are trained in one pass, at most: from there on a step gains little


def cut_blocks(cohort: Sequence[int], block: int | Literal["auto"], workers: int) -> list[tuple[int, ...]]:
    """Cut a cohort, in its order, into blocks for so many workers.

    block: clients in each but the last. ``auto`` is the largest power of two that gives each worker four blocks and
    the round 16: then a block is a subtree of the cohort's tree, and its sum one vector.
    """
    if block == "auto":
        block = 1 << max(len(cohort) // max(BLOCKS * workers, AT_LEAST), 1).bit_length() - 1
    return [tuple(cohort[first : first + block]) for first in range(0, len(cohort), block)]


def cut_together(cohort: Sequence[int], block: int | Literal["auto"]) -> list[tuple[int, ...]]:
    """Cut a cohort, in its order, into blocks that are trained in one pass; their sizes differ by one at most.

    block: clients in the largest; ``auto`` is half of the cohort, up to 32.
    """
    count = len(cohort)
    if block == "auto":
        block = min(-(-count // 2), TOGETHER)
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
