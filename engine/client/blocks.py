"""Blocks of clients: how a cohort is cut, by a rule that knows nothing of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

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
